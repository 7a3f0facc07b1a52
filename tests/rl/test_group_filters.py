"""Which rows of a group are sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.build import make_group, make_token_rollout

from ludus.rl.group_filters import DroppedGroup, GroupRules, KeptGroup, cut_tokens, filter_group
from ludus.rl.rows import NotExact
from ludus.types import Splice, Tokens


def sample(prompt: int, sampled: int) -> Tokens:
    """A reply of so many ids after so many of a prompt."""
    return Tokens(
        tuple(range(100, 100 + prompt + sampled)),
        (False,) * prompt + (True,) * sampled,
        (None,) * prompt + (-0.5,) * sampled,
    )


def make(*rows: tuple[float | None, int], size: int | None = None):
    """A group of rollouts, given as score and number of sampled ids behind a prompt of three."""
    rollouts = [make_token_rollout(sample(3, count), score=score, replicate=n) for n, (score, count) in enumerate(rows)]
    return make_group(*rollouts, size=size)


def branch(score: float, replicate: int):
    """A rollout with two rows: its second reply continues the prompt of the first, not the reply."""
    return make_token_rollout(sample(3, 2), sample(1, 4), splices={1: Splice(0, 3)}, score=score, replicate=replicate)


def test_a_whole_group_is_kept_in_order():
    kept = filter_group(make((1.0, 2), (0.0, 4)), GroupRules())
    assert isinstance(kept, KeptGroup)
    assert [(m.replicate, m.score, len(m.tokens)) for m in kept.members] == [(0, 1.0, 5), (1, 0.0, 7)]
    assert kept.scores == {0: 1.0, 1: 0.0} and not kept.branched


@pytest.mark.parametrize(
    ("group", "rules", "reason"),
    [
        (make((1.0, 2), (1.0, 2)), GroupRules(), "equal_scores"),
        (make((1.0, 2), (None, 2)), GroupRules(), "partial"),
        (make((1.0, 2), (0.0, 2), size=3), GroupRules(), "partial"),
        (make((1.0, 2), (0.0, 5)), GroupRules(row_tokens=7), "too_long"),
        (make((1.0, 2), (0.0, 5)), GroupRules(row_tokens=7, too_long="row"), "too_long"),
        (make((1.0, 2), (0.0, 2)), GroupRules(row_tokens=3, too_long="cut"), "too_long"),
        (make((1.0, 2), (0.0, 5)), GroupRules(row_tokens=7, too_long="row", partial="send"), "equal_scores"),
        (make((None, 2), (None, 2)), GroupRules(partial="send"), "no_rows"),
        (make((1.0, 0), (0.0, 0)), GroupRules(partial="send"), "no_rows"),
    ],
)
def test_groups_are_dropped_for_a_reason(group, rules, reason):
    dropped = filter_group(group, rules)
    assert isinstance(dropped, DroppedGroup)
    assert dropped.reason == reason and dropped.message


@pytest.mark.parametrize(
    ("group", "rules", "lengths"),
    [
        (make((1.0, 2), (1.0, 2)), GroupRules(equal_scores="send"), [5, 5]),
        (make((1.0, 2), (None, 2), (0.0, 2)), GroupRules(partial="send"), [5, 5]),
        (make((1.0, 2), (0.0, 4)), GroupRules(row_tokens=7), [5, 7]),  # a row of exactly the limit is kept
        (make((1.0, 2), (0.0, 5)), GroupRules(row_tokens=7, too_long="cut"), [5, 7]),
        (make((1.0, 2), (0.0, 5)), GroupRules(row_tokens=7, too_long="mask"), [5, 7]),
        (make((1.0, 2), (0.0, 2), (0.5, 9)), GroupRules(row_tokens=7, too_long="row", partial="send"), [5, 5]),
    ],
)
def test_groups_are_kept_by_policy(group, rules, lengths):
    kept = filter_group(group, rules)
    assert isinstance(kept, KeptGroup)
    assert [len(member.tokens) for member in kept.members] == lengths


def test_only_a_row_that_was_cut_is_masked():
    kept = filter_group(make((1.0, 2), (0.0, 5)), GroupRules(row_tokens=7, too_long="mask"))
    assert isinstance(kept, KeptGroup) and [member.masked for member in kept.members] == [False, True]


def test_a_branched_rollout_has_all_its_rows_or_the_longest():
    group = make_group(branch(1.0, 0), make_token_rollout(sample(3, 1), score=0.0, replicate=1))
    kept = filter_group(group, GroupRules())
    assert isinstance(kept, KeptGroup) and kept.branched
    assert [(m.replicate, sum(m.tokens.sampled)) for m in kept.members] == [(0, 2), (0, 4), (1, 1)]
    assert kept.scores == {0: 1.0, 1: 0.0}
    longest = filter_group(group, GroupRules(branches="longest"))
    assert isinstance(longest, KeptGroup) and not longest.branched
    assert [(m.replicate, sum(m.tokens.sampled)) for m in longest.members] == [(0, 4), (1, 1)]


def test_chat_mode_is_refused():
    with pytest.raises(NotExact):
        filter_group(make_group(make_token_rollout(None), make_token_rollout(None, replicate=1)), GroupRules())


@given(
    scores=st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=1, max_size=5),
    counts=st.lists(st.integers(1, 8), min_size=5, max_size=5),
    limit=st.one_of(st.none(), st.integers(1, 12)),
    too_long=st.sampled_from(["group", "row", "cut", "mask"]),
    equal=st.sampled_from(["drop", "send"]),
    partial=st.sampled_from(["drop", "send"]),
)
def test_what_is_kept_follows_the_rules(scores, counts, limit, too_long, equal, partial):
    group = make(*zip(scores, counts[: len(scores)], strict=True))
    rules = GroupRules(row_tokens=limit, too_long=too_long, equal_scores=equal, partial=partial)
    kept = filter_group(group, rules)
    if isinstance(kept, DroppedGroup):
        return
    assert kept.members
    originals = {r.provenance.replicate: r.turns[0].completion.tokens for r in group.scored}
    for member in kept.members:
        whole = originals[member.replicate]
        assert limit is None or len(member.tokens) <= limit
        assert any(member.tokens.sampled)
        assert member.tokens == cut_tokens(whole, len(member.tokens))
        assert member.masked == (too_long == "mask" and len(member.tokens) < len(whole))
    assert equal == "send" or len(set(kept.scores.values())) > 1
    assert partial == "send" or len(kept.scores) == group.size
