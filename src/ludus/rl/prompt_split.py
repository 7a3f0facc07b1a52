"""A row as a prompt and a completion, which is how most trainers take it.

Everything before the first sampled id is the prompt. Everything from there on is the completion, with a mask: later
prompts of a conversation, such as tool results, are inside the completion and masked out.
"""

from msgspec import Struct

from ludus.types import Tokens

FILLER = 0.0
"""The logprob of an id that was not sampled. It is masked out."""


class SplitRow(Struct, frozen=True, kw_only=True):
    """A row in two parts. `mask` and `logprobs` belong to the completion."""

    prompt: list[int]
    completion: list[int]
    mask: list[int]
    """1 where the id was sampled, 0 elsewhere."""
    logprobs: list[float]


def split_prompt(tokens: Tokens) -> SplitRow:
    """Split a row before its first sampled id. A row without a sampled id is all prompt."""
    first = tokens.sampled.index(True) if True in tokens.sampled else len(tokens)
    return SplitRow(
        prompt=list(tokens.ids[:first]),
        completion=list(tokens.ids[first:]),
        mask=[int(sampled) for sampled in tokens.sampled[first:]],
        logprobs=[FILLER if value is None else value for value in tokens.logprobs[first:]],
    )
