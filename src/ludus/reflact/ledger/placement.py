"""Placement: where in a package a line belongs, by what is known. Pure.

A proposer sees a few rollouts, often of one kind, so it cannot know which kinds of tasks need a line. The ledger does:
it has every task that called for the line's situation, and how often each kind of task reads each file. So it proposes
moves of lines that work. Each is a rival of the line that it moves, and rollouts decide between them.

* **Up**, into the document: tasks call for the line that do not read its file.
* **Down**, into a reference: tasks of one kind alone call for it, they read that file and others do not, and text that
  every task reads was seen to cost something.
"""

from collections import Counter
from collections.abc import Iterator

from msgspec.structs import replace

from ludus.reflact.disclosure import find_excess
from ludus.reflact.ledger.admission import is_same_edit
from ludus.reflact.ledger.beliefs import estimate_line_cost
from ludus.reflact.ledger.file_reach import get_reach, name_reads
from ludus.reflact.ledger.line_records import FileReads, Line, LineLedger, LineProposal, Situation, compose_text
from ludus.reflact.ledger.settings import LedgerTuning
from ludus.reflact.train_settings import PackageSettings
from ludus.skill import Skill

_MISSED = 0.2
"""The share of the tasks that call for a line from which it is worth a move, if they do not read its file."""
_CALLED = 3
"""The tasks that must have called for a line before one kind of task is said to need it alone."""
_OFTEN, _SELDOM = 0.7, 0.3
"""How often a file is read by those that it is for, and by others."""
_KNOWN = 4
"""The rollouts from which these rates are taken for known."""
_MOST_MOVES = 2
"""The most moves that are proposed in a step."""


def propose_moves(ledger: LineLedger, base: Skill, tuning: LedgerTuning, limits: PackageSettings) -> list[LineProposal]:
    """Moves of lines of the working text to where they would act, or where they would cost less."""
    if not ledger.reads:
        return []
    situations = {situation.label: situation for situation in ledger.situations}
    before, _ = ledger.compose(base, ledger.get_lines(ledger.working))
    found: list[LineProposal] = []
    for line in ledger.get_lines(ledger.working):
        situation = situations.get(line.situation)
        if situation is None or not _can_move(line, tuning):
            continue
        for path in _list_places(ledger, line, situation):
            move = LineProposal(
                edit=replace(line.edit, path=path),
                situation=line.situation,
                replaces=line.id,
                pointer=_find_pointer(ledger, path),
            )
            if any(is_same_edit(each.edit, move.edit) for each in ledger.lines):
                continue
            after, _ = compose_text(before, [replace(line, edit=move.edit, pointer=move.pointer)])
            if not find_excess(before, after, limits):
                found.append(move)
    return found[:_MOST_MOVES]


def _can_move(line: Line, tuning: LedgerTuning) -> bool:
    is_text = line.edit.op == "append" and (not line.edit.path or line.edit.path.endswith(".md"))
    return is_text and not line.passage and not line.by_outcome and line.works > tuning.enter_works


def _list_places(ledger: LineLedger, line: Line, situation: Situation) -> Iterator[str]:
    """Better places for a line: the document (an empty path), or a reference."""
    kinds = Counter(ledger.seen.get(task, "") for task in situation.called)
    total = sum(kinds.values())
    if line.edit.path:
        missed = sum(count for kind, count in kinds.items() if get_reach(ledger, line, kind) < 0.5)
        if missed > _MISSED * total:
            yield ""
    elif len(kinds) == 1 and total >= _CALLED and estimate_line_cost(ledger) > 0:
        yield from _list_files_for(ledger, next(iter(kinds)))


def _list_files_for(ledger: LineLedger, kind: str) -> Iterator[str]:
    """The references that tasks of a kind read, and others seldom do."""
    paths = dict.fromkeys(name.partition("\t")[2] for name in ledger.reads)
    others = set(ledger.seen.values()) - {kind}
    for path in paths:
        own = ledger.reads.get(name_reads(path, kind), FileReads())
        rest = [ledger.reads.get(name_reads(path, other), FileReads()) for other in others]
        if (
            path.endswith(".md")
            and own.rollouts >= _KNOWN
            and own.rate >= _OFTEN
            and others
            and all(each.rollouts >= _KNOWN and each.rate <= _SELDOM for each in rest)
        ):
            yield path


def _find_pointer(ledger: LineLedger, path: str) -> str:
    """The pointer to a file that lines in it have; empty if the initial document names it."""
    return next((line.pointer for line in ledger.lines if path and line.edit.path == path and line.pointer), "")
