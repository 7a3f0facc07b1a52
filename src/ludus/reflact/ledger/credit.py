"""Credit: what the readings of rollouts say for and against each line. Pure.

For a line about a situation, in a rollout on a task that this situation has spoiled before: if the analyst names the
situation again, the line did not prevent it; if not, the line may have. How much that says depends on how often the
situation comes back on this task without any line (`Situation.get_rate`), which is measured on rollouts that leave such
lines out.
A failed rollout also says for each line in its text whether an analyst suspects it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set

from msgspec.structs import replace

from ludus.reflact.ledger.beliefs import update_beliefs
from ludus.reflact.ledger.blame import HarmEvidence, add_outcomes
from ludus.reflact.ledger.file_reach import count_reads
from ludus.reflact.ledger.line_records import Line, LineLedger, Reading, Situation
from ludus.reflact.ledger.settings import LedgerTuning
from ludus.reflact.ledger.situations import find_label

_MOST_WEIGHT = 5.0
_HARM_RANGE = (-4.0, 6.0)
_PREVENTS = 0.8
"""The probability of working from which a line's situation is no explanation of a failure."""


def add_readings(ledger: LineLedger, readings: Sequence[Reading], tuning: LedgerTuning) -> LineLedger:
    """The ledger with the readings of a step. A rollout without a score changes nothing."""
    lines = {line.id: line for line in ledger.lines}
    situations = {situation.label: situation for situation in ledger.situations}
    seen, beliefs, reads = dict(ledger.seen), dict(ledger.beliefs), ledger.reads
    outcomes: list[HarmEvidence] = []
    passages = {line.id for line in ledger.get_lines(ledger.working) if line.passage}
    whole, whole_passed = ledger.whole, ledger.whole_passed
    for reading in readings:
        if reading.passed is None:
            continue
        seen.setdefault(reading.task, reading.kind)
        if passages.issubset((*reading.lines, *reading.unread)):
            whole, whole_passed = whole + 1, whole_passed + reading.outcome
        present = [lines[id] for id in reading.lines if id in lines]
        unread = [lines[id] for id in reading.unread if id in lines]
        reads = count_reads(reads, reading.kind, present, unread)
        calling = _list_calling(situations, reading.task)
        for line in unread:
            if line.situation in calling:
                lines[line.id] = replace(line, unread=line.unread + 1)
        if reading.read:
            named = tuple(
                dict.fromkeys(
                    find_label(label, situations, ledger.merged) for label in reading.situations if label.strip()
                )
            )
            outcomes.append(_read_outcome(reading, named, present, calling))
            for line in present:
                lines[line.id] = _credit_line(line, reading, named, situations, calling, tuning)
            _count_controls(reading, named, present, situations, calling)
        called = [line.id for line in present if line.situation in calling]
        free = [line.id for line in present if line.is_free]
        crowd = sum(not line.is_free for line in present) if reads else 0  # of packages: what text costs its readers
        update_beliefs(beliefs, reading.task, reading.kind, free, called, reading.outcome, crowd=crowd)
    return replace(
        ledger,
        lines=tuple(lines.values()),
        situations=tuple(situations.values()),
        seen=seen,
        beliefs=beliefs,
        blame=add_outcomes(ledger.blame, outcomes, len(set(seen.values()))),
        whole=whole,
        whole_passed=whole_passed,
        reads=reads,
    )


def _list_calling(situations: Mapping[str, Situation], task: str) -> frozenset[str]:
    """The situations that have spoiled a task before."""
    return frozenset([label for label, situation in situations.items() if task in situation.called])


def _is_explained(named: Sequence[str], present: Iterable[Line]) -> bool:
    """Whether a situation was named that no line of the text seems to prevent."""
    if not named:
        return False
    prevented = {line.situation for line in present if line.works > _PREVENTS}
    return any(label not in prevented for label in named)


def _read_outcome(reading: Reading, named: Sequence[str], present: Sequence[Line], calling: Set[str]) -> HarmEvidence:
    """What a rollout says about the harm that its lines may do. A suspected passage explains a failure as well."""
    lines = [line.id for line in present if not line.is_free]
    return HarmEvidence(
        reading.task,
        reading.kind,
        lines,
        reading.outcome,
        missing=bool(calling - {line.situation for line in present}),
        explained=_is_explained(named, present) or not set(lines).issuperset(reading.suspects),
        suspects=reading.suspects,
    )


def _credit_line(
    line: Line,
    reading: Reading,
    named: Sequence[str],
    situations: dict[str, Situation],
    calling: Set[str],
    tuning: LedgerTuning,
) -> Line:
    """The line after one rollout that had it in its text."""
    happened = line.situation in named
    if not line.passage and (happened or line.situation in calling):
        situation = situations.get(line.situation) or Situation(label=line.situation)
        line = replace(
            line,
            weight=compute_weight(line.weight, situation.get_rate(reading.task), happened=happened, slip=tuning.slip),
            tries=line.tries + 1,
            held=line.held + (not happened),
        )
    if reading.passed:
        return line
    suspected = line.id in reading.suspects
    if not line.is_free:
        return replace(line, suspected=line.suspected + 1) if suspected else line
    low, high = _HARM_RANGE
    cleared = tuning.cleared * (1.0 - reading.outcome)  # a rollout that went well clears no line
    harm = line.harm.get(reading.kind, tuning.harm_prior) + (tuning.suspected if suspected else -cleared)
    return replace(
        line, harm={**line.harm, reading.kind: min(high, max(low, harm))}, suspected=line.suspected + suspected
    )


def compute_weight(weight: float, rate: float, *, happened: bool, slip: float) -> float:
    """The log-odds that a line works, after its situation did or did not spoil a rollout with the line."""
    if happened:
        return weight + math.log(slip / max(rate, 0.4))
    return min(_MOST_WEIGHT, weight + math.log((1.0 - slip) / (1.0 - min(0.9, max(slip, rate)))))


def _count_controls(
    reading: Reading,
    named: Sequence[str],
    present: Iterable[Line],
    situations: dict[str, Situation],
    calling: Set[str],
) -> None:
    """Count the situations that no line of the text is about, and the tasks that call for a line."""
    task, covered = reading.task, {line.situation for line in present}
    for label in calling - covered:
        situation, again = situations[label], label in named
        tries, returned = situation.returns.get(task, (0, 0))
        situations[label] = replace(
            situation,
            tries=situation.tries + 1,
            named=situation.named + again,
            returns={**situation.returns, task: (tries + 1, returned + again)},
        )
    for label in named:
        situation = situations.get(label, Situation(label=label))
        if label in calling or label in covered:
            situations.setdefault(label, situation)
            continue
        if situation.called:
            situation = replace(situation, tries=situation.tries + 1, named=situation.named + 1)
        situations[label] = replace(situation, called=(*situation.called, task))
