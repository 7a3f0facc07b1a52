"""The arms of a claim: how many samples are the same budget, what they say, and when a difference is called a gain."""

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.build import make_rollout, make_task

from ludus.reflact.claim_arms import (
    ArmPlan,
    describe_arms,
    make_best_of,
    make_transfer,
    name_gain,
    plan_samples,
    sum_training,
)
from ludus.reflact.gate import Gate, Mark, Measure
from ludus.reflact.records import Claim, ClaimArms, StageCost
from ludus.stats import Interval
from ludus.types import Rollout, Score, Usage

HARD, SOFT = Gate(metric="hard"), Gate(metric="soft")


@given(st.integers(0, 5000), st.integers(1, 300), st.none() | st.integers(1, 5000))
def test_the_samples_take_at_least_the_rollouts_of_training(trained: int, tasks: int, limit: int | None):
    plan = plan_samples(trained, tasks, None, limit)
    if plan is None:
        assert limit is not None and limit // max(2, math.ceil(trained / tasks)) < min(4, tasks)
        return
    assert plan.samples == plan.matched >= 2 and plan.samples * tasks >= trained
    assert plan.samples == 2 or (plan.samples - 1) * tasks < trained, "and not more than needed"
    assert limit is None or plan.rollouts <= limit
    assert plan.tasks == tasks or limit is not None


def sample(task: str, passed: Sequence[bool | None]) -> list[Rollout]:
    scores = [None if each is None else Score(float(each), each, float(each)) for each in passed]
    return [make_rollout(score, task=make_task(task)) for score in scores]


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=6))
def test_fewer_samples_are_estimated_without_bias(results: list[list[bool]]):
    rollouts = {f"t{n}": sample(f"t{n}", passed) for n, passed in enumerate(results)}
    arm = make_best_of(ArmPlan(4, 4, len(results)), rollouts, Measure("x"), HARD)
    for k in (1, 2, 4):  # the mean over all ways to choose k of the samples
        ways = [any(chosen) for passed in results for chosen in itertools.combinations(passed, k)]
        assert arm.pass_at[k] == pytest.approx(sum(ways) / len(ways))
    assert arm.passed == pytest.approx(sum(map(any, results)) / len(results)) and arm.lead is None


def test_a_sample_without_a_score_is_not_a_zero():
    rollouts = {"a": sample("a", [True, None]), "b": sample("b", [False, True])}
    arm = make_best_of(ArmPlan(2, 2, 2), rollouts, Measure("x", {"a": Mark(1.0, 1.0), "b": Mark(0.0, 0.0)}), HARD)
    assert (arm.tasks, arm.excluded, arm.passed, arm.lead) == (1, 1, 1.0, -1.0)


def test_with_graded_scores_the_best_score_counts():
    graded = [make_rollout(Score(value, False, value), task=make_task("a")) for value in (0.2, 0.6, 0.4, 0.4)]
    arm = make_best_of(ArmPlan(4, 4, 1), {"a": graded}, Measure("x", {"a": Mark(0.0, 0.7)}), SOFT)
    assert arm.passed == pytest.approx(0.6) and arm.lead == pytest.approx(0.1), "no sample passes"
    assert arm.pass_at[1] == pytest.approx(0.4) and arm.pass_at[2] == pytest.approx(0.5), "the mean over six pairs"
    said = describe_arms(arm, (), 4, 0.7, metric="soft")
    assert "has a score of 0.60 on 1 test task with 4 tries" in said and "one try (0.70)" in said
    other = make_transfer(
        "model", "m", Measure("x", {"a": Mark(0.0, 0.3)}), Measure("y", {"a": Mark(0.0, 0.7)}), [], SOFT
    )
    assert other.difference == pytest.approx(0.4)


def test_the_difference_elsewhere_is_paired_by_task():
    initial = Measure("x", {"a": Mark(0.0, 0.0), "b": Mark(1.0, 1.0), "c": Mark(1.0, 1.0)})
    shipped = Measure("y", {"a": Mark(1.0, 1.0), "b": Mark(1.0, 1.0)})
    arm = make_transfer("tasks", "kind x", initial, shipped, [], HARD)
    assert (arm.tasks, arm.initial, arm.shipped, arm.difference) == (2, 0.5, 1.0, 0.5)
    assert make_transfer("model", "m", initial, Measure("y"), [], HARD).difference is None


def test_the_budget_of_training_is_without_test_and_arms():
    stages = {"rollout": 30, "ship": 12, "canary": 2, "test": 20, "best_of": 40, "held_out": 5, "other_model": 6}
    spent = [StageCost("agent", stage, calls, Usage(10 * calls)) for stage, calls in stages.items()]
    assert sum_training([*spent, StageCost("optimizer", "test", 3, Usage(1000))]) == (44, 1440)


def make_claim(low: float) -> Claim:
    return Claim(sentence="+9 points on 8 test tasks", gain=False, difference=0.09, interval=Interval(low, 0.2))


@pytest.mark.parametrize(
    ("low", "samples", "gain"),
    [(0.01, 4, True), (-0.01, 4, False), (0.01, 3, False), (0.01, 0, False)],
)
def test_a_gain_needs_a_certain_difference_and_the_arm_of_equal_budget(low: float, samples: int, gain: bool):
    best = (
        make_best_of(ArmPlan(samples, 4, 1), {"a": sample("a", [True] * samples)}, Measure("x"), HARD)
        if samples
        else None
    )
    claim = name_gain(make_claim(low), ClaimArms(sentence="", training_rollouts=4, training_tokens=9, best_of=best))
    assert claim.gain == gain
    assert claim.sentence == ("a gain of " if gain else "") + "+9 points on 8 test tasks"


@pytest.mark.parametrize(
    ("shipped", "words"),
    [(1.0, "50 points better [+1"), (0.0, "50 points worse ["), (0.5, "equally good [")],
)
def test_the_sentence_says_which_side_is_better(shipped: float, words: str):
    tasks = [f"t{n}" for n in range(12)]
    rollouts = {task: sample(task, [n % 2 == 0, False]) for n, task in enumerate(tasks)}
    marks = {task: Mark(shipped, shipped) for task in tasks}
    arm = make_best_of(ArmPlan(2, 2, 12), rollouts, Measure("x", marks), HARD)
    said = describe_arms(arm, (), 24, shipped)
    assert said.startswith("At equal budget (24 rollouts), the initial skill passes 50% of 12 test tasks with 2 tries")
    assert words in said, said
