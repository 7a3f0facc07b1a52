"""Rows as prompt and completion."""

from hypothesis import given
from hypothesis import strategies as st

from ludus.rl.prompt_split import split_prompt
from ludus.types import Tokens


def test_later_prompts_are_masked_inside_the_completion():
    row = split_prompt(Tokens((1, 2, 3, 4, 5), (False, True, False, False, True), (None, -0.1, None, None, -0.2)))
    assert (row.prompt, row.completion) == ([1], [2, 3, 4, 5])
    assert (row.mask, row.logprobs) == ([1, 0, 0, 1], [-0.1, 0.0, 0.0, -0.2])


@given(st.lists(st.booleans(), max_size=12))
def test_nothing_is_lost(sampled):
    tokens = Tokens(tuple(range(len(sampled))), tuple(sampled), tuple(-0.5 if s else None for s in sampled))
    row = split_prompt(tokens)
    assert (*row.prompt, *row.completion) == tokens.ids
    assert [*([0] * len(row.prompt)), *row.mask] == [int(s) for s in sampled]
    assert row.mask[:1] in ([], [1])
    assert len(row.mask) == len(row.logprobs) == len(row.completion)
