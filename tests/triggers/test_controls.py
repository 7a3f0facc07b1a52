"""The controls tell an instrument that works from those that do not."""

import pytest
from tests.triggers.test_trigger_stats import make_result

from ludus.catalogue import SkillCard, make_catalogue
from ludus.triggers.controls import PROBE, REQUESTS, judge_controls, make_controls


def run_controls(won: int, lost: int, first: int = 3, second: int = 3, runs: int = 4):
    winner = [make_result(str(n), PROBE, {PROBE: won} if won else {}, runs) for n in range(len(REQUESTS))]
    loser = [make_result(str(n), PROBE, {PROBE: lost} if lost else {}, runs) for n in range(len(REQUESTS))]
    halves = [[make_result(str(n), "a", {"a": count}) for n in range(40)] for count in (first, second)]
    return judge_controls(halves[0], halves[1], winner, loser)


def test_an_agent_that_goes_by_descriptions_passes():
    assert run_controls(4, 0).works
    assert run_controls(3, 1).works


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (4, 4), (2, 2), (0, 4)])
def test_an_agent_that_never_loads_or_loads_everything_fails(won, lost):
    report = run_controls(won, lost)
    assert not report.works
    assert "does not go by descriptions" in report.problems[0]


def test_the_same_catalogue_twice_must_not_differ():
    report = run_controls(4, 0, first=4, second=1)
    assert any("measured twice differs" in problem for problem in report.problems)


def test_without_a_verdict_nothing_is_known():
    assert "no run of the control requests" in judge_controls([], [], [], []).problems[0]


def test_controls_differ_in_one_description_only():
    catalogue = make_catalogue([SkillCard("a", "A.")])
    winner, loser = make_controls(catalogue)
    assert winner.queries == loser.queries
    assert winner.catalogue.names == loser.catalogue.names == ("a", PROBE)
    assert winner.catalogue.get(PROBE) != loser.catalogue.get(PROBE)
