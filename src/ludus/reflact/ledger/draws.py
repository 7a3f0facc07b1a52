"""Draws: which tasks a step runs, and with which lines. Pure, for a given random generator.

Half of a step's tasks are those that say most about undecided lines; the others come from the shuffled epoch. For each
text, the lines about a situation are left out now and then, so that one sees what happens without them. Otherwise the
most promising line is drawn, by its net gain plus noise of the size of its uncertainty (Thompson sampling).
"""

from collections.abc import Mapping, Sequence
from random import Random

from ludus.reflact.ledger.assessment import Assessment
from ludus.reflact.ledger.ledger_settings import LedgerTuning
from ludus.reflact.ledger.line_records import Line, LineLedger, Situation

_UNDECIDED_WEIGHT = 2.0


def draw_lines(
    ledger: LineLedger, assessed: Mapping[str, Assessment], tuning: LedgerTuning, random: Random
) -> tuple[Line, ...]:
    """The lines of one text, in the order of birth."""
    groups: dict[str, list[Line]] = {}
    for line in ledger.alive:
        groups.setdefault(line.situation, []).append(line)
    chosen: set[str] = set()
    for lines in groups.values():
        if random.random() < tuning.leave_out:
            continue
        draws = [assessed[line.id].net + assessed[line.id].deviation * random.gauss(0.0, 1.0) for line in lines]
        best = max(range(len(lines)), key=draws.__getitem__)
        if draws[best] > tuning.price:
            chosen.add(lines[best].id)
    return ledger.get_lines(chosen)


def draw_tasks(
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
        if situation is None or not _is_undecided(line, situation):
            continue
        for task in situation.called:
            values[task] = values.get(task, 0.0) + 1.0 / (1.0 + line.tries + situation.tries)
    return values


def _is_undecided(line: Line, situation: Situation) -> bool:
    return abs(line.weight) < _UNDECIDED_WEIGHT or (situation.named < 2 and situation.tries < 6)
