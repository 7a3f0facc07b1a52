"""What RL would need: estimated from two rollouts of each task, and checked against worlds that are known."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.reflact.weights_outlook import (
    RlPlanSizes,
    TaskTally,
    advise_weights,
    choose_advice,
    estimate_equal_groups,
    foresee_weights,
)

SIZES = RlPlanSizes(60, 12, 16)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(2, 64))
def test_shares_of_groups_are_probabilities(mean: float, part: float, size: int):
    all_pass, all_fail = estimate_equal_groups(mean, part * 2 * mean * (1 - mean), size)
    assert 0 <= all_pass <= mean + 1e-9 and 0 <= all_fail <= 1 - mean + 1e-9
    assert all_pass + all_fail <= 1 + 1e-9


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.7), (1.0, 1.0), (4.0, 2.0)])
def test_two_rollouts_of_each_task_tell_how_many_groups_have_spread(a: float, b: float):
    random = Random(7)
    rates = [random.betavariate(a, b) for _ in range(4000)]
    tallies = [TaskTally(2, sum(random.random() < rate for _ in range(2))) for rate in rates]
    found = foresee_weights(tallies, SIZES, 100.0)
    assert found is not None
    spread = math.fsum(1 - p**16 - (1 - p) ** 16 for p in rates) / len(rates)
    reach = math.fsum(1 - (1 - p) ** 16 for p in rates) / len(rates)
    assert found.spread == pytest.approx(spread, abs=0.05) and found.reach == pytest.approx(reach, abs=0.05)
    assert (found.rollouts, found.tokens) == (60 * 12 * 16, 100 * 60 * 12 * 16)
    assert found.update_tokens == round(found.spread * 12 * 16 * 100)


@pytest.mark.parametrize(
    ("tallies", "words", "choice"),
    [
        ([TaskTally(2, 1)] * 9, True, "both"),
        ([TaskTally(2, 1)] * 9, False, "weights"),
        ([TaskTally(2, 0)] * 9, True, "words"),  # no rollout passes: nothing to reinforce
        ([TaskTally(2, 2)] * 9, False, "neither"),
        ([TaskTally(2, 2), TaskTally(2, 0)] * 9, True, "words"),  # each task is passed always or never
        ([TaskTally(1, 1)] * 9, True, "words"),  # nothing is known about groups
    ],
)
def test_words_weights_both_or_neither(tallies: list[TaskTally], words: bool, choice: str):
    found = foresee_weights(tallies, SIZES, 10.0)
    assert choose_advice(words, found) == choice
    said = advise_weights(words, "a skill could bring 9 points", found)
    assert said.lower().startswith(choice) and "a skill could bring 9 points" in said
