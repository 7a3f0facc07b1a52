"""The analyst of the ledger: reads failed rollouts, names causes and suspects, and proposes lines.

One request per minibatch of failures. The reply says of every rollout which situations spoiled it and which lines of
its text are suspected, and it proposes lines, each with the rollouts that it was learned from. Labels come out of the
list of known situations, which grows; near-duplicates are mapped to the known label. `docs/skill-training.md` has the
form of the reply.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ludus.reflact.items import credit_item
from ludus.reflact.ledger.admission import place_edit
from ludus.reflact.ledger.line_records import Line, LineLedger, LineProposal, Reading
from ludus.reflact.ledger.situations import clean_label, find_label
from ludus.reflact.proposers import View
from ludus.reflact.records import UnusableReply
from ludus.reflact.stages.reflect import parse_notes
from ludus.reflact.transcript import fit_texts, render_transcript, shorten
from ludus.skill import DOCUMENT, MARKED, Edit, FileOp, Op, Skill, remove_markers, render_whole
from ludus.types import Rollout

_MOST_SITUATIONS = 80
"""The number of known situations that are shown: those that spoiled most tasks."""
_MOST_RETIRED = 20
"""The number of retired lines that are shown: the latest."""
CONTENT_CHARS = 50_000
"""The longest text of an item: a line of a skill, or a script."""
_LINE = 400
"""The number of characters of a line that are shown where it is listed."""


class RolloutCauses(Struct, frozen=True):
    """Why one rollout failed, as an analyst sees it."""

    rollout: int
    situations: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()


class LineItem(Struct, frozen=True):
    """A line that an analyst proposes."""

    situation: str
    content: str = ""
    rollouts: tuple[int, ...] = ()
    op: Op | FileOp = "append"
    target: str = ""
    replaces: str = ""
    path: str = ""
    """The file of a package that it belongs to; empty: the document."""
    pointer: str = ""
    """The line of the document that sends the agent to that file."""


class LineReply(Struct, frozen=True):
    """The reply of an analyst."""

    rollouts: tuple[RolloutCauses, ...] = ()
    items: tuple[LineItem, ...] = ()
    notes: str | tuple[str | dict[str, Any], ...] = ()
    reasoning: str = ""


class LineReflection(Struct, frozen=True):
    """What an analyst found in a minibatch."""

    tasks: tuple[str, ...]
    """The minibatch."""
    causes: Mapping[int, RolloutCauses] = field(default_factory=dict[int, RolloutCauses])
    """By the number of the rollout in the minibatch, from 1."""
    proposals: tuple[LineProposal, ...] = ()
    notes: tuple[str, ...] = ()
    reasoning: str = ""


async def analyse_failures(
    view: View,
    ledger: LineLedger,
    initial: Skill,
    minibatch: Sequence[tuple[Rollout, Sequence[str]]],
    place: str,
) -> LineReflection:
    """Have a minibatch of failed rollouts read, each with the ids of the lines in its text."""
    settings, optimizer = view.settings, view.require_optimizer()
    texts = [
        render_transcript(rollout, reference=settings.show_reference, title=_make_title(number, rollout, lines))
        for number, (rollout, lines) in enumerate(minibatch, 1)
    ]
    notes = settings.appendix.enabled
    parts = (*(("item_files", "line_pointer") if view.is_package else ()), *(("notes",) if notes else ()))
    shown = {id for _, lines in minibatch for id in lines} | set(ledger.working)
    reply = await optimizer.ask(
        "analyst_lines",
        {
            "skill": render_whole(view.skill).strip() or "(empty)",
            "lines": describe_lines(ledger.get_lines(shown), ledger.working),
            "retired": describe_lines([line for line in ledger.lines if not line.is_alive][-_MOST_RETIRED:], ()),
            "situations": describe_situations(ledger),
            "system": view.system.strip() or "(nothing)",
            "memory": view.memory.strip() or "Nothing yet.",
            "limit": str(settings.ledger.most_proposals),
            "count": str(len(minibatch)),
            "rollouts": "\n\n---\n\n".join(fit_texts(texts, settings.trajectory_tokens)),
            "notes": "\n\n".join(optimizer.prompts.render_part(name) for name in parts),
        },
        LineReply,
        stage="analyst",
        place=place,
        otherwise="the causes of these failures are not known",
        check=lambda reply: check_reply(reply, len(minibatch)),
        shape=shape_reply,
    )
    tasks = tuple(rollout.task.id for rollout, _ in minibatch)
    if isinstance(reply, UnusableReply):
        return LineReflection(tasks)
    reply = read_origins(reply, len(tasks), [situation.label for situation in ledger.situations])
    items = [read_place(item, ledger, initial) for item in reply.items if not find_deleted(item, ledger.lines)]
    return LineReflection(
        tasks,
        read_causes(reply, ledger.alive),
        tuple(make_proposal(item, tasks, ledger, initial) for item in items if item is not None),
        parse_notes(reply.notes) if notes else (),
        reply.reasoning,
    )


def _make_title(number: int, rollout: Rollout, lines: Sequence[str]) -> str:
    return f"Rollout {number}: {rollout.task.id} (lines in its text: {', '.join(lines) or 'none'})"


def describe_lines(lines: Iterable[Line], working: Sequence[str]) -> str:
    """The lines as text for a prompt."""
    blocks: list[str] = []
    for line in lines:
        state = (
            f"given up: {line.reason}" if not line.is_alive else "in the skill" if line.id in working else "on trial"
        )
        situation = "of the initial skill" if line.passage else line.situation
        place = f" in {line.edit.path}" if line.edit.path else ""
        target = f" ({line.edit.op} {shorten(line.edit.target, _LINE)!r})" if line.edit.target else ""
        blocks.append(f"{line.id} [{situation}] ({state}{place}){target}: {shorten(line.edit.content, _LINE)}")
    return "\n".join(blocks) or "None yet."


def describe_situations(ledger: LineLedger) -> str:
    """The labels of known situations as text for a prompt, those that spoiled most tasks first."""
    ranked = sorted(ledger.situations, key=lambda situation: -len(situation.called))[:_MOST_SITUATIONS]
    return "\n".join(f"- {situation.label}" for situation in ranked) or "None yet."


def check_reply(reply: LineReply, count: int) -> str:
    """What is wrong with a reply; empty if nothing is."""
    numbers = [entry.rollout for entry in reply.rollouts] + [n for item in reply.items for n in item.rollouts]
    wrong = sorted({number for number in numbers if not 1 <= number <= count})
    if wrong:
        return f"it names rollouts that were not shown: {wrong}; they are numbered 1 to {count}"
    for number, item in enumerate(reply.items, 1):
        if not clean_label(item.situation):
            return f"item {number} has no situation"
        if item.op not in ("delete", "remove") and not item.content.strip():
            return f"item {number} has no content"
        if len(item.content) > CONTENT_CHARS:
            return f"item {number} has {len(item.content):,} characters; at most {CONTENT_CHARS:,} are allowed"
    return ""


_PARTS = ("rollouts", "items")
"""The fields of a reply that are lists of objects."""
_LISTS = ("situations", "suspects", "rollouts")
"""The fields of these objects that are lists."""
_NUMBER = re.compile(r"\D*(\d+)\D*")
"""A number with words around it: `Rollout 3`."""


def shape_reply(value: Any) -> Any:
    """The JSON of a reply in the form that was asked for, where what is meant is plain: one text or number in place of
    a list of one, `Rollout 3` in place of 3, `add` in place of `append`."""
    if not isinstance(value, dict):
        return value
    fields: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
    return {
        **fields,
        **{
            name: [_shape_entry(each) for each in fields[name]] for name in _PARTS if isinstance(fields.get(name), list)
        },
    }


def _shape_entry(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    fields: dict[str, Any] = dict(entry)  # pyright: ignore[reportUnknownArgumentType]
    for name in _LISTS:
        if isinstance(fields.get(name), (str, int)):
            fields[name] = [fields[name]]
    if "rollout" in fields:
        fields["rollout"] = _read_number(fields["rollout"])
    if isinstance(fields.get("rollouts"), list):
        fields["rollouts"] = [_read_number(each) for each in fields["rollouts"]]
    if fields.get("op") == "add":
        fields["op"] = "append"
    return fields


def _read_number(value: Any) -> Any:
    found = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) if found else value


def read_origins(reply: LineReply, count: int, known: Collection[str]) -> LineReply:
    """The reply with the rollouts that each item was learned from, and without labels that say nothing.

    An item that names no rollouts was learned from those that name its situation. If none does and the situation is
    new, it was learned from those for which the reply names no cause. `known`: the situations of earlier steps.
    """
    entries = tuple(
        replace(entry, situations=tuple(label for text in entry.situations if (label := clean_label(text))))
        for entry in reply.rollouts
    )
    explained = {entry.rollout for entry in entries if entry.situations}
    rest = tuple(number for number in range(1, count + 1) if number not in explained)

    def find_origin(item: LineItem) -> tuple[int, ...]:
        label = clean_label(item.situation)
        named = tuple(entry.rollout for entry in entries if label in entry.situations)
        is_known = bool(item.replaces) or find_label(label, known) in known
        return item.rollouts or named or (() if is_known else rest)

    items = tuple(replace(item, rollouts=find_origin(item)) for item in reply.items)
    return replace(reply, rollouts=entries, items=items)


def read_place(item: LineItem, ledger: LineLedger, initial: Skill) -> LineItem | None:
    """The item, at the end of the text if what it changes is nowhere: it would never be in a text. None if it is a
    deletion of what is not there."""
    text = initial.read(item.path)
    if item.op not in ("replace", "delete", "insert_after") or item.replaces or text is None:
        return item
    places = (text, *(line.edit.content for line in ledger.alive if line.edit.path == item.path))
    if item.target and any(item.target in place for place in places):
        return item
    return None if item.op == "delete" else replace(item, op="append", target="")


def read_causes(reply: LineReply, lines: Sequence[Line]) -> dict[int, RolloutCauses]:
    """The causes that a reply names, by the number of the rollout, with what its items imply.

    Of a rollout without any situation, those of the new lines that were learned from it have spoiled it. A line that
    should be deleted or changed is a suspect in the rollouts that say so. So is one that should be replaced, where an
    analyst who names situations has named none.
    """
    causes = {entry.rollout: entry for entry in reply.rollouts}
    named = {number for number, entry in causes.items() if entry.situations}
    for item in reply.items:
        accused = find_deleted(item, lines) or find_changed(item, lines)
        replaced = find_replaced(item, lines) if named else ""
        for number in item.rollouts:
            entry = causes.get(number, RolloutCauses(number))
            if suspect := accused or (replaced if number not in named else ""):
                causes[number] = replace(entry, suspects=(*entry.suspects, suspect))
            elif number not in named and not item.replaces and item.op == "append":
                causes[number] = replace(entry, situations=(*entry.situations, item.situation))
    return causes


def find_deleted(item: LineItem, lines: Sequence[Line]) -> str:
    """The line that an item deletes as a whole: it names its id or its text. Such an item needs no line of its own."""
    if item.op != "delete":
        return ""
    wanted = item.target.strip() or item.replaces
    return next((line.id for line in lines if wanted in (line.id, line.edit.content) or item.replaces == line.id), "")


def find_replaced(item: LineItem, lines: Sequence[Line]) -> str:
    """The proposed line that an item is a better version of."""
    return next((line.id for line in lines if line.id == item.replaces and not line.passage), "")


def find_changed(item: LineItem, lines: Sequence[Line]) -> str:
    """The passage of the initial skill that an item changes."""
    if item.op not in ("replace", "delete") or not item.target:
        return ""
    return next((line.id for line in lines if line.passage and item.target in line.edit.content), "")


def make_proposal(item: LineItem, tasks: Sequence[str], ledger: LineLedger, initial: Skill) -> LineProposal:
    """A proposal with its true origin: the tasks of the rollouts that it was learned from."""
    content = remove_markers(item.content, MARKED)
    content = content if item.path else content.strip()  # code may begin with spaces
    edit = Edit(item.op, content, item.target if item.op != "append" else "", path=item.path)
    credited = credit_item(edit, "failure", [tasks[number - 1] for number in item.rollouts])
    assert isinstance(credited, Edit)
    old = next((line for line in ledger.lines if line.id == item.replaces), None)
    if old is not None and old.passage:
        return LineProposal(edit=replace(credited, op="append", target=""), situation=item.situation)
    if old is not None and item.path in ("", old.edit.path):
        edit = replace(credited, op=old.edit.op, target=old.edit.target, path=old.edit.path)
        return LineProposal(edit=edit, situation=item.situation, replaces=old.id, pointer=item.pointer or old.pointer)
    edit, replaces = place_edit(credited, initial, ledger.alive)
    pointer = item.pointer.strip() or make_pointer(item)
    replaces = replaces or (old.id if old is not None else "")  # the same line at another place
    return LineProposal(edit=edit, situation=item.situation, replaces=replaces, pointer=pointer)


def make_pointer(item: LineItem) -> str:
    """A pointer for an item that has none: a file that no text names is never read. Tests are not for the agent."""
    path = item.path
    name = path.rpartition("/")[2]
    is_test = name.startswith("test_") or "_test." in name
    if path in ("", DOCUMENT) or item.op not in ("write", "append") or is_test:
        return ""
    return f"- {clean_label(item.situation)}: {'run' if path.startswith('scripts/') else 'read'} {path}"


def apply_causes(reading: Reading, causes: RolloutCauses | None) -> Reading:
    """The reading of a failed rollout with the causes that an analyst has named; None if it has named none."""
    if causes is None:
        return replace(reading, read=False)
    return replace(
        reading,
        situations=tuple(dict.fromkeys(label for text in causes.situations if (label := clean_label(text)))),
        suspects=tuple(id for id in dict.fromkeys(causes.suspects) if id in reading.lines),
    )
