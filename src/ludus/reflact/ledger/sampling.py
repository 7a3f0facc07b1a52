"""Samples: which tasks a step runs, and with which lines. Pure, for a given random generator.

Half of a step's tasks are those that say most about undecided lines; the others come from the shuffled epoch. For each
text, the lines about a situation are left out now and then, to see what happens without them. Otherwise the
most promising line is sampled, by its net gain plus noise of the size of its uncertainty (Thompson sampling). A line
that may still do harm is left out less often: what it does shows only with it.
"""

from collections.abc import Collection, Sequence
from random import Random
from typing import NamedTuple

from ludus.reflact.ledger.line_records import Line, LineLedger, Situation
from ludus.reflact.ledger.settings import LedgerTuning

_UNDECIDED_WEIGHT = 2.0
_DOUBT = 0.01
"""The standard deviation of what a line is worth, above which it is not known yet whether it does harm."""
_IN_DOUBT = 0.25
"""The share of `leave_out` with which a line is left out while that is not known."""


class Rival(NamedTuple):
    """A line that may be sampled, with what it is worth."""

    place: int
    """In the order of birth."""
    line: Line
    net: float
    deviation: float


def group_rivals(ledger: LineLedger) -> list[list[Rival]]:
    """The lines that are alive, by situation."""
    groups: dict[str, list[Rival]] = {}
    for place, line in enumerate(ledger.alive):
        found = ledger.assessed[line.id]
        groups.setdefault(line.situation, []).append(Rival(place, line, found.net, found.deviation))
    return list(groups.values())


def drop_own_lines(lines: Sequence[Line], tasks: Collection[str]) -> tuple[Line, ...]:
    """The lines without those that outcomes alone judge and that come from one of these tasks: a worked example says
    nothing about the task that it shows."""
    return tuple(line for line in lines if not (line.by_outcome and set(line.edit.evidence) & set(tasks)))


def sample_lines(
    groups: Sequence[Sequence[Rival]], tuning: LedgerTuning, random: Random, kept: Collection[str] | None = None
) -> tuple[Line, ...]:
    """The lines of one text, in the order of birth. `kept`: the passages of the text, if none is to be tried out."""
    chosen: list[Rival] = []
    for rivals in groups:
        if kept is not None and rivals[0].line.passage:
            chosen += [rival for rival in rivals if rival.line.id in kept]
            continue
        drawn = random.random()
        if drawn < _IN_DOUBT * tuning.leave_out:
            continue
        best, most = None, tuning.price
        for rival in rivals:
            sampled = rival.net + rival.deviation * random.gauss(0.0, 1.0)
            if sampled > most:
                best, most = rival, sampled
        if best is not None and (drawn >= tuning.leave_out or _is_in_doubt(best)):
            chosen.append(best)
    return tuple(rival.line for rival in sorted(chosen, key=lambda rival: rival.place))


def _is_in_doubt(rival: Rival) -> bool:
    return rival.deviation > _DOUBT and not rival.line.is_free


def sample_passages(ledger: LineLedger, random: Random) -> frozenset[str] | None:
    """The passages of one text: those of the working text, or None if they are tried out, one by one.

    The more often texts with all of them pass, the less often they are tried out: a skill that is good has little to
    gain, and what is missing in it shows only in rollouts with the whole of it.
    """
    rate = (1.0 + ledger.whole_passed) / (2.0 + ledger.whole)
    if random.random() >= rate * rate:
        return None
    return frozenset(line.id for line in ledger.get_lines(ledger.working) if line.passage)


def sample_tasks(
    ledger: LineLedger, queue: Sequence[str], size: int, random: Random
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tasks of a step: those that were called for undecided lines, and the next ones of the queue."""
    values = _value_tasks(ledger)
    ranked = sorted(
        ((value * random.uniform(0.5, 1.5), task) for task, value in values.items()), key=lambda pair: -pair[0]
    )
    targeted = tuple(task for _, task in ranked[: size // 2])
    others = [task for task in queue if task not in targeted][: size - len(targeted)]
    return targeted, tuple(others)


def _value_tasks(ledger: LineLedger) -> dict[str, float]:
    """How much a rollout of each called task says about undecided lines: less, the more is known already."""
    situations = {situation.label: situation for situation in ledger.situations}
    values: dict[str, float] = {}
    for line in ledger.alive:
        situation = situations.get(line.situation)
        if situation is None or line.by_outcome or not _is_undecided(line, situation):
            continue
        known = 1.0 + line.tries + line.unread + situation.tries
        for task, rate in zip(situation.called, situation.rates, strict=True):
            values[task] = values.get(task, 0.0) + rate / known
    return values


def _is_undecided(line: Line, situation: Situation) -> bool:
    return abs(line.weight) < _UNDECIDED_WEIGHT or (situation.named < 2 and situation.tries < 6)
