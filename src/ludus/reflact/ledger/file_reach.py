"""Reach: which lines of a package could act in a rollout, and how often they do. Pure.

A line of a file acts only if the agent reads the file; a line of the document only if it loads the skill. What it has
read is known from the rollout's slot (`SkillUse`). A rollout in which a line could not act is no evidence for or
against it. It is a rollout without the line, and it shows that the line is seldom reached: a line that is right is
worth nothing where nobody reads it. If the slot could not see which files were opened, every line counts as read.
"""

from collections.abc import Iterable, Mapping, Sequence

from ludus.reflact.ledger.line_records import FileReads, Line, LineLedger
from ludus.types import SkillUse


def find_unread(lines: Iterable[Line], use: SkillUse | None) -> tuple[str, ...]:
    """The ids of the lines that could not act, because the agent did not read what they are in."""
    if use is None:
        return ()
    if use.loaded is False:
        return tuple(line.id for line in lines)
    if use.unseen:
        return ()
    known = {*use.opened, *use.shown, *use.run, *use.changed}
    return tuple(
        line.id for line in lines if line.edit.path and line.edit.op != "remove" and line.edit.path not in known
    )


def count_reads(
    reads: Mapping[str, FileReads], kind: str, acting: Sequence[Line], unread: Sequence[Line]
) -> dict[str, FileReads]:
    """The counts of how often files are read on each kind of task, after one rollout with these lines in its text."""
    counted = dict(reads)
    paths = {line.edit.path: False for line in unread} | {line.edit.path: True for line in acting}
    for path, was_read in paths.items():
        if path:
            name = name_reads(path, kind)
            before = counted.get(name, FileReads())
            counted[name] = FileReads(before.read + was_read, before.rollouts + 1)
    return counted


def name_reads(path: str, kind: str) -> str:
    return f"{kind}\t{path}"


def get_reach(ledger: LineLedger, line: Line, kind: str) -> float:
    """The probability that a line acts on a kind of task if it is in the text."""
    if not line.edit.path or not ledger.reads:
        return 1.0
    return ledger.reads.get(name_reads(line.edit.path, kind), FileReads()).rate
