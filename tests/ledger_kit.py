"""Shared by the tests of the ledger: lines, situations and readings with few words."""

from collections.abc import Sequence
from typing import Any

from ludus.reflact.ledger.line_records import Line, LineLedger, LineProposal, Reading, Situation
from ludus.skill import Edit


def make_line(id: str, situation: str = "s", *, weight: float = 0.4, **more: Any) -> Line:
    birth = more.pop("birth_weight", weight)
    edit = Edit("append", more.pop("text", f"Text of {id}."))
    return Line(id=id, edit=edit, situation=situation, born=1, weight=weight, birth_weight=birth, **more)


def make_situation(
    label: str = "s", called: Sequence[str] = (), tries: int = 0, named: int = 0, **returns: tuple[int, int]
) -> Situation:
    return Situation(label=label, called=tuple(called), tries=tries, named=named, returns=returns)


def make_ledger(lines: Sequence[Line] = (), situations: Sequence[Situation] = (), **more: Any) -> LineLedger:
    seen = {f"t{n}": "" for n in range(more.pop("tasks", 10))}
    return LineLedger(lines=tuple(lines), situations=tuple(situations), seen=seen, **more)


def read(task: str, passed: bool | None, lines: Sequence[str] = (), named: Sequence[str] = (), **more: Any) -> Reading:
    return Reading(task=task, skill="text", passed=passed, lines=tuple(lines), situations=tuple(named), **more)


def propose(text: str, situation: str = "s", tasks: Sequence[str] = (), replaces: str = "") -> LineProposal:
    return LineProposal(edit=Edit("append", text, evidence=tuple(tasks)), situation=situation, replaces=replaces)
