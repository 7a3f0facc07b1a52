"""Groups as the JSON of the wire, and what Atropos' example trainer makes of them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.build import make_group, make_token_rollout

from ludus.rl.group_filters import GroupRules, KeptGroup, filter_group
from ludus.rl.row_checks import check_groups
from ludus.rl.wire_groups import build_wire_groups
from ludus.types import Splice, Tokens

FIRST = Tokens((1, 2, 5), (False, False, True), (None, None, -0.1))
OTHER = Tokens((3, 6, 7), (False, True, True), (None, -0.2, -0.3))

WIRE_KEYS = {
    "tokens",
    "masks",
    "scores",
    "advantages",
    "ref_logprobs",
    "messages",
    "generation_params",
    "inference_logprobs",
    "overrides",
    "group_overrides",
    "images",
    "distill_token_ids",
    "distill_logprobs",
}
"""All keys of a group on the wire but the worker's id."""


def make_kept(*branches: int, scores: tuple[float, ...], **rules) -> KeptGroup:
    """A group whose rollouts have so many rows each."""
    rollouts = [
        make_token_rollout(
            *([FIRST] + [OTHER] * (rows - 1)),
            splices={n: Splice(0, 2) for n in range(1, rows)},
            score=score,
            replicate=replicate,
        )
        for replicate, (rows, score) in enumerate(zip(branches, scores, strict=True))
    ]
    kept = filter_group(make_group(*rollouts), GroupRules(equal_scores="send", **rules))
    assert isinstance(kept, KeptGroup)
    return kept


def normalize_as_trainer(groups: list[dict]) -> list[float]:
    """The advantage of every row, as Atropos' example trainer computes it: groups of several rows are centred and
    divided by their standard deviation, the score of a single row is used as it is, overrides set it to zero."""
    found: list[float] = []
    for group in groups:
        scores = group["scores"]
        if len(scores) > 1:
            mean = sum(scores) / len(scores)
            deviation = math.sqrt(sum((s - mean) ** 2 for s in scores) / len(scores))
            scores = [(s - mean) / max(deviation, 1e-8) for s in scores]
        overrides = group["overrides"] or [{}] * len(scores)
        found += [0.0 if o.get("set_advantage_to_zero") else s for s, o in zip(scores, overrides, strict=True)]
    return found


def test_a_group_has_exactly_the_keys_of_the_wire():
    (group,) = build_wire_groups(make_kept(1, 1, scores=(1.0, 0.0)), 7)
    assert group.keys() == WIRE_KEYS
    assert group["masks"] == [[-100, -100, 5]] * 2
    assert group["inference_logprobs"] == [[1.0, 1.0, -0.1]] * 2
    assert group["generation_params"] == {"temperature": 1.0, "policy_version": 7}
    assert group["advantages"] is None and group["overrides"] is None
    assert not check_groups([group]).fatal
    assert build_wire_groups(make_kept(1, 1, scores=(1.0, 0.0)), 7, messages=False)[0]["messages"] is None


def test_a_row_that_was_cut_and_masked_has_no_advantage():
    kept = make_kept(1, 1, 1, scores=(1.0, 0.0, 0.0), row_tokens=3, too_long="mask")
    longer = make_token_rollout(Tokens((1, 2, 5, 6), (False, False, True, True), (None, None, -0.1, -0.2)), replicate=3)
    group = make_group(*(member.rollout for member in kept.members), longer)
    cut = filter_group(group, GroupRules(row_tokens=3, too_long="mask"))
    assert isinstance(cut, KeptGroup)
    (wire,) = build_wire_groups(cut, 0)
    assert wire["overrides"] == [{}, {}, {}, {"set_advantage_to_zero": True}]
    assert normalize_as_trainer([wire])[3] == 0.0


def test_rows_of_branched_rollouts_are_groups_of_one():
    groups = build_wire_groups(make_kept(2, 1, scores=(1.0, 0.0)), 3)
    assert [len(group["tokens"]) for group in groups] == [1, 1, 1]
    assert [group["scores"] for group in groups] == [[1.0], [1.0], [-1.0]]
    assert groups[1]["advantages"] == [[0.0, 0.0, 0.0, 1.0, 1.0]]
    assert [group["overrides"][0] for group in groups] == [
        {"replicate": 0, "reward": 1.0},
        {"replicate": 0, "reward": 1.0},
        {"replicate": 1, "reward": 0.0},
    ]
    assert not check_groups(groups).fatal
    assert all(group.keys() == WIRE_KEYS for group in groups)


@given(
    members=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([0.0, 0.25, 0.5, 1.0])), min_size=2, max_size=6
    ).filter(lambda members: len({score for _, score in members}) > 1)
)
def test_the_trainer_centres_over_rollouts_whatever_branched(members):
    branches, scores = [rows for rows, _ in members], tuple(score for _, score in members)
    mean = sum(scores) / len(scores)
    deviation = math.sqrt(sum((score - mean) ** 2 for score in scores) / len(scores))
    expected = [(score - mean) / deviation for rows, score in members for _ in range(rows)]
    found = normalize_as_trainer(build_wire_groups(make_kept(*branches, scores=scores), 0))
    assert found == pytest.approx(expected)
