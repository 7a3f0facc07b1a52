"""Rows in the form that Tinker trains on, and what its answer says about them. Pure: needs no client.

A `Datum` is shifted by one id: its input is every id but the last, its targets every id but the first, and logprobs and
advantages belong to the targets. There is no mask. A target with an advantage of 0 gives no gradient, so ids that were
not sampled get 0.
"""

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from ludus.rl.trainers import TrainingRow, UpdateMetrics
from ludus.types import Tokens

Loss = Literal["importance_sampling", "ppo"]


class DatumFields(Struct, frozen=True, kw_only=True):
    """A `Datum` without the client's own types. All four have one entry for each target."""

    model_input: list[int]
    target_tokens: list[int]
    logprobs: list[float]
    """Of the target under the policy that sampled it; 0 where it was not sampled."""
    advantages: list[float]


class Clip(Struct, frozen=True):
    """The ratios between which the loss `ppo` has a gradient."""

    low: float
    high: float


def build_datum(tokens: Tokens, advantage: float) -> DatumFields:
    """One row as a datum.

    Raises:
        ValueError: the row has fewer than two ids, or a sampled id without a logprob.
    """
    if len(tokens.ids) < 2:
        raise ValueError(f"a row of {len(tokens.ids)} ids has nothing to predict")
    targets = list(zip(tokens.sampled, tokens.logprobs, strict=True))[1:]
    if missing := sum(sampled and logprob is None for sampled, logprob in targets):
        raise ValueError(f"{missing} sampled ids of a row have no logprob")
    return DatumFields(
        model_input=list(tokens.ids[:-1]),
        target_tokens=list(tokens.ids[1:]),
        logprobs=[logprob if sampled and logprob is not None else 0.0 for sampled, logprob in targets],
        advantages=[advantage if sampled else 0.0 for sampled, _ in targets],
    )


def measure_update(
    rows: Sequence[TrainingRow], logprobs: Sequence[Sequence[float]], clip: Clip | None = None
) -> UpdateMetrics:
    """The means over the sampled ids of rows. `logprobs` are those of each row's targets under the policy that is
    trained, before the step. `clip` is that of the loss `ppo`; None for `importance_sampling`.

    Raises:
        ValueError: a row has another number of logprobs than targets.
    """
    losses: list[float] = []
    divergences: list[float] = []
    ratios: list[float] = []
    new: list[float] = []
    for row, values in zip(rows, logprobs, strict=True):
        tokens = row.tokens
        targets = zip(tokens.sampled[1:], tokens.logprobs[1:], values, strict=True)
        for after, before in ((now, then) for sampled, then, now in targets if sampled and then is not None):
            change = after - before
            ratio = _compute_ratio(change)
            new.append(after)
            ratios.append(ratio)
            divergences.append(ratio - 1 - change)
            losses.append(-_weigh(ratio, row.advantage, clip))
    count = len(new)
    if not count:
        return UpdateMetrics()
    outside = sum(not clip.low <= ratio <= clip.high for ratio in ratios) if clip else 0
    return UpdateMetrics(
        loss=math.fsum(losses) / count if _all_finite(losses) else math.nan,
        kl=math.fsum(divergences) / count if _all_finite(divergences) else math.nan,
        entropy=-math.fsum(new) / count if _all_finite(new) else math.nan,
        clipped=outside / count,
        ratio=max(ratios),
        tokens=count,
    )


def _compute_ratio(change: float) -> float:
    try:
        return math.exp(change)
    except OverflowError:
        return math.inf


def _weigh(ratio: float, advantage: float, clip: Clip | None) -> float:
    if clip is None:
        return ratio * advantage
    return min(ratio * advantage, min(max(ratio, clip.low), clip.high) * advantage)


def _all_finite(values: Sequence[float]) -> bool:
    return all(map(math.isfinite, values))
