"""Placement: where in a package a line belongs, by what is known. Pure.

A proposer sees a few rollouts, often of one kind, so it cannot know which kinds of tasks need a line. The ledger does:
it has every task that called for the line's situation, and how often each kind of task reads each file. So lines that
work are moved. What is known about a line stays: its words are the same.

* **Up**, into the document: tasks call for the line that do not read its file.
* **Down**, into a reference: tasks of one kind alone call for it, they read that file and others do not, and what
  others save is more than what is lost where the file is not read.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from ludus.reflact.disclosure import find_excess
from ludus.reflact.ledger.assessment import list_slopes
from ludus.reflact.ledger.beliefs import KindSlope, estimate_line_cost
from ludus.reflact.ledger.file_reach import get_reach, name_reads
from ludus.reflact.ledger.line_records import FileReads, Line, LineChange, LineLedger, Situation
from ludus.reflact.ledger.settings import LedgerTuning
from ludus.reflact.train_settings import PackageSettings
from ludus.skill import DOCUMENT, Skill

_MISSED = 0.2
"""The share of the tasks that call for a line from which it is moved up, if they do not read its file."""
_CALLED = 3
"""The tasks that must have called for a line before one kind of task is said to need it alone."""
_KNOWN = 4
"""The rollouts from which it is known how often a kind of task reads a file."""


def move_lines(
    ledger: LineLedger, base: Skill, tuning: LedgerTuning, limits: PackageSettings
) -> tuple[LineLedger, tuple[LineChange, ...]]:
    """The ledger with lines at better places, and what was moved. A package that nobody has read a file of stays."""
    if not ledger.reads:
        return ledger, ()
    situations = {situation.label: situation for situation in ledger.situations}
    slopes, changes = list_slopes(ledger), list[LineChange]()
    before, _ = ledger.compose(base, ledger.get_lines(ledger.working))
    for line in ledger.alive:
        situation = situations.get(line.situation)
        if situation is None or not _can_move(line, tuning):
            continue
        for path in _list_places(ledger, line, situation, slopes):
            moved = _move(ledger, line, path)
            after, _ = moved.compose(base, moved.get_lines({*ledger.working, line.id}))
            if not find_excess(before, after, limits):
                ledger = moved
                changes.append(LineChange(line.id, "moved", f"to {path or DOCUMENT}, for the tasks that need it"))
                break
    return ledger, tuple(changes)


def _can_move(line: Line, tuning: LedgerTuning) -> bool:
    is_text = line.edit.op == "append" and (not line.edit.path or line.edit.path.endswith(".md"))
    return is_text and not line.passage and not line.by_outcome and line.works > tuning.enter_works


def _move(ledger: LineLedger, line: Line, path: str) -> LineLedger:
    pointer = next((each.pointer for each in ledger.lines if path and each.edit.path == path and each.pointer), "")
    moved = replace(line, edit=replace(line.edit, path=path), pointer=pointer, unread=0)
    return replace(ledger, lines=tuple(moved if each.id == line.id else each for each in ledger.lines))


def _list_places(
    ledger: LineLedger, line: Line, situation: Situation, slopes: Mapping[str, KindSlope]
) -> Iterator[str]:
    """Better places for a line: the document (an empty path), or a reference."""
    kinds = Counter(ledger.seen.get(task, "") for task in situation.called)
    total = sum(kinds.values())
    if line.edit.path:
        missed = sum(count for kind, count in kinds.items() if get_reach(ledger, line, kind) < 0.5)
        if missed > _MISSED * total:
            yield ""
    elif len(kinds) == 1 and total >= _CALLED and line.id in ledger.assessed:
        yield from _list_files_for(ledger, line, next(iter(kinds)), slopes)


def _list_files_for(ledger: LineLedger, line: Line, kind: str, slopes: Mapping[str, KindSlope]) -> Iterator[str]:
    """The references that pay for a line which one kind of task needs."""
    cost = estimate_line_cost(ledger)
    for path in dict.fromkeys(name.partition("\t")[2] for name in ledger.reads):
        own = ledger.reads.get(name_reads(path, kind), FileReads())
        if cost <= 0 or own.rollouts < _KNOWN or not path.endswith(".md"):
            continue
        at_path = replace(line, edit=replace(line.edit, path=path))
        saved = sum(
            share * slope * cost * (1 - get_reach(ledger, at_path, other))
            for other, (share, slope) in slopes.items()
            if other != kind
        )
        if saved > (1 - own.rate) * ledger.assessed[line.id].gain:
            yield path
