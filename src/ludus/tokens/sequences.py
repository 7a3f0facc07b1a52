"""From completions to rows: which ids form one sequence, and which of them are trained on.

A record keeps, for each completion, only the ids that it added. Where it does not simply follow the completion before,
a `Splice` says where it goes. Every completion ends one sequence. A sequence that another one continues is part of it.
The *maximal* sequences are the rows. Every sampled id is marked as sampled in exactly one row: the first that holds its
whole reply. In other rows that share it, it is context. Replies that were sampled under guided decoding are context in
all rows: their logprobs are not those of the policy.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from ludus.tokens import Generation
from ludus.types import Completion, Rollout, Splice, Tokens

Mode = Literal["tokens", "chat", "mixed", "empty"]


def find_mode(rollout: Rollout) -> Mode:
    """Whether a rollout has exact tokens: in all turns (`tokens`), none (`chat`) or some (`mixed`), or no turns."""
    exact = {turn.completion.tokens is not None for turn in rollout.turns}
    if not exact:
        return "empty"
    return "mixed" if len(exact) == 2 else "tokens" if True in exact else "chat"


class TokenStep(NamedTuple):
    """What one completion added, and where."""

    tokens: Tokens
    splice: Splice | None = None
    guided: bool = False
    """Sampled under guided decoding: its ids are context, and not trained on."""


class TokenSequence(Struct, frozen=True):
    """A row: one linear sequence, ready for training."""

    tokens: Tokens
    steps: tuple[int, ...]
    """The completions whose sampled ids are marked here, counted from 0."""
    shared: int = 0
    """How many of the first ids are in an earlier row of the same record too."""


def find_own_ids(completion: Completion) -> Generation | None:
    """What was sampled in a completion; None if it has no exact ids."""
    tokens = completion.tokens
    if tokens is None or True not in tokens.sampled:
        return None
    first = tokens.sampled.index(True)
    return Generation(ids=tokens.ids[first:], logprobs=tokens.logprobs[first:], finish=completion.finish)


def build_prompt_ids(completions: Sequence[Completion]) -> tuple[int, ...] | None:
    """The ids of the prompt of the last of these completions of a rollout; None if one of them has no exact ids."""
    steps = [TokenStep(each.tokens, each.splice) for each in completions if each.tokens is not None]
    if len(steps) < len(completions):
        return None
    ids = build_sequences(steps)[-1].tokens.ids
    return ids[: len(ids) - sum(steps[-1].tokens.sampled)]


class _Piece(NamedTuple):
    step: int
    length: int
    """How many of the step's own ids, counted from its first."""


def build_sequences(steps: Sequence[TokenStep]) -> list[TokenSequence]:
    """The maximal linear sequences, in the order of their last completion.

    Raises:
        ValueError: a splice points to what does not come before it.
    """
    bases = _find_bases(steps)
    ends = [(base.kept if base else 0) + len(step.tokens) for base, step in zip(bases, steps, strict=True)]
    inner = {base.turn for base in bases if base is not None and base.kept == ends[base.turn]}
    emitted: set[int] = set()
    return [
        _build_row(steps, _cut_pieces(leaf, bases, ends), emitted) for leaf in range(len(steps)) if leaf not in inner
    ]


def _find_bases(steps: Sequence[TokenStep]) -> list[Splice | None]:
    """What each step continues; None for one that begins a sequence."""
    bases: list[Splice | None] = []
    ends: list[int] = []
    for index, step in enumerate(steps):
        base = step.splice
        if base is None and index:
            base = Splice(index - 1, ends[index - 1])
        if base is not None and not 0 <= base.turn < index:
            raise ValueError(f"completion {index} continues completion {base.turn}, which does not come before it")
        if base is not None and not 0 <= base.kept <= ends[base.turn]:
            raise ValueError(f"completion {index} keeps {base.kept} of the {ends[base.turn]} ids before it")
        bases.append(base)
        ends.append((base.kept if base else 0) + len(step.tokens))
    return bases


def _cut_pieces(leaf: int, bases: Sequence[Splice | None], ends: Sequence[int]) -> list[_Piece]:
    """The pieces of the sequence that ends with `leaf`, in order."""
    pieces: list[_Piece] = []
    step, end = leaf, ends[leaf]
    while True:
        base = bases[step]
        start = base.kept if base else 0
        if end > start:
            pieces.append(_Piece(step, end - start))
        if base is None:
            return pieces[::-1]
        step, end = base.turn, min(end, start)


def _build_row(steps: Sequence[TokenStep], pieces: Sequence[_Piece], emitted: set[int]) -> TokenSequence:
    ids: list[int] = []
    sampled: list[bool] = []
    logprobs: list[float | None] = []
    trained: list[int] = []
    whole: list[int] = []
    shared = sum(piece.length for piece in pieces if piece.step in emitted)
    for step, length in pieces:
        own = steps[step].tokens
        ids += own.ids[:length]
        is_first = length == len(own) and step not in emitted
        if is_first:
            whole.append(step)
        if is_first and not steps[step].guided:
            sampled += own.sampled
            logprobs += own.logprobs
            trained.append(step)
        else:
            sampled += [False] * length
            logprobs += [None] * length
    emitted.update(whole)
    return TokenSequence(Tokens(tuple(ids), tuple(sampled), tuple(logprobs)), tuple(trained), shared)
