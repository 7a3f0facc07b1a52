"""Placement: where in a package a line belongs, by what is known. Pure.

A proposer sees a few rollouts, often of one kind, so it cannot know which kinds of tasks need a line. The ledger does:
it has every task that called for the line's situation, and how often each kind of task reads each file. So lines that
work are moved. What is known about a line stays: its words are the same.

The value of a place is what the line is worth on the tasks that call for it, as far as they read the place, less what
text costs all tasks that read it. So a line goes up, into the document, if tasks call for it that do not read its file;
and down, into a reference, if few others than its readers call for it and the document is known to be long for them.
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

_MISSED = 2
"""The tasks that must call for a line without reading its file before it goes up: one may be an error of an analyst."""
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
    for line in ledger.alive:
        situation = situations.get(line.situation)
        if situation is None or line.id not in ledger.assessed or not _can_move(line, tuning):
            continue
        path = _find_place(ledger, line, situation, slopes, tuning)
        if path == line.edit.path:
            continue
        moved = _move(ledger, line, path)
        before, _ = ledger.compose(base, ledger.get_lines(ledger.working))
        after, _ = moved.compose(base, moved.get_lines({*ledger.working, line.id}))
        if not find_excess(before, after, limits):
            ledger = moved
            changes.append(LineChange(line.id, "moved", f"to {path or DOCUMENT}, for the tasks that need it"))
    return ledger, tuple(changes)


def _can_move(line: Line, tuning: LedgerTuning) -> bool:
    is_text = line.edit.op == "append" and (not line.edit.path or line.edit.path.endswith(".md"))
    return is_text and not line.passage and not line.by_outcome and line.works > tuning.enter_works


def _move(ledger: LineLedger, line: Line, path: str) -> LineLedger:
    pointer = next((each.pointer for each in ledger.lines if path and each.edit.path == path and each.pointer), "")
    moved = replace(line, edit=replace(line.edit, path=path), pointer=pointer, unread=0)
    return replace(ledger, lines=tuple(moved if each.id == line.id else each for each in ledger.lines))


def _find_place(
    ledger: LineLedger, line: Line, situation: Situation, slopes: Mapping[str, KindSlope], tuning: LedgerTuning
) -> str:
    """The path of the best place for a line; its own unless another one is clearly better."""
    kinds = Counter(ledger.seen.get(task, "") for task in situation.called)
    most = max(kinds, key=lambda kind: kinds[kind], default="")
    gain = ledger.assessed[line.id].gain / max(0.1, line.reach)
    places = [""] if line.edit.path else list(_list_known_files(ledger, most))
    missed = sum(count for kind, count in kinds.items() if get_reach(ledger, line, kind) < 0.5)
    if not kinds or (line.edit.path and missed < _MISSED):
        return line.edit.path

    def compute_value(path: str) -> float:
        at_path = replace(line, edit=replace(line.edit, path=path))
        reached = sum(count * get_reach(ledger, at_path, kind) for kind, count in kinds.items()) / kinds.total()
        read = sum(share * slope * get_reach(ledger, at_path, kind) for kind, (share, slope) in slopes.items())
        return gain * reached - estimate_line_cost(ledger) * read

    best = max(places, key=compute_value, default=line.edit.path)
    return best if compute_value(best) > compute_value(line.edit.path) + tuning.price else line.edit.path


def _list_known_files(ledger: LineLedger, kind: str) -> Iterator[str]:
    """The references of which it is known how often a kind of task reads them."""
    for path in dict.fromkeys(name.partition("\t")[2] for name in ledger.reads):
        if path.endswith(".md") and ledger.reads.get(name_reads(path, kind), FileReads()).rollouts >= _KNOWN:
            yield path
