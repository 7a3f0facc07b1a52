"""Blame: how often each line spoils rollouts for which nothing that was named is to blame. Pure.

A rollout fails if any of several causes occurs: bad luck, the task itself, a situation that no line of the text is
about, or one of the lines. Each cause occurs with a rate of its own, for a line one for each kind of task. Passed
rollouts show that none of them occurred. Failures that a named situation or a suspect explains say nothing about the
other causes and are left out. Each of the others is divided among the causes that were there, in proportion to their
rates, and the rates follow from these shares (expectation maximization). So lines are told apart by the rollouts that
left them out, with no need of suspects.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ludus.reflact.ledger.line_records import Blame

CauseCount = tuple[float, float]
"""How often a cause spoiled a rollout, and how many rollouts it could have spoiled. Every step makes thousands, so it
is a plain pair."""

_LUCK, _TASK, _MISSING, _LINE = (3.0, 10.0), (1.0, 8.0), (1.0, 5.0), (0.15, 4.0)
"""What each sort of cause begins with."""
_REVISITED = 400
"""How many of the latest failures are divided anew in each step. What older ones say stays."""
_FEWEST = 20
"""Rollouts from which the rate of a line tells what is usual."""
_PASSING = 0.55
"""About how many rollouts pass that a line does not spoil."""

_LUCK_CAUSE, _MISSING_CAUSE, _TASK_CAUSE = "luck", "missing", "task "


class Cost(NamedTuple):
    """What a line costs in accuracy, by its rates, and the standard deviation of that."""

    mean: float
    deviation: float


def list_causes(task: str, kind: str, lines: Iterable[str], *, missing: bool) -> tuple[str, ...]:
    """The causes that may spoil a rollout. `missing`: no line of its text is about a situation that called the task."""
    common = (_LUCK_CAUSE, f"{_TASK_CAUSE}{task}", *((_MISSING_CAUSE,) if missing else ()))
    return (*common, *[f"{line}/{kind}" for line in lines])


def add_outcomes(blame: Blame, outcomes: Sequence[tuple[tuple[str, ...], bool]]) -> Blame:
    """Add rollouts: the possible causes of each, and whether it passed. Then divide all failures once more."""
    places = dict(zip(blame.causes, range(len(blame.causes)), strict=True))
    rollouts, failures, settled = list(blame.rollouts), list(blame.failures), list(blame.settled)
    unexplained = list(blame.unexplained)
    for causes, passed in outcomes:
        for cause in causes:
            if cause not in places:
                places[cause] = len(places)
                failed, began = _get_prior(cause)
                failures.append(failed)
                settled.append(failed)
                rollouts.append(began)
            rollouts[places[cause]] += 1.0
        if not passed:
            unexplained.append(tuple(places[cause] for cause in causes))
    rates = [count / number for count, number in zip(failures, rollouts, strict=True)]
    _divide(settled, unexplained[:-_REVISITED], rates)
    failures, recent = list(settled), unexplained[-_REVISITED:]
    _divide(failures, recent, rates)
    return Blame(tuple(places), tuple(rollouts), tuple(failures), tuple(settled), tuple(recent))


def _divide(counts: list[float], failures: Iterable[tuple[int, ...]], rates: Sequence[float]) -> None:
    """Add each failure to its causes, in proportion to their rates. Several can occur at once."""
    for places in failures:
        own = [rates[place] for place in places]
        times = -1.0 / math.expm1(-sum(own))
        for place, rate in zip(places, own, strict=True):
            counts[place] += times * rate


def _get_prior(cause: str) -> CauseCount:
    if cause == _LUCK_CAUSE:
        return _LUCK
    return _MISSING if cause == _MISSING_CAUSE else _TASK if cause.startswith(_TASK_CAUSE) else _LINE


def count_causes(blame: Blame) -> dict[str, CauseCount]:
    """The counts by cause."""
    return dict(zip(blame.causes, zip(blame.failures, blame.rollouts, strict=True), strict=True))


def compute_usual_rate(counts: Mapping[str, CauseCount]) -> float:
    """The median rate of lines that are known well: most of them do no harm, so it is what cannot be told from luck."""
    rates = sorted(
        failures / rollouts
        for cause, (failures, rollouts) in counts.items()
        if rollouts >= _FEWEST and _get_prior(cause) == _LINE
    )
    return rates[len(rates) // 2] if len(rates) > _FEWEST else 0.5 * _LINE[0] / _LINE[1]


def compute_cost(counts: Mapping[str, CauseCount], line: str, shares: Mapping[str, float], usual: float) -> Cost:
    """What a line costs beyond the usual rate. `shares`: how many of the tasks are of each kind."""
    mean = variance = 0.0
    spared = math.exp(-usual)
    for kind, share in shares.items():
        failures, rollouts = counts.get(f"{line}/{kind}", _LINE)
        weight = share * _PASSING
        mean += weight * (spared - math.exp(-failures / rollouts))
        variance += (weight / rollouts) ** 2 * failures
    return Cost(max(0.0, mean), math.sqrt(variance))
