"""Advantages are over rollouts, not over rows."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.build import make_group, make_token_rollout

from ludus.rl.advantages import build_training_rows, compute_advantages, measure_staleness
from ludus.rl.group_filters import GroupRules, KeptGroup, filter_group
from ludus.rl.trainers import TrainingRow
from ludus.types import Group, Splice, Tokens

FINITE = st.floats(-1e6, 1e6)


@pytest.mark.parametrize(
    ("scores", "scale", "expected"),
    [
        ({0: 1.0, 1: 0.0}, "none", {0: 0.5, 1: -0.5}),
        ({0: 1.0, 1: 0.0, 2: 0.0, 3: 0.0}, "none", {0: 0.75, 1: -0.25, 2: -0.25, 3: -0.25}),
        ({0: 4.0, 2: 0.0}, "std", {0: 1.0, 2: -1.0}),
        ({0: 0.7, 1: 0.7}, "none", {0: 0.0, 1: 0.0}),
        ({0: 0.5, 1: 0.5}, "std", {0: 0.0, 1: 0.0}),
        ({5: 3.0}, "std", {5: 0.0}),
    ],
)
def test_advantages(scores: dict[int, float], scale: str, expected: dict[int, float]):
    assert compute_advantages(scores, scale) == pytest.approx(expected)  # pyright: ignore[reportArgumentType]


@given(st.lists(FINITE, min_size=1, max_size=20))
def test_advantages_add_up_to_zero_and_keep_the_order(scores: list[float]):
    found = compute_advantages(dict(enumerate(scores)))
    assert math.fsum(found.values()) == pytest.approx(0.0, abs=1e-6 * (1 + max(map(abs, scores))))
    for one, other in zip(range(len(scores)), range(1, len(scores)), strict=False):
        if scores[one] < scores[other]:
            assert found[one] <= found[other]


def tokens(*sampled: int) -> Tokens:
    """A prompt of one id and then sampled ids."""
    return Tokens((1, *sampled), (False, *(True for _ in sampled)), (None, *(-0.5 for _ in sampled)))


def make_branched_group() -> Group:
    """Three rollouts. The first went back to its prompt, so it has two rows."""
    other = Tokens((2, 6), (False, True), (None, -0.5))
    return make_group(
        make_token_rollout(tokens(5), other, splices={1: Splice(0, 1)}, score=1.0),
        make_token_rollout(tokens(7), score=0.0, replicate=1),
        make_token_rollout(tokens(8), score=0.0, replicate=2),
    )


def keep(group: Group, rules: GroupRules = GroupRules()) -> KeptGroup:
    kept = filter_group(group, rules)
    assert isinstance(kept, KeptGroup)
    return kept


def test_a_branched_rollout_counts_once():
    rows = build_training_rows(keep(make_branched_group()), number=9, version=4)
    assert [row.replicate for row in rows] == [0, 0, 1, 2]
    assert [row.advantage for row in rows] == pytest.approx([2 / 3, 2 / 3, -1 / 3, -1 / 3])
    assert {(row.group, row.version) for row in rows} == {(9, 4)}


def test_a_masked_row_counts_for_the_mean_and_is_not_trained():
    group = make_group(
        make_token_rollout(tokens(5, 6, 7), score=1.0), make_token_rollout(tokens(8), score=0.0, replicate=1)
    )
    rows = build_training_rows(keep(group, GroupRules(row_tokens=2, too_long="mask")), number=0, version=0)
    assert [(row.replicate, row.advantage) for row in rows] == [(1, -0.5)]


def test_staleness():
    rows = [TrainingRow(tokens=tokens(5), advantage=1.0, version=version) for version in (3, 5, 5)]
    assert measure_staleness(rows, 5) == (pytest.approx(2 / 3), 2)
    assert measure_staleness([], 5) == (0.0, 0)
