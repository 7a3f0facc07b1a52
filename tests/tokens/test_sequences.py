"""Which ids form a row, and which of them are trained on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.tokens.sequences import TokenStep, build_prompt_ids, build_sequences, find_own_ids
from ludus.types import Completion, Message, Splice, Tokens


def step(given_ids, drawn, splice=None):
    given_ids, drawn = tuple(given_ids), tuple(drawn)
    marks = (False,) * len(given_ids) + (True,) * len(drawn)
    return TokenStep(Tokens(given_ids + drawn, marks, (None,) * len(given_ids) + tuple(-d / 10 for d in drawn)), splice)


def test_turns_that_follow_each_other_are_one_row():
    (row,) = build_sequences([step([1, 2], [3]), step([4], [5, 6])])
    assert row.tokens.ids == (1, 2, 3, 4, 5, 6)
    assert row.tokens.sampled == (False, False, True, False, True, True)
    assert row.tokens.logprobs == (None, None, -0.3, None, -0.5, -0.6)
    assert row.steps == (0, 1)
    assert row.shared == 0


def test_a_branch_keeps_the_beginning_and_trains_it_once():
    steps = [step([1, 2], [3]), step([4], [5]), step([7], [8], Splice(0, 3))]
    first, second = build_sequences(steps)
    assert first.tokens.ids == (1, 2, 3, 4, 5)
    assert second.tokens.ids == (1, 2, 3, 7, 8)
    assert second.tokens.sampled == (False, False, False, False, True)  # 3 is trained in the first row
    assert second.tokens.logprobs[2] is None
    assert (second.steps, second.shared) == ((2,), 3)


def test_a_rewritten_reply_is_context_in_the_new_row():
    first, second = build_sequences([step([1, 2], [3, 4, 5]), step([4, 6], [7], Splice(0, 2))])
    assert first.tokens.ids == (1, 2, 3, 4, 5)
    assert second.tokens.ids == (1, 2, 4, 6, 7)
    assert second.tokens.sampled == (False, False, False, False, True)


def test_a_part_of_a_reply_that_happens_to_be_repeated_is_not_trained_again():
    first, second = build_sequences([step([1], [2, 3, 4]), step([9], [5], Splice(0, 3))])
    assert first.tokens.sampled == (False, True, True, True)
    assert second.tokens.ids == (1, 2, 3, 9, 5)
    assert second.tokens.sampled == (False, False, False, False, True)


def test_nothing_kept_is_a_row_of_its_own():
    first, second = build_sequences([step([1], [2]), step([3], [4], Splice(0, 0))])
    assert (first.tokens.ids, second.tokens.ids) == ((1, 2), (3, 4))
    assert second.shared == 0


def test_interleaved_branches_are_followed_by_their_own_parents():
    steps = [step([1], [2]), step([3], [4], Splice(0, 0)), step([5], [6], Splice(0, 2)), step([7], [8], Splice(1, 2))]
    assert [row.tokens.ids for row in build_sequences(steps)] == [(1, 2, 5, 6), (3, 4, 7, 8)]


def test_no_completions_are_no_rows():
    assert build_sequences([]) == []


@pytest.mark.parametrize(
    "splice",
    [Splice(1, 0), Splice(-1, 0), Splice(0, 4), Splice(0, -1)],
    ids=["itself", "before", "too-much", "negative"],
)
def test_a_splice_that_points_nowhere_is_refused(splice):
    with pytest.raises(ValueError, match="completion 1"):
        build_sequences([step([1, 2], [3]), step([4], [5], splice)])


@given(st.data())
def test_every_drawn_id_is_trained_exactly_once(data):
    steps, ends = [], []
    for index in range(data.draw(st.integers(1, 8))):
        splice = None
        if index and data.draw(st.booleans()):
            turn = data.draw(st.integers(0, index - 1))
            splice = Splice(turn, data.draw(st.integers(0, ends[turn])))
        start = splice.kept if splice else (ends[-1] if ends else 0)
        made = step(
            data.draw(st.lists(st.integers(0, 3), max_size=3)), [10 + index] * data.draw(st.integers(1, 3)), splice
        )
        steps.append(made)
        ends.append(start + len(made.tokens))
    rows = build_sequences(steps)
    trained = [index for row in rows for index in row.steps]
    assert sorted(trained) == list(range(len(steps)))
    assert sum(sum(row.tokens.sampled) for row in rows) == sum(sum(s.tokens.sampled) for s in steps)
    for row in rows:
        marked = [n for n, s in zip(row.tokens.ids, row.tokens.sampled, strict=True) if s]
        assert set(marked) <= {10 + index for index in row.steps}


def test_guided_replies_are_context_and_the_others_are_trained_on():
    first = Tokens((1, 2), (False, True), (None, -0.1))
    second = Tokens((3, 4), (False, True), (None, -0.2))
    (row,) = build_sequences([TokenStep(first, guided=True), TokenStep(second)])
    assert row.tokens == Tokens((1, 2, 3, 4), (False, False, False, True), (None, None, None, -0.2))
    assert row.steps == (1,)
    (nothing,) = build_sequences([TokenStep(first, guided=True)])
    assert not any(nothing.tokens.sampled)


def test_the_prompt_and_the_own_ids_of_a_completion_are_found():
    def complete(ids: tuple[int, ...], given: int, splice: Splice | None = None) -> Completion:
        sampled = (False,) * given + (True,) * (len(ids) - given)
        logprobs = tuple(-0.5 if each else None for each in sampled)
        return Completion(Message("assistant", "x"), tokens=Tokens(ids, sampled, logprobs), splice=splice)

    first, second = complete((1, 2, 3, 4), 2), complete((5, 6, 7), 1)
    branch = complete((8, 9), 1, Splice(0, 2))
    assert build_prompt_ids([first]) == (1, 2)
    assert build_prompt_ids([first, second]) == (1, 2, 3, 4, 5)
    assert build_prompt_ids([first, second, branch]) == (1, 2, 8)
    own = find_own_ids(second)
    assert own is not None and (own.ids, own.logprobs) == ((6, 7), (-0.5, -0.5))
    chat = Completion(Message("assistant", "x"))
    assert find_own_ids(chat) is None and build_prompt_ids([first, chat]) is None
