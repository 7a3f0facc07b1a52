"""Which lines spoil rollouts, from passes, failures and suspicions."""

from collections.abc import Sequence
from random import Random

import pytest
from tests.ledger_kit import make_ledger, make_line, make_situation, read

from ludus.reflact.ledger.blame import (
    HarmEvidence,
    HarmTable,
    add_outcomes,
    compute_cost,
    compute_prior_harm,
)
from ludus.reflact.ledger.credit import add_readings
from ludus.reflact.ledger.line_records import Blame, LineLedger
from ludus.reflact.ledger.settings import LedgerTuning

LINES = [f"L{n}" for n in range(12)]


def run_rollouts(count: int, *, luck: float = 0.1, suspects: str = "nobody", seed: int = 3) -> Blame:
    """Twelve lines, each in two of three texts. `L5` spoils four in ten rollouts of kind `a`. `suspects`: nobody is
    ever suspected, the `guilty` line is at times, or an `innocent` one."""
    random, blame = Random(seed), Blame()
    for number in range(count):
        kind, lines = random.choice("ab"), [line for line in LINES if random.random() < 2 / 3]
        spoiled = kind == "a" and "L5" in lines and random.random() < 0.4
        passed, named = not spoiled and random.random() > luck, list[str]()
        if not passed and random.random() < 0.6:
            innocent = [line for line in lines if line != "L5"]
            named = {"nobody": [], "guilty": ["L5"] * spoiled, "innocent": random.sample(innocent, 1)}[suspects]
        outcome = HarmEvidence(f"t{number % 40}", kind, lines, float(passed), suspects=named)
        blame = add_outcomes(blame, [outcome], 2)
    return blame


def read_costs(blame: Blame, shares: dict[str, float]) -> dict[str, float]:
    return {line: compute_cost(HarmTable(blame), line, shares).mean for line in LINES}


def get_chance(blame: Blame) -> float:
    found = HarmTable(blame).get("L1", "")
    return found.chance if found else 0.0


@pytest.mark.parametrize("luck", [0.1, 0.4])
@pytest.mark.parametrize(("suspects", "rollouts"), [("nobody", 900), ("guilty", 150)])
def test_the_line_that_spoils_a_kind_of_task_stands_out(luck: float, suspects: str, rollouts: int):
    blame = run_rollouts(rollouts, luck=luck, suspects=suspects)
    costs = read_costs(blame, {"a": 0.5, "b": 0.5})
    assert max(costs, key=lambda line: costs[line]) == "L5" and costs["L5"] > 0.05
    assert max(cost for line, cost in costs.items() if line != "L5") < 0.03
    assert compute_cost(HarmTable(blame), "L5", {"b": 1.0}).mean < 0.03, "kinds are told apart"


def test_most_lines_stay_clear_of_an_analyst_who_blames_the_wrong_ones():
    costs = read_costs(run_rollouts(600, suspects="innocent"), {"a": 0.5, "b": 0.5})
    assert sum(cost < 0.01 for cost in costs.values()) >= 9


def test_an_agent_that_often_fails_makes_no_line_look_harmful():
    costs = read_costs(run_rollouts(600, luck=0.6), {"b": 1.0})
    assert max(costs.values()) < 0.04


def test_what_is_not_known_costs_something_and_is_not_sure():
    for kinds in (1, 4):
        shares = {f"k{n}": 1 / kinds for n in range(kinds)}
        cost = compute_cost(HarmTable(Blame()), "L1", shares)
        assert 0.01 < cost.mean < 0.1 and cost.deviation > cost.mean
        assert (1 - compute_prior_harm(kinds)) ** kinds == pytest.approx(1 - compute_prior_harm(1)), "of all kinds"


def test_older_rollouts_are_kept_as_sums():
    blame = run_rollouts(900)
    assert len(blame.recent) <= 240 and len(blame.other_causes) == len(blame.rates)
    assert len(blame.lines) == len(set(blame.lines)) == len(blame.passes) == len(blame.odds) == len(blame.harmful)
    assert sum(map(bool, blame.odds)) > 10, "older failures"
    assert all(0.0 < rate < 1.0 for rate in (*blame.rates, *blame.harmful))


def test_a_graded_rollout_is_so_much_of_a_failure():
    def judge(*outcomes: float) -> float:
        blame = Blame()
        for outcome in outcomes:
            blame = add_outcomes(blame, [HarmEvidence("t", "", ["L1"], outcome)], 1)
        return get_chance(blame)

    assert judge(1.0) < judge(0.8) < judge(0.2) < judge(0.0)
    assert judge(1.0, 1.0, 1.0) < judge(1.0)


def test_what_else_was_named_explains_a_failure():
    line, known = make_line("L1", weight=2.0), [make_situation("s", ["t1"]), make_situation("other", ["t1"])]
    ledger = make_ledger([line], known)

    def judge(passed: bool, named: Sequence[str] = (), suspects: Sequence[str] = (), read_it: bool = True) -> float:
        reading = read("t1", passed, ["L1"], named, suspects=tuple(suspects), read=read_it)
        after: LineLedger = add_readings(ledger, [reading], LedgerTuning())
        return get_chance(after.blame)

    passed, failed, explained = judge(True), judge(False), judge(False, ["other"])
    assert passed < explained < failed, "another situation explains it in part"
    assert judge(False, ["s"]) == failed, "the line has mended this situation, so it explains nothing"
    assert judge(False, suspects=["L1"]) > failed
    assert judge(False, suspects=["P1"]) == pytest.approx(explained, abs=0.02), "a passage that is suspected"
    assert judge(False, read_it=False) == 0.0, "nobody knows what explains it"
