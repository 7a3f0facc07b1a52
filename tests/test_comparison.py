"""Runs beside each other: paired differences, tasks won and lost, and what is not comparable."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import build
from tests.build import make_completion, make_rollout, make_task

from ludus.comparison import compare_runs, compute_paired_interval
from ludus.engine import make_group
from ludus.types import Group, Usage


def group(id: str, *scores: float | None, prompt: str = "do it", dollars: float = 0.0, split: str = "train") -> Group:
    task = make_task(id, prompt, split=split)
    reply = make_completion("x", usage=Usage(100, 10, 0, dollars))
    return make_group(task, [make_rollout(score, reply, task=task, seconds=2.0) for score in scores], len(scores))


def test_the_difference_is_paired_by_task():
    first = [group("a", 1.0), group("b", 1.0, 0.0), group("c", 0.0), group("only", 1.0)]
    second = [group("c", 0.0), group("b", 0.0), group("a", 0.5)]
    (pair,) = compare_runs({"one": first, "two": second}).pairs
    assert (pair.first, pair.second, pair.tasks) == ("one", "two", 3)
    assert (pair.won, pair.lost, pair.tied, pair.changed) == (2, 0, 1, 0)
    assert pair.difference == pytest.approx(1 / 3)
    half = 4.3027 * math.sqrt(1 / 12) / math.sqrt(3)  # differences 0.5, 0.5 and 0
    assert pair.interval and pair.interval.low == pytest.approx(1 / 3 - half, abs=1e-4)


def test_every_pair_is_compared():
    runs = {name: [group("a", 1.0), group("b", 0.0)] for name in "xyz"}
    assert [(p.first, p.second) for p in compare_runs(runs).pairs] == [("x", "y"), ("x", "z"), ("y", "z")]


def test_rollouts_without_a_score_are_in_no_difference():
    found = compare_runs({"one": [group("a", None, 1.0), group("b", None)], "two": [group("a", 1.0), group("b", 0.0)]})
    assert (found.pairs[0].tasks, found.pairs[0].difference) == (1, 0.0)
    assert found.pairs[0].interval is None, "one task has no spread"
    assert found.runs[0].excluded == 2


def test_other_questions_are_not_compared():
    first = [group("a", 1.0), group("b", 1.0), group("c", 1.0)]
    second = [group("a", 0.0, prompt="something else"), group("b", 0.0, split="test")]
    (pair,) = compare_runs({"one": first, "two": second}).pairs
    assert (pair.tasks, pair.changed, pair.difference, pair.interval) == (0, 1, None, None)


def test_cost_is_that_of_the_compared_tasks_per_rollout():
    first = [group("a", 1.0, 1.0, dollars=0.2), group("only", 1.0, dollars=9.0)]
    found = compare_runs({"one": first, "two": [group("a", 0.0, dollars=0.1)]})
    (pair,) = found.pairs
    assert pair.usage_first.dollars == pytest.approx(0.2) and pair.usage_second.dollars == pytest.approx(0.1)
    assert pair.usage_first.prompt_tokens == 100
    assert (found.runs[0].model, found.runs[0].rollouts, found.runs[0].median_seconds) == ("m", 3, 2.0)


def test_runs_without_any_difference_may_still_differ():
    interval = compute_paired_interval([0.0] * 12)
    assert interval and interval.low == -interval.high < 0 and interval.high == pytest.approx(0.2425, abs=1e-3)
    assert compute_paired_interval([0.0]) is None and compute_paired_interval([]) is None


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=30))
def test_an_interval_contains_the_mean_and_is_within_the_range(differences: list[float]):
    interval, mean = compute_paired_interval(differences), math.fsum(differences) / len(differences)
    assert interval and -1 <= interval.low <= mean + 1e-12 and mean - 1e-12 <= interval.high <= 1


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ([1.0] * 8, [0.0] * 8, "a is better than b: a minus b is +1.000"),
        ([0.0] * 8, [1.0] * 8, "b is better than a: a minus b is -1.000"),
        ([1.0, 0.0], [0.0, 1.0], "a cannot be told from b: difference +0.000"),
        ([1.0], [0.0], "One task is too few to tell a from b: 1 won, 0 lost, 0 tied."),
        ([], [1.0], "a and b share no task with scores"),
    ],
)
def test_a_comparison_ends_in_a_sentence(first: list[float], second: list[float], words: str):
    runs = {
        name: [group(f"t{n}", score) for n, score in enumerate(scores)]
        for name, scores in (("a", first), ("b", second))
    }
    (pair,) = compare_runs(runs).pairs
    assert words in pair.verdict


def test_the_tasks_that_were_won_and_lost_are_named_the_clearest_first():
    one = [group(f"t{n}", score) for n, score in enumerate((0.5, 1.0, 0.0, 1.0))]
    two = [group(f"t{n}", score) for n, score in enumerate((0.0, 0.0, 1.0, 1.0))]
    (pair,) = compare_runs({"a": one, "b": two}).pairs
    assert [(each.task, each.first, each.second) for each in pair.won_tasks] == [("t1", 1.0, 0.0), ("t0", 0.5, 0.0)]
    assert [each.task for each in pair.lost_tasks] == ["t2"]


def test_runs_are_compared_kind_by_kind():
    def make_run(values: dict[str, float]) -> list[Group]:
        return [
            build.make_group(value, task=make_task(f"{kind}{n}", kind=kind))
            for kind, value in values.items()
            for n in range(3)
        ]

    [pair] = compare_runs({"a": make_run({"easy": 1.0, "hard": 0.5}), "b": make_run({"easy": 1.0, "hard": 0.0})}).pairs
    assert [(each.kind, each.tasks, each.difference) for each in pair.kinds] == [("easy", 3, 0.0), ("hard", 3, 0.5)]
    [pair] = compare_runs({"a": make_run({"easy": 1.0}), "b": make_run({"easy": 0.0})}).pairs
    assert pair.kinds == ()
