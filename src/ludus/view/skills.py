"""The versions of a trained skill: their texts, the difference of any two, and who wrote which line.

`ludus.reflact.review_changes` finds what a change is, and the evidence for and against it. This is that as pages, with
the rollouts behind each piece of evidence by their ids.
"""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from ludus.errors import ConfigError
from ludus.reflact.records import EpochEnd, MeasuredSkill, Record, Step, find_gate
from ludus.reflact.report.line_histories import RolloutPlace
from ludus.reflact.report.score_curve import compute_score_interval
from ludus.reflact.review import SkillReview, read_reviews
from ludus.reflact.review_changes import SHIPPED, ChangeList, SkillChange, list_changes, list_versions
from ludus.reflact.stages.evaluate import compute_score
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.training_run import read_parts, read_records
from ludus.run_info import find_kind, read_info, read_state
from ludus.skill import DOCUMENT, Skill
from ludus.store import RunDir
from ludus.view.facts import FactCache
from ludus.view.markup import LONGEST, render_markdown, show_hidden
from ludus.view.model import (
    BlamedLine,
    DiffRow,
    LineFate,
    RefusedLine,
    RolloutRef,
    SkillBlame,
    SkillDiff,
    SkillText,
    SkillVersion,
    SkillVersions,
)
from ludus.view.paging import Parameters
from ludus.view.training import read_train_settings

MOST_REFS, MOST_REFUSED, CONTEXT = 40, 300, 3


class _Versions:
    """The versions of a run, in the order in which they were made."""

    def __init__(self, directory: RunDir) -> None:
        if find_kind(directory) != "train":
            raise ConfigError(f"{directory.path} is not a run of `ludus train`: it has no skill versions")
        self.settings: TrainSettings = read_train_settings(directory)
        self.records: list[Record] = list(read_records(directory))
        self.reviews: tuple[SkillReview, ...] = read_reviews(directory)
        gate = self.settings.gate
        self.gate = find_gate(gate, self.records[-1].state) if self.records else gate
        self.named = list_versions(self.records, self.settings) if self.records else {}
        self.skills: dict[str, Skill] = {}
        self.names: dict[str, list[str]] = {}
        for name, skill in self.named.items():
            self.skills.setdefault(skill.hash, skill)
            self.names.setdefault(skill.hash, []).append(name)
        for review in self.reviews:
            self.skills.setdefault(review.skill.hash, review.skill)
            self.names.setdefault(review.skill.hash, []).append(f"review_{review.number}")

    def get(self, hash: str) -> Skill:
        """The version with a hash, or a name such as `shipped`."""
        found = self.skills.get(hash) or self.named.get(hash)
        if found is None:
            raise ConfigError(f"the run has no version '{hash[:40]}' of its skill")
        return found

    def describe(self, hash: str, before: Skill | None = None) -> SkillVersion:
        """A version. Lines are counted against the version before it."""
        skill, names = self.skills[hash], self.names[hash]
        measured = self._find_measured(hash)
        old, new = (before.text if before else "").splitlines(), skill.text.splitlines()
        added, removed = _count_changed(old, new) if before is not None else (0, 0)
        review = next((each for each in self.reviews if each.skill.hash == hash), None)
        return SkillVersion(
            hash=hash,
            origin=names[0],
            step=next((step for step in map(_read_step, names) if step), 0),
            decision=self._decide(hash, names),
            score=compute_score(self.gate, measured) if measured else None,
            interval=compute_score_interval(measured.measure, self.gate) if measured else None,
            characters=len(skill.text),
            lines=len(new),
            tokens=len(skill.text) // 4,
            added=added,
            removed=removed,
            by=review.who if review else "",
            reason="; ".join(each.reason for each in review.decisions if each.reason) if review else "",
        )

    def _find_measured(self, hash: str) -> MeasuredSkill | None:
        for record in reversed(self.records):
            for measured in (record.state.best, record.state.current, record.state.initial):
                if measured.skill.hash == hash and measured.measure is not None:
                    return measured
        return None

    def _decide(self, hash: str, names: Sequence[str]) -> str:
        if SHIPPED in names:
            return "shipped"
        if any(name.startswith("review_") for name in names):
            return "review"
        if "initial" in names:
            return "initial"
        for record in self.records:
            made = record if isinstance(record, Step) else record.slow if isinstance(record, EpochEnd) else None
            if made is not None and made.candidate is not None and made.candidate.hash == hash and made.verdict:
                return "accepted" if made.verdict.decision.accepted else "rejected"
        return "working"

    @property
    def shipped(self) -> str:
        found = self.named.get(SHIPPED) or self.named.get("working")
        return found.hash if found else ""


def _read_step(name: str) -> int:
    number = name.removeprefix("step_")
    return int(number) if name.startswith("step_") and number.isdecimal() else 0


def _count_changed(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    same = sum(block.size for block in difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks())
    return len(new) - same, len(old) - same


def _may_review(path: Path) -> str:
    """Why the skill of a run cannot be reviewed now; empty if it can."""
    info = read_info(path)
    if info is not None and read_state(info) == "running":
        return "the run is still running: stop it first"
    return ""


def list_skills(path: Path) -> SkillVersions:
    """The versions of a run's skill, in their order."""
    with RunDir.read(path) as directory:
        every = _Versions(directory)
    rows, before = list[SkillVersion](), None
    for hash, skill in every.skills.items():
        rows.append(every.describe(hash, before))
        before = skill
    why = _may_review(path) or ("" if every.records else "nothing is finished yet")
    initial = every.named.get("initial")
    return SkillVersions(
        versions=tuple(rows),
        total=len(rows),
        shipped=every.shipped,
        initial=initial.hash if initial else "",
        can_review=not why,
        why_not=why,
    )


def show_skill(path: Path, hash: str) -> SkillText:
    """A version as text and as HTML."""
    with RunDir.read(path) as directory:
        every = _Versions(directory)
    skill = every.get(hash)
    text = skill.text
    html = render_markdown(text) if len(text) <= 10 * LONGEST else ""
    return SkillText(version=every.describe(skill.hash), text=show_hidden(text), html=html)


# ---- two versions -------------------------------------------------------------------------------------------------


def compare_skills(path: Path, given: Parameters) -> SkillDiff:
    """Two versions side by side."""
    with RunDir.read(path) as directory:
        every = _Versions(directory)
    left, right = every.get(given.get("left") or "initial"), every.get(given.get("right") or every.shipped)
    rows = list(compare_lines(left.text.splitlines(), right.text.splitlines()))
    return SkillDiff(
        left=every.describe(left.hash),
        right=every.describe(right.hash),
        rows=tuple(rows if given.is_set("all") else _skip_equal(rows)),
        added=sum(row.kind in ("added", "changed") for row in rows),
        removed=sum(row.kind in ("removed", "changed") for row in rows),
    )


def compare_lines(left: Sequence[str], right: Sequence[str]) -> Iterator[DiffRow]:
    """Two texts as rows, side by side. Pure."""
    for tag, a, b, c, d in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if tag == "equal":
            for n in range(b - a):
                yield _make_row("same", left[a + n], right[c + n], a + n + 1, c + n + 1)
            continue
        both = min(b - a, d - c)
        for n in range(both):
            yield _compare_row(left[a + n], right[c + n], a + n + 1, c + n + 1)
        for n in range(a + both, b):
            yield _make_row("removed", left[n], "", n + 1, 0)
        for n in range(c + both, d):
            yield _make_row("added", "", right[n], 0, n + 1)


def _make_row(kind: str, left: str, right: str, left_number: int, right_number: int) -> DiffRow:
    return DiffRow(
        kind=kind,
        left=show_hidden(left),
        right=show_hidden(right),
        left_number=left_number,
        right_number=right_number,
    )


def _compare_row(left: str, right: str, left_number: int, right_number: int) -> DiffRow:
    """A changed line, with the characters that differ."""
    old, new = show_hidden(left), show_hidden(right)
    if max(len(old), len(new)) > 2000:
        return _make_row("changed", left, right, left_number, right_number)
    codes = [
        code for code in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if code[0] != "equal"
    ]
    return DiffRow(
        kind="changed",
        left=old,
        right=new,
        left_number=left_number,
        right_number=right_number,
        left_marks=tuple((a, b) for _, a, b, _, _ in codes if b > a),
        right_marks=tuple((c, d) for _, _, _, c, d in codes if d > c),
    )


def _skip_equal(rows: Sequence[DiffRow]) -> Iterator[DiffRow]:
    """The rows without equal lines that are far from a change."""
    near = [False] * len(rows)
    for place, row in enumerate(rows):
        if row.kind != "same":
            for n in range(max(0, place - CONTEXT), min(len(rows), place + CONTEXT + 1)):
                near[n] = True
    skipped = 0
    for row, shown in zip(rows, near, strict=True):
        if not shown:
            skipped += 1
            continue
        if skipped:
            yield DiffRow(kind="skipped", count=skipped)
        skipped = 0
        yield row
    if skipped:
        yield DiffRow(kind="skipped", count=skipped)


# ---- blame --------------------------------------------------------------------------------------------------------


def blame_skill(path: Path, hash: str, cache: FactCache) -> SkillBlame:
    """Each line of a version: who put it there, and the evidence for and against it."""
    with cache.open(path) as facts:
        every = _Versions(facts.directory)
        skill = every.get(hash)
        name = next((n for n in every.names[skill.hash] if n in every.named), "")
        review = next((each for each in every.reviews if each.skill.hash == skill.hash), None)
        listed = list_changes(every.records, every.settings, name or (review.version if review else SHIPPED))
        ids = _RolloutIds(facts.directory, every.records)
        lines = tuple(_blame_lines(skill, listed, review, ids))
        refused = [_refuse_line(change, ids) for change in listed.changes if not change.included]
    why = _may_review(path)
    return SkillBlame(
        version=every.describe(skill.hash),
        lines=lines,
        refused=tuple(refused[:MOST_REFUSED]),
        refused_total=len(refused),
        can_review=not why,
        why_not=why,
    )


class _RolloutIds:
    """The ids of training rollouts by step and task."""

    def __init__(self, directory: RunDir, records: Sequence[Record]) -> None:
        self._ids: dict[tuple[int, str], int] = {}
        keys: dict[str, int] = {}
        for record, outcomes in read_parts(directory):
            if isinstance(record, Step):
                keys |= dict.fromkeys(outcomes, record.number)
        for key, row in directory.query("SELECT key, rollout FROM outcomes"):
            if key in keys:
                found = next(
                    directory.query("SELECT json_extract(body, '$.task.id') FROM rollouts WHERE id = ?", (row,))
                )
                self._ids.setdefault((keys[key], found[0]), row)

    def list(self, places: Sequence[RolloutPlace]) -> tuple[RolloutRef, ...]:
        return tuple(
            RolloutRef(place.step, place.task, self._ids.get((place.step, place.task))) for place in places[:MOST_REFS]
        )


def _blame_lines(
    skill: Skill, listed: ChangeList, review: SkillReview | None, ids: _RolloutIds
) -> Iterator[BlamedLine]:
    """The lines of a skill: of the document, then of each file of its package, below a line with the path."""
    count = 0
    for path in skill.paths:
        text = skill.read(path)
        if path != DOCUMENT:
            count += 1
            head = show_hidden(f"==== {path} ====")
            yield BlamedLine(number=count, text=head, origin="initial_skill", by="", tokens=0)
        if text is not None:
            for line in _blame_text(text, path, listed, review, ids):
                count += 1
                yield replace(line, number=count)


def _blame_text(
    text: str, path: str, listed: ChangeList, review: SkillReview | None, ids: _RolloutIds
) -> Iterator[BlamedLine]:
    """The lines of one text. Those of a review that are in no version of training are the person's."""
    own = "" if path == DOCUMENT else path
    origins = [(line, piece.change) for piece in listed.pieces if piece.path == own for line in piece.current]
    if not origins:  # no piece of a file: nothing in it changed
        origins = [(line, "") for line in (listed.skill.read(path) or "").split("\n")]
    changes = {change.id: change for change in listed.changes}
    texts = text.splitlines()
    known = [line.rstrip("\n") for line, _ in origins]
    matches = difflib.SequenceMatcher(None, known, texts, autojunk=False).get_matching_blocks()
    place = {block.b + n: block.a + n for block in matches for n in range(block.size)}
    decided = {each.change: each for each in review.decisions} if review else {}
    for number, line in enumerate(texts):
        change = changes.get(origins[place[number]][1]) if number in place else None
        if change is None:
            by = review.who if review and number not in place else ""
            origin = f"review_{review.number}" if by and review else "initial_skill"
            yield BlamedLine(number=number + 1, text=show_hidden(line), origin=origin, by=by, tokens=len(line) // 4)
        else:
            by = decided[change.id].who if change.id in decided else ""
            yield _blame_line(number + 1, line, change, by, ids)


def _blame_line(number: int, text: str, change: SkillChange, by: str, ids: _RolloutIds) -> BlamedLine:
    found = change.evidence
    return BlamedLine(
        number=number,
        text=show_hidden(text),
        origin=f"step_{found.step:04d}" if found.step else f"epoch {found.epoch}",
        step=found.step,
        line=change.id,
        reason=show_hidden(change.why),
        status="working",
        situation=show_hidden(found.situation),
        works=found.certainty,
        worth=found.difference,
        interval=found.interval,
        pays=found.certainty,
        tokens=len(text) // 4,
        evidence_for=ids.list(found.evidence_for),
        evidence_against=ids.list(found.evidence_against),
        suspected=ids.list(found.suspected),
        proposed_from=ids.list([RolloutPlace(found.step, task) for task in found.learned_from]),
        more=max(0, len(found.evidence_for) - MOST_REFS) + max(0, len(found.evidence_against) - MOST_REFS),
        rollouts=found.rollouts,
        passed=found.passed,
        history=(LineFate(found.step, found.decision or "written"),),
        by=by,
    )


def _refuse_line(change: SkillChange, ids: _RolloutIds) -> RefusedLine:
    found = change.evidence
    return RefusedLine(
        text=show_hidden((change.text or change.before)[:4000]),
        step=found.step,
        status=show_hidden(found.decision or change.op),
        reason=show_hidden(change.why),
        line=change.id,
        source=found.source,
        worth=found.difference,
        interval=found.interval,
        evidence_for=ids.list(found.evidence_for),
        evidence_against=ids.list(found.evidence_against),
    )
