"""Groups of rollouts as Atropos' JSON. All conventions of that format are written here.

A row is one linear sequence: `tokens`, `masks` (the id where it was sampled, -100 elsewhere), `inference_logprobs` (1.0
where there is none) and the score of its rollout. A rollout with a branched history gives several rows with one score.
Only rollouts with a score give rows; `excluded` counts the others. Rows with a fatal finding (`row_checks`) are left
out, and the report says so.

`build_columns` is for rollouts in token mode, whose ids are exact, and refuses others. `build_retokenized_columns` is
for supervised fine-tuning on rollouts in chat mode: the ids are made from text, there are no logprobs, and the rows
are marked as such.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ludus.rl.row_checks import NO_LOGPROB, NOT_TRAINED, RowReport, Vocabulary, check_rollout, check_rows
from ludus.tokens.sequences import TokenSequence
from ludus.types import Group, Rollout


class Columns(Struct, frozen=True, kw_only=True):
    """The rows of a group. Every list has one entry for each row."""

    tokens: list[list[int]]
    masks: list[list[int]]
    scores: list[float]
    inference_logprobs: list[list[float]] | None
    """None if the ids were made from text."""
    replicates: list[int]
    """The rollout of the group to which each row belongs."""
    retokenized: bool = False
    """The ids were made from text: not for RL."""
    excluded: int = 0
    """The number of the group's rollouts that have no score, and so no rows."""


Rows = Callable[[Rollout], tuple[list[TokenSequence], RowReport]]


def build_columns(group: Group, vocabulary: Vocabulary = Vocabulary()) -> tuple[Columns | None, RowReport]:
    """Build the exact rows of a group, without those that must not be trained on. None if no rollout has a score.

    Raises:
        NotExact: a rollout was run in chat mode.
    """
    return _build_columns(group, lambda rollout: check_rollout(rollout, vocabulary), retokenized=False)


def build_retokenized_columns(
    group: Group, encode: Callable[[Rollout], list[TokenSequence]], vocabulary: Vocabulary = Vocabulary()
) -> tuple[Columns | None, RowReport]:
    """Build rows from text, for supervised fine-tuning."""
    return _build_columns(group, lambda rollout: check_rows(encode(rollout), vocabulary, exact=False), retokenized=True)


def _build_columns(group: Group, rows: Rows, *, retokenized: bool) -> tuple[Columns | None, RowReport]:
    report = RowReport(groups=1)
    found: list[tuple[Rollout, TokenSequence]] = []
    for rollout in group.scored:
        good, own = rows(rollout)
        report.merge(own)
        found += [(rollout, row) for row in good]
    if not found:
        return None, report
    made = [row.tokens for _, row in found]
    pairs = [list(zip(tokens.ids, tokens.sampled, strict=True)) for tokens in made]
    return (
        Columns(
            tokens=[list(tokens.ids) for tokens in made],
            masks=[[number if sampled else NOT_TRAINED for number, sampled in row] for row in pairs],
            scores=[_require_score(rollout) for rollout, _ in found],
            inference_logprobs=None if retokenized else [_fill_logprobs(tokens.logprobs) for tokens in made],
            replicates=[rollout.provenance.replicate for rollout, _ in found],
            retokenized=retokenized,
            excluded=group.excluded,
        ),
        report,
    )


def to_fields(made: Columns) -> dict[str, Any]:
    """The columns as fields of a JSON object. `retokenized` and `excluded` are only there if they say something."""
    fields = msgspec.structs.asdict(made)
    return {name: value for name, value in fields.items() if value or name not in ("retokenized", "excluded")}


def _require_score(rollout: Rollout) -> float:
    assert rollout.score is not None
    return rollout.score.value


def _fill_logprobs(values: Sequence[float | None]) -> list[float]:
    return [NO_LOGPROB if value is None else value for value in values]
