"""The changes of a skill that a person can decide about, each with its evidence. Pure.

A version of a skill is traced from the initial text, change by change. The result is a list of pieces: text that never
changed, and text that a change wrote, with what stood there in the initial skill and right before the change. The
pieces with their initial text are exactly the initial skill; those with their current text are exactly the version. So
any choice of changes is a text, for every recipe: edits, whole rewrites, guidance and notes. The files of a package
are traced as the document is. A script is one piece: half of a program is no program.

A change has an id that stays the same: `L4` is line 4 of the ledger, `S3.1` the first item of step 3, `S3.notes` what
the step added to the appendix, `E2` the guidance after epoch 2. If a change is in several places, the second one is
`S3.1/2`. `P2` is a passage of the initial skill that was given up. What was proposed and is not in the version is
listed too, with the reason.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ludus.errors import ConfigError
from ludus.models.token_estimate import estimate_text
from ludus.reflact.gate import Verdict
from ludus.reflact.guards import REFUSED_STATUSES
from ludus.reflact.items import describe_item
from ludus.reflact.ledger.line_records import Assessment, Line, LineLedger, compose_text
from ludus.reflact.ledger.passages import drop_passages
from ludus.reflact.records import EpochEnd, Fate, Record, Step, Summary
from ludus.reflact.report.line_histories import LineHistory, RolloutPlace, collect_histories, describe_passage
from ludus.reflact.train_settings import TrainSettings
from ludus.skill import REGIONS, Edit, Skill, Source, add_notes, apply_edits
from ludus.stats import Interval

DOCUMENT = "SKILL.md"
SHIPPED = "shipped"
WORKING = "working"
SELECTED = "best-on-selection"
INITIAL = "initial"


class ChangeEvidence(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known about a change."""

    step: int = 0
    """The step that wrote it."""
    epoch: int = 0
    """The epoch after which it was written, for guidance."""
    source: Source | Literal[""] = ""
    """Whether it was learned from failures, successes or both."""
    learned_from: tuple[str, ...] = ()
    """The train tasks that it was learned from."""
    support: int = 0
    """The number of rollouts that it was learned from."""
    situation: str = ""
    """With the recipe `ledger`: the cause of failures that it is about."""
    evidence_for: tuple[RolloutPlace, ...] = ()
    evidence_against: tuple[RolloutPlace, ...] = ()
    suspected: tuple[RolloutPlace, ...] = ()
    rollouts: int = 0
    """Scored training rollouts with it in their text."""
    passed: int = 0
    difference: float | None = None
    """What it is worth, from -1 to 1: by the ledger for this line alone; else the paired difference on the selection
    split of the whole step that it was a part of."""
    interval: Interval | None = None
    """The 95 % interval of the difference."""
    certainty: float | None = None
    """The probability that it helps."""
    alone: bool = False
    """Whether the difference is that of this change alone."""
    passage: str = ""
    """Of a passage of the initial skill that was given up: what it is worth, in words. The numbers are those of leaving
    it out; rollouts are those that had it."""
    decision: str = ""
    """What training decided about it."""


class SkillChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of a version of a skill, or one that was proposed and is not in it."""

    id: str
    path: str = DOCUMENT
    """The file of the skill that it changes."""
    included: bool
    """Whether it is in the version."""
    op: Literal["add", "remove", "replace"]
    text: str = ""
    """What it says in the version; empty if it only removes."""
    before: str = ""
    """What the initial skill says at its place."""
    previous: str = ""
    """What stood there before the last change of it."""
    line: int = 0
    """Where it is in the version, from 1; 0 if it is not in it."""
    why: str = ""
    """Why it is not in the version."""
    tokens: int = 0
    """About how many tokens its text takes in every request."""
    edit: Edit | None = None
    """How it would be made, if it is not in the version. None: it is no edit that could be made."""
    pointer: str = ""
    """The line of the document that comes with it."""
    evidence: ChangeEvidence = ChangeEvidence()


class SkillPiece(Struct, frozen=True, omit_defaults=True):
    """Some lines of a version. `change` is empty where nothing changed."""

    current: tuple[str, ...]
    initial: tuple[str, ...]
    previous: tuple[str, ...]
    change: str = ""
    path: str = ""
    """The file of the package that it is a part of; empty: the document."""


class ChangeList(Struct, frozen=True, kw_only=True):
    """A version of a skill as changes of the initial one."""

    version: str
    """Its name: `shipped`, `working`, `step_0003`, …"""
    skill: Skill
    initial: Skill
    pieces: tuple[SkillPiece, ...]
    """Those of the document, then those of the files of which anything changed."""
    changes: tuple[SkillChange, ...]
    """Those of the version in the order of the text, then those that are not in it."""

    @property
    def included(self) -> tuple[SkillChange, ...]:
        return tuple(change for change in self.changes if change.included)

    def get(self, id: str) -> SkillChange:
        """The change with an id. Raises `ConfigError` if there is none."""
        for change in self.changes:
            if change.id == id:
                return change
        close = difflib.get_close_matches(id, [change.id for change in self.changes], 1)
        hint = f"did you mean {close[0]}?" if close else "list them: ludus review RUN --list"
        raise ConfigError(f"review: the version '{self.version}' has no change {id}; {hint}")


# ---- versions -------------------------------------------------------------------------------------------------------


def list_versions(records: Sequence[Record], settings: TrainSettings) -> dict[str, Skill]:
    """The versions of a run's skill by name: `initial`, `step_0003`, `slow_update_epoch_01`, …, `working`, `shipped`,
    and `best-on-selection` where there is one. Several names can stand for one text."""
    if not records:
        return {}
    last = records[-1]
    versions = {INITIAL: last.state.initial.skill}
    for record in records:
        if isinstance(record, Step):
            found = record.candidate or (record.state.current.skill if record.lines is not None else None)
            if found is not None:
                versions[f"step_{record.number:04d}"] = found
        elif isinstance(record, EpochEnd) and record.slow.candidate is not None:
            versions[f"slow_update_epoch_{record.epoch:02d}"] = record.slow.candidate
    versions[WORKING] = last.state.current.skill
    is_open = settings.recipe == "ledger" and not isinstance(last, Summary)
    versions[SHIPPED] = last.state.current.skill if is_open else last.state.best.skill
    if isinstance(last, Summary) and last.best_on_selection is not None:
        versions[SELECTED] = last.best_on_selection.skill
    return versions


def find_version(records: Sequence[Record], settings: TrainSettings, wanted: str) -> tuple[str, Skill]:
    """A version by its name, the number of its step, or the beginning of its hash. Raises `ConfigError`."""
    versions = list_versions(records, settings)
    if not versions:
        raise ConfigError("review: nothing is finished in this run yet, so there is no skill to review")
    name = f"step_{int(wanted):04d}" if wanted.isdecimal() and len(wanted) <= 6 else wanted
    if name in versions:
        return name, versions[name]
    for name, skill in reversed(versions.items()):
        if len(wanted) >= 6 and skill.hash.startswith(wanted):
            return name, skill
    raise ConfigError(
        f"--version {wanted}: this run has no such version; it has {_name_some(tuple(versions))}, and hashes"
    )


def _name_some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:3])}, … {', '.join(names[-4:])}"


# ---- changes --------------------------------------------------------------------------------------------------------


class _Change(NamedTuple):
    """A change on the way to a version: its id, the text after it, and what is known about it."""

    id: str
    skill: Skill
    evidence: ChangeEvidence


def list_changes(records: Sequence[Record], settings: TrainSettings, version: str = SHIPPED) -> ChangeList:
    """The changes of a version of a run's skill, and what was proposed and is not in it."""
    name, skill = find_version(records, settings, version)
    initial = records[0].state.initial.skill
    histories = collect_histories(records, settings.ledger.tuning)
    if settings.recipe == "ledger":
        way = list(_trace_lines(records, histories, initial, skill))
        offered = [*_offer_lines(histories), *_offer_dropped(records)]
    else:
        way = list(_trace_steps(records, settings, initial, skill))
        offered = list(_offer_items(records))
    pieces = _name_pieces(_trace_package(initial, way))
    if settings.recipe == "ledger":
        pieces = _add_replaced(pieces, {history.line.id: history.line for history in histories})
    known = {each.id: each.evidence for each in way}
    included = tuple(_make_included(pieces, known))
    taken = {change.id.partition("/")[0] for change in included}
    others = tuple(change for change in offered if change.id not in taken)
    return ChangeList(version=name, skill=skill, initial=initial, pieces=pieces, changes=(*included, *others))


def _make_included(pieces: Sequence[SkillPiece], known: Mapping[str, ChangeEvidence]) -> Iterator[SkillChange]:
    place, path = 1, ""
    for piece in pieces:
        if piece.path != path:
            place, path = 1, piece.path
        if piece.change:
            text, before = _strip(piece.current), _strip(piece.initial)
            lead = next((at for at, line in enumerate(piece.current) if line.strip()), 0)
            yield SkillChange(
                id=piece.change,
                path=piece.path or DOCUMENT,
                included=True,
                op="replace" if text and before else "add" if text else "remove",
                text=text,
                before=before,
                previous=_strip(piece.previous),
                line=place + lead,
                tokens=estimate_text(text),
                evidence=known.get(piece.change.partition("/")[0], ChangeEvidence()),
            )
        place += len(piece.current)


def _strip(lines: Sequence[str]) -> str:
    return "\n".join(lines).strip("\n")


# ---- pieces ---------------------------------------------------------------------------------------------------------


def _trace_package(initial: Skill, way: Sequence[_Change]) -> list[SkillPiece]:
    """The pieces of the document, then those of each file that was changed."""
    pieces = list(_join_regions(trace_pieces(initial.text, [(each.id, each.skill.text) for each in way])))
    versions = [initial, *(each.skill for each in way)]
    for path in sorted({path for skill in versions for path in skill.paths} - {DOCUMENT}):
        texts = [skill.read(path) for skill in versions]
        if all(text == texts[0] for text in texts):
            continue
        named = list(zip((each.id for each in way), texts[1:], strict=True))
        is_whole = any(file.is_script for skill in versions if (file := skill.get_file(path)))
        traced = _trace_whole(texts[0], named) if is_whole else trace_pieces(texts[0], named)
        pieces += [replace(piece, path=path) for piece in traced]
    return pieces


def _trace_whole(initial: str | None, way: Sequence[tuple[str, str | None]]) -> tuple[SkillPiece, ...]:
    """A file as one piece, with the last change of it."""
    previous, current, last = initial, initial, ""
    for id, text in way:
        if text != current:
            previous, current, last = current, text, id
    return (SkillPiece(_split_lines(current), _split_lines(initial), _split_lines(previous), last),)


def _split_lines(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(text.split("\n"))


def trace_pieces(initial: str | None, way: Sequence[tuple[str, str | None]]) -> tuple[SkillPiece, ...]:
    """The last text as pieces. Each change on the way is compared with the text before it, line by line. A text that
    is not there has no lines."""
    before = _split_lines(initial)
    pieces = [SkillPiece((line,), (line,), (line,)) for line in before]
    for id, text in way:
        after = _split_lines(text)
        matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
        for tag, start, end, new, new_end in reversed(matcher.get_opcodes()):  # from the end: places stay valid
            if tag != "equal":
                _replace_lines(pieces, start, end, after[new:new_end], id)
        before = after
    return tuple(pieces)


def _replace_lines(pieces: list[SkillPiece], start: int, end: int, new: tuple[str, ...], id: str) -> None:
    """Put new lines in the place of the lines from `start` to `end` of the current text."""
    first = _cut(pieces, start)
    last = _cut(pieces, end) if end > start else first
    while last > first and not pieces[last - 1].current:  # what was removed at the end of the range is another change
        last -= 1
    old = pieces[first:last]
    pieces[first:last] = [
        SkillPiece(
            new,
            tuple(line for piece in old for line in piece.initial),
            tuple(line for piece in old for line in piece.current),
            id,
        )
    ]


def _cut(pieces: list[SkillPiece], at: int) -> int:
    """Make a piece begin at a line of the current text. Returns its index."""
    place = 0
    for index, piece in enumerate(pieces):
        size = len(piece.current)
        if place == at and size:
            return index
        if place < at < place + size:
            head = replace(piece, current=piece.current[: at - place])
            tail = SkillPiece(piece.current[at - place :], (), (), piece.change)
            pieces[index : index + 1] = [head, tail]
            return index + 1
        place += size
    return len(pieces)


def _join_regions(pieces: Sequence[SkillPiece]) -> tuple[SkillPiece, ...]:
    """The pieces with each protected region that changed as one: half of a region is no region."""
    found: list[SkillPiece] = []
    ends = {region.start: region.end for region in REGIONS}
    open_since, end = -1, ""
    for piece in pieces:
        found.append(piece)
        for line in piece.current:
            if not end and (start := next((mark for mark in ends if mark in line), "")):
                open_since, end = len(found) - 1, ends[start]
            if end and end in line:
                found[open_since:] = _join_changed(found[open_since:])
                open_since, end = -1, ""
    return tuple(found)


def _join_changed(part: Sequence[SkillPiece]) -> list[SkillPiece]:
    changed = [piece.change for piece in part if piece.change]
    if not changed or len(part) == 1:
        return list(part)
    current, initial, previous = (
        tuple(line for piece in part for line in getattr(piece, name)) for name in ("current", "initial", "previous")
    )
    return [SkillPiece(current, initial, previous, changed[-1])]


def _name_pieces(pieces: Sequence[SkillPiece]) -> tuple[SkillPiece, ...]:
    """The pieces with an id of its own for each. One that is as in the initial skill again has none."""
    count: dict[str, int] = {}
    named: list[SkillPiece] = []
    for piece in pieces:
        if piece.change and piece.current == piece.initial:
            piece = replace(piece, change="")
        elif piece.change:
            number = count[piece.change] = count.get(piece.change, 0) + 1
            piece = piece if number == 1 else replace(piece, change=f"{piece.change}/{number}")
        named.append(piece)
    return tuple(named)


# ---- the recipe `ledger` --------------------------------------------------------------------------------------------


def _trace_lines(
    records: Sequence[Record], histories: Sequence[LineHistory], initial: Skill, skill: Skill
) -> Iterator[_Change]:
    """The lines of a version one by one, and its notes."""
    known = {history.line.id: _describe_history(history) for history in histories}
    lines, notes, passages = _find_lines(records, skill)
    base = add_notes(initial, notes) if notes else initial
    text = initial
    if base != initial:
        yield _Change("notes", base, ChangeEvidence())
        text = base
    kept = [line for line in lines if line.passage]
    gone = [line for line in passages if line not in kept]
    for count, passage in enumerate(gone, 1):
        text = drop_passages(base, {line.id for line in gone[:count]})
        yield _Change(passage.id, text, known.get(passage.id, ChangeEvidence()))
    proposed = [line for line in lines if not line.passage]
    for count, line in enumerate(proposed, 1):
        text = compose_text(base, [*kept, *proposed[:count]], passages)[0]
        yield _Change(line.id, text, known.get(line.id, ChangeEvidence()))
    if text != skill:
        yield _Change("rest", skill, ChangeEvidence())


class _Parts(NamedTuple):
    """What a version is made of: lines and kept passages in the order of birth, notes, and all passages on trial."""

    lines: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()
    passages: tuple[Line, ...] = ()


def _find_lines(records: Sequence[Record], skill: Skill) -> _Parts:
    """The parts that make a version."""
    initial = records[0].state.initial.skill
    fallback = _Parts()
    for record in reversed(records):
        ledger = record.state.ledger
        if not isinstance(ledger, LineLedger):
            continue
        base = add_notes(initial, ledger.notes) if ledger.notes else initial
        sets = [ledger.get_lines(ledger.working), tuple(line for line in ledger.lines if _is_in(line.edit, skill))]
        if isinstance(record, Step) and record.lines is not None:
            own = [(*each.lines, *each.unread) for each in record.lines.readings if each.skill == skill.hash]
            sets += [ledger.get_lines(ids) for ids in own][:1]
        for lines in sets:
            if ledger.compose(base, lines)[0] == skill:
                return _Parts(lines, ledger.notes, ledger.passages)
        fallback = fallback if fallback.lines else _Parts(sets[1], ledger.notes, ledger.passages)
    return fallback


def _is_in(edit: Edit, skill: Skill) -> bool:
    content, text = edit.content.strip(), skill.read(edit.path) or ""
    return content in text if content else edit.target not in text


def _describe_history(history: LineHistory) -> ChangeEvidence:
    line, worth = history.line, history.assessment
    interval = None
    if worth is not None:
        worth = _turn_around(worth) if line.passage else worth
        reach = 1.96 * worth.deviation
        interval = Interval(max(-1.0, worth.net - reach), min(1.0, worth.net + reach))
    found = ChangeEvidence(
        suspected=history.suspected,
        rollouts=history.rollouts,
        passed=history.passed,
        difference=worth.net if worth else None,
        interval=interval,
        certainty=worth.pays if worth else None,
        alone=True,
        decision=history.status,
    )
    if line.passage:
        left = (event.step for event in reversed(history.events) if event.change in ("left", "retired"))
        return replace(found, step=next(left, 0), passage=describe_passage(history.assessment, line.reason))
    return replace(
        found,
        step=line.born,
        source=line.edit.source,
        learned_from=line.edit.evidence,
        support=line.edit.support,
        situation=line.situation,
        evidence_for=history.evidence_for,
        evidence_against=history.evidence_against,
    )


def _turn_around(found: Assessment) -> Assessment:
    """What leaving a passage out is worth."""
    return Assessment(-found.gain, -found.net, found.deviation, 1 - found.pays)


def _add_replaced(pieces: Sequence[SkillPiece], lines: Mapping[str, Line]) -> tuple[SkillPiece, ...]:
    """The pieces in which a line that replaced another one has that one as what was there before."""

    def add(piece: SkillPiece) -> SkillPiece:
        line = lines.get(piece.change)
        old = lines.get(line.replaces) if line else None
        if old is None or piece.previous:
            return piece
        return replace(piece, previous=pad_like(piece.current, old.edit.content.strip()))

    return tuple(map(add, pieces))


def pad_like(lines: Sequence[str], text: str) -> tuple[str, ...]:
    """A text as lines, with the blank lines around it that other lines have."""
    filled = [at for at, line in enumerate(lines) if line.strip()]
    if not filled:
        return tuple(text.split("\n"))
    return (*lines[: filled[0]], *text.split("\n"), *lines[filled[-1] + 1 :])


def _offer_lines(histories: Iterable[LineHistory]) -> Iterator[SkillChange]:
    """The proposed lines. A passage of the initial skill is no proposal: it is in the text, or a change took it out."""
    for history in (each for each in histories if not each.line.passage):
        line = history.line
        why = f"retired in step {line.retired}: {line.reason}" if line.retired else "not in this text (waiting)"
        if history.working:
            why = "in the working text, not in this version"
        yield replace(_offer_edit(line.id, line.edit, why, _describe_history(history)), pointer=line.pointer)


def _offer_dropped(records: Sequence[Record]) -> Iterator[SkillChange]:
    """Proposals that never became a line."""
    for step in records:
        if isinstance(step, Step):
            for place, fate in enumerate(step.fates, 1):
                if isinstance(fate.item, Edit) and not _is_applied(fate):
                    yield _offer_fate(f"S{step.number}.{place}", fate, fate.status, step)


# ---- the recipe `reflact` -------------------------------------------------------------------------------------------


def _trace_steps(records: Sequence[Record], settings: TrainSettings, initial: Skill, skill: Skill) -> Iterator[_Change]:
    """The changes of the current skill, up to the version or to the candidate that is the version."""
    text = initial
    for record in records:
        if text == skill:
            return
        after = record.state.current.skill
        match record:
            case Step() if record.candidate is not None and skill in (record.candidate, after):
                yield from _split_step(record, settings, text, skill)
                return
            case Step() if after != text:
                yield from _split_step(record, settings, text, after)
            case EpochEnd() if record.slow.candidate is not None and skill in (record.slow.candidate, after):
                yield _Change(f"E{record.epoch}", skill, _describe_guidance(record))
                return
            case EpochEnd() if after != text:
                yield _Change(f"E{record.epoch}", after, _describe_guidance(record))
            case _:
                continue
        text = after
    if text != skill:
        yield _Change("rest", skill, ChangeEvidence())


def _split_step(step: Step, settings: TrainSettings, before: Skill, after: Skill) -> Iterator[_Change]:
    """A step item by item, if its items are edits; then what it noted."""
    text = before
    accepted = step.verdict is not None and step.verdict.decision.accepted
    if step.candidate is not None and (accepted or after == step.candidate):
        made = list(_apply_items(step, settings, before))
        if made and made[-1].skill == step.candidate:
            yield from made
        elif step.candidate != before:
            yield _Change(f"S{step.number}", step.candidate, _describe_step(step))
        text = step.candidate
    if text != after:
        yield _Change(f"S{step.number}.notes", after, ChangeEvidence(step=step.number, decision=step.action))


def _apply_items(step: Step, settings: TrainSettings, text: Skill) -> Iterator[_Change]:
    for place, fate in enumerate(step.fates, 1):
        if isinstance(fate.item, Edit) and _is_applied(fate):
            text, _ = apply_edits(text, [fate.item], lenient=settings.lenient_edits)
            yield _Change(f"S{step.number}.{place}", text, _describe_fate(fate, step))


def _is_applied(fate: Fate) -> bool:
    return fate.status.startswith("applied") or fate.status == "used"


def _offer_items(records: Sequence[Record]) -> Iterator[SkillChange]:
    """Every proposed item of every step, with what became of it."""
    for step in records:
        if not isinstance(step, Step):
            continue
        for place, fate in enumerate(step.fates, 1):
            why = fate.status
            if _is_applied(fate):
                accepted = step.verdict is not None and step.verdict.decision.accepted
                why = "changed again later, or not in this version" if accepted else f"its candidate: {step.action}"
            yield _offer_fate(f"S{step.number}.{place}", fate, why, step)


def _offer_fate(id: str, fate: Fate, why: str, step: Step) -> SkillChange:
    edit = fate.item if isinstance(fate.item, Edit) and fate.status not in REFUSED_STATUSES else None
    if edit is not None:
        return _offer_edit(id, edit, why, _describe_fate(fate, step))
    text = describe_item(fate.item)
    return SkillChange(id=id, included=False, op="add", text=text, why=why, evidence=_describe_fate(fate, step))


def _offer_edit(id: str, edit: Edit, why: str, evidence: ChangeEvidence) -> SkillChange:
    op: Literal["add", "remove", "replace"] = {"delete": "remove", "remove": "remove", "replace": "replace"}.get(
        edit.op, "add"
    )  # pyright: ignore[reportAssignmentType]
    return SkillChange(
        id=id,
        path=edit.path or DOCUMENT,
        included=False,
        op=op,
        text=edit.content.strip("\n"),
        before=edit.target if op != "add" else "",
        why=why,
        tokens=estimate_text(edit.content),
        edit=edit,
        evidence=evidence,
    )


def _describe_fate(fate: Fate, step: Step) -> ChangeEvidence:
    item = fate.item
    return replace(
        _describe_step(step), source=item.source, learned_from=item.evidence, support=item.support or len(item.evidence)
    )


def _describe_step(step: Step) -> ChangeEvidence:
    alone = sum(map(_is_applied, step.fates)) == 1
    return _describe_verdict(ChangeEvidence(step=step.number, decision=step.action, alone=alone), step.verdict)


def _describe_guidance(end: EpochEnd) -> ChangeEvidence:
    evidence = ChangeEvidence(step=end.state.step, epoch=end.epoch, decision=end.slow.action, alone=True)
    return _describe_verdict(evidence, end.slow.verdict)


def _describe_verdict(evidence: ChangeEvidence, verdict: Verdict | None) -> ChangeEvidence:
    paired = verdict.paired if verdict else None
    if not paired:
        return evidence
    return replace(evidence, difference=paired.difference, interval=paired.interval, certainty=paired.better)
