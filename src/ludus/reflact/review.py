"""What a person decides about the changes of a training run, and the skill that comes out.

    with open_review(Path("runs/skill"), settings, secrets) as review:
        review.decide(ReviewDecision(change="L4", action="reject", reason="true for one customer only"))
        done = review.finish(who="ada")

A decision is stored when it is made, so a review can be interrupted and continued; the last decision about a change
counts. `finish` stores a new version of the skill: its text, its parent's hash, all decisions, who made them and when.
The store is the truth. `reviewed/SKILL.md`, `reviewed/review.json` and the line in `events.jsonl` follow from it; a
package is in `reviewed/package/NAME`, with all its files. The next review writes them if a process was killed before it
did. The skill that the run shipped stays as it is.
`list_changes` (`ludus.reflact.review_changes`) says what can be decided; `apply_decisions` is pure.
"""

import hashlib
import shutil
import time
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ludus.encoding import to_json
from ludus.errors import ConfigError, StoreError
from ludus.reflact.ledger.line_records import add_pointer
from ludus.reflact.records import Record
from ludus.reflact.report.run_files import BEST, SkillHead
from ludus.reflact.review_changes import SHIPPED, ChangeList, SkillChange, SkillPiece, list_changes, pad_like
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.training_run import read_records
from ludus.run_events import append_event, read_events
from ludus.run_info import find_kind, read_info, read_state
from ludus.skill import Edit, Skill, SkillFile, apply_edits, remove_markers, render_file
from ludus.skill_folder import render_package, write_package
from ludus.stats import Interval
from ludus.store import RunDir, decode_record

REVIEWED = "reviewed/SKILL.md"
REVIEW_FILE = "reviewed/review.json"
REVIEWED_PACKAGE = "reviewed/package"
"""The folder of the reviewed package. It is written for packages only."""
DECISIONS = "review_decision"
"""The kind of a decision in the store."""
REVIEWS = "review"
"""The kind of a finished review in the store."""
MEASURES = "review_measure"
"""The kind of a measure of a reviewed skill in the store."""

ReviewAction = Literal["accept", "reject", "edit", "revert"]
"""Take the change as it is; put back what the initial skill says there; write another text; or put back what stood
there before the last change of it."""


class ReviewDecision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person decided about one change."""

    change: str
    action: ReviewAction
    reason: str = ""
    text: str = ""
    """The person's own text, for `edit`."""
    who: str = ""
    time: float = 0.0
    """Seconds since 1970."""


class SkillReview(Struct, frozen=True, kw_only=True):
    """A version of a skill that a person chose."""

    number: int
    """1 for the first review of a run, 2 for the second, …"""
    skill: Skill
    parent: str
    """The hash of the version that was reviewed."""
    version: str
    """The name of that version in the run: `shipped`, `step_0003`, …"""
    decisions: tuple[ReviewDecision, ...]
    """The one that counts for each change, in the order of the changes."""
    undecided: tuple[str, ...] = ()
    """Changes of the version about which nothing was decided. They stay as they are."""
    who: str = ""
    time: float = 0.0
    chosen_by: Literal["person"] = "person"


class ReviewMeasure(Struct, frozen=True, kw_only=True):
    """A reviewed skill on the sealed test tasks, beside the initial and the shipped skill."""

    review: int
    skill: str
    """The hash of the reviewed skill."""
    sentence: str
    """The result in words. It says that a person chose the skill."""
    passed: Mapping[str, float | None]
    """The share of test tasks passed by `initial`, `shipped` and `reviewed`."""
    to_initial: "MeasuredDifference | None"
    to_shipped: "MeasuredDifference | None"
    test_split: str
    test_uses: int
    """How many skills were tested on this test split for a claim, this one included, as far as is known."""
    failed: int = 0
    """Rollouts of the three skills without a score."""
    scripts: tuple[str, ...] = ()
    """Scripts of the reviewed package whose checks were run again, and passed."""
    chosen_by: Literal["person"] = "person"
    time: float = 0.0


class MeasuredDifference(Struct, frozen=True):
    """A paired difference on tasks that both skills have a score on."""

    difference: float
    interval: Interval
    tasks: int
    wins: int
    losses: int


class _StoredDecision(Struct, frozen=True):
    """A decision in the store, with the version that it is about."""

    parent: str
    decision: ReviewDecision


_STORED_DECISION = msgspec.json.Decoder(_StoredDecision)
_REVIEW = msgspec.json.Decoder(SkillReview)
_MEASURE = msgspec.json.Decoder(ReviewMeasure)


# ---- decisions ------------------------------------------------------------------------------------------------------


def apply_decisions(listed: ChangeList, decisions: Iterable[ReviewDecision]) -> Skill:
    """The version with the decisions made. A change without a decision stays as it is: in the text, or not in it.

    Raises:
        ConfigError: a decision names no change of the version, lacks a reason or a text, or cannot be made.
    """
    last = {decision.change: decision for decision in decisions}
    for decision in last.values():
        check_decision(listed, decision)
    files = _take_files(listed, last)
    gone = [path for path in listed.skill.paths[1:] if path not in files.paths]
    lines: list[str] = []
    for piece in (each for each in listed.pieces if not each.path):
        if piece.change and piece.change not in last and any(path in "\n".join(piece.current) for path in gone):
            lines += piece.initial  # a line that was written for a file which is not there any more
            continue
        lines += _take_lines(piece, last.get(piece.change) if piece.change else None)
    text = "\n".join(lines)
    if not listed.skill.text.startswith("\n") and not listed.initial.text.startswith("\n"):
        text = text.lstrip("\n")
    added = [(listed.get(id), decision) for id, decision in last.items() if not listed.get(id).included]
    skill = _add_proposed(files.change_text(text), added)
    _ = skill.front  # raises if the front matter is malformed
    return skill


def _take_files(listed: ChangeList, last: Mapping[str, ReviewDecision]) -> Skill:
    """The version with the files that the decisions make. A file of which no line is left is no file."""
    skill, pieces = listed.skill, defaultdict[str, list[SkillPiece]](list)
    for piece in listed.pieces:
        if piece.path:
            pieces[piece.path].append(piece)
    for path, parts in pieces.items():
        lines: list[str] = []
        for piece in parts:
            lines += _take_lines(piece, last.get(piece.change) if piece.change else None)
        text = "\n".join(lines)
        file = listed.skill.get_file(path) or listed.initial.get_file(path)
        if text.strip():
            runs = file.executable if file else text.startswith("#!")
            skill = _put_text(skill, SkillFile(path, text, b"", runs))
        elif listed.skill.read(path) is not None:
            skill = skill.remove_file(path)
    return skill


def _put_text(skill: Skill, file: SkillFile) -> Skill:
    try:
        return skill.put_file(file)
    except ValueError as error:
        raise ConfigError(f"review: {file.path}: {error}") from None


def check_decision(listed: ChangeList, decision: ReviewDecision) -> None:
    """Raise `ConfigError` if a decision cannot be made."""
    change, place = listed.get(decision.change), f"review: {decision.change}"
    if decision.action != "accept" and not decision.reason.strip():
        raise ConfigError(f"{place}: give a reason to {decision.action} it (--reason); it is kept with the decision")
    if decision.action == "edit" and not decision.text.strip():
        raise ConfigError(f"{place}: the new text is empty; to take the change out, reject it")
    if decision.action != "edit" and decision.text:
        raise ConfigError(f"{place}: a text is for the action edit, not for {decision.action}")
    if not change.included and decision.action == "revert":
        raise ConfigError(f"{place} is not in this version ({change.why}), so there is nothing to revert")
    if not change.included and decision.action in ("accept", "edit") and change.edit is None:
        raise ConfigError(f"{place} cannot be added as it is ({change.why}): edit another change to say it")


def _take_lines(piece: SkillPiece, decision: ReviewDecision | None) -> Sequence[str]:
    if decision is None or decision.action == "accept":
        return piece.current
    if decision.action == "reject":
        return piece.initial
    if decision.action == "revert":
        return piece.previous
    own = decision.text.strip("\n")
    is_region = any("<!--" in line for line in piece.current)  # a protected region, which keeps its markers
    return pad_like(piece.current or piece.initial, own if is_region else remove_markers(own))


def _add_proposed(skill: Skill, added: Iterable[tuple[SkillChange, ReviewDecision]]) -> Skill:
    """The skill with proposals that were not in it and that a person wants."""
    for change, decision in added:
        if decision.action == "reject" or change.edit is None:
            continue
        edit: Edit = replace(change.edit, content=decision.text) if decision.action == "edit" else change.edit
        skill, (report,) = apply_edits(skill, [edit])
        if not report.applied:
            raise ConfigError(f"review: {change.id} cannot be added to this text: {report.status}")
        skill = add_pointer(skill, edit.path, change.pointer)
    return skill


# ---- the record -----------------------------------------------------------------------------------------------------


class ReviewState(Struct, frozen=True, kw_only=True):
    """What is known about the review of a version."""

    listed: ChangeList
    decisions: Mapping[str, ReviewDecision]
    """The decision that counts, by change."""
    reviews: tuple[SkillReview, ...]
    """The finished reviews of the run, of any version."""
    measures: tuple[ReviewMeasure, ...]

    @property
    def undecided(self) -> tuple[SkillChange, ...]:
        """Changes of the version about which nothing is decided yet."""
        return tuple(change for change in self.listed.included if change.id not in self.decisions)


def read_review(directory: RunDir, settings: TrainSettings, version: str = SHIPPED) -> ReviewState:
    """The changes of a version, and what was decided about them so far. Reads only."""
    return _make_state(directory, list_changes(_read_training(directory), settings, version))


def read_reviews(directory: RunDir) -> tuple[SkillReview, ...]:
    """The finished reviews of a run, in order."""
    return tuple(decode_record(_REVIEW, body) for _, body in directory.read_records(REVIEWS))


def read_measures(directory: RunDir) -> tuple[ReviewMeasure, ...]:
    """The measures of reviewed skills, in order."""
    return tuple(decode_record(_MEASURE, body) for _, body in directory.read_records(MEASURES))


def _make_state(directory: RunDir, listed: ChangeList) -> ReviewState:
    stored = (decode_record(_STORED_DECISION, body) for _, body in directory.read_records(DECISIONS))
    own = {each.decision.change: each.decision for each in stored if each.parent == listed.skill.hash}
    known = {change.id for change in listed.changes}
    return ReviewState(
        listed=listed,
        decisions={id: decision for id, decision in own.items() if id in known},
        reviews=read_reviews(directory),
        measures=read_measures(directory),
    )


def _read_training(directory: RunDir) -> list[Record]:
    if (kind := find_kind(directory)) != "train":
        raise ConfigError(f"{directory.path} is a run of `ludus {kind}`: only a run of `ludus train` has changes")
    return list(read_records(directory))


class OpenReview:
    """A review of one version, in a run that this process holds the lock of."""

    def __init__(self, directory: RunDir, listed: ChangeList) -> None:
        self._directory = directory
        self.state = _make_state(directory, listed)

    def decide(self, decision: ReviewDecision) -> ReviewState:
        """Store a decision. It is kept when this returns. Raises `ConfigError` if it does not fit the others."""
        apply_decisions(self.state.listed, [*self.state.decisions.values(), decision])
        decision = replace(decision, time=decision.time or time.time())
        body = to_json(_StoredDecision(self.state.listed.skill.hash, decision))
        number = sum(1 for _ in self._directory.read_records(DECISIONS))
        self._directory.put_record(_make_key(DECISIONS, body, number), DECISIONS, body)
        self.state = _make_state(self._directory, self.state.listed)
        return self.state

    def finish(self, who: str) -> SkillReview:
        """Store the version that the decisions make, and write its files."""
        listed, decisions = self.state.listed, self.state.decisions
        if not decisions:
            raise ConfigError("review: nothing was decided yet, so there is no new version")
        skill = apply_decisions(listed, decisions.values())
        before = self.state.reviews
        review = SkillReview(
            number=len(before) + 1,
            skill=skill,
            parent=listed.skill.hash,
            version=listed.version,
            decisions=tuple(decisions[change.id] for change in listed.changes if change.id in decisions),
            undecided=tuple(change.id for change in self.state.undecided),
            who=who,
            time=time.time(),
        )
        if before and _is_same(before[-1], review):
            review = before[-1]
        else:
            body = to_json(review)
            self._directory.put_record(_make_key(REVIEWS, body, review.number), REVIEWS, body)
        write_review_files(self._directory)
        self.state = _make_state(self._directory, listed)
        return self.state.reviews[-1]


def _is_same(one: SkillReview, other: SkillReview) -> bool:
    return (one.skill, one.parent, one.decisions) == (other.skill, other.parent, other.decisions)


def _make_key(kind: str, body: bytes, number: int) -> str:
    return hashlib.sha256(f"{kind}/{number}/".encode() + body).hexdigest()[:32]


@contextmanager
def open_review(
    path: Path, settings: TrainSettings, secrets: Collection[str] = (), version: str = SHIPPED
) -> Generator[OpenReview]:
    """Take the lock of a training run and open the review of one of its versions. `secrets` are masked in what is
    written.

    Raises:
        StoreError: the run is running, or cannot be written.
        ConfigError: it is no training run, or has no such version.
    """
    with RunDir.read(path) as directory:
        listed, recorded = list_changes(_read_training(directory), settings, version), directory.config
    refuse_running(path)
    with RunDir.open(path, recorded, resume=True, secrets=secrets) as directory:
        write_review_files(directory)  # of a review whose process was killed
        yield OpenReview(directory, listed)


def refuse_running(path: Path) -> None:
    """Raise `StoreError` if a run is running, on this machine or another one."""
    info = read_info(path)
    if info is not None and read_state(info) == "running":
        where = f"on {info.host}, pid {info.pid}"
        raise StoreError(f"{path} is running ({where}): review its skill when it has ended, or stop it: ludus ctl stop")


def write_review_files(directory: RunDir) -> None:
    """Write the files of the last review, and its line of `events.jsonl`, if they are not there."""
    reviews = read_reviews(directory)
    if not reviews:
        return
    last = reviews[-1]
    head, body = _read_head(directory), to_json(last)
    text = render_file(last.skill, *head).encode()
    for name, data in ((REVIEWED, text), (REVIEW_FILE, msgspec.json.format(body, indent=2) + b"\n")):
        if not (directory.path / name).is_file() or (directory.path / name).read_bytes() != data:
            directory.write(name, data)
    _write_reviewed_package(directory, last, head)
    noted = {event.facts.get("review") for event in read_events(directory) if event.kind == "review"}
    for review in reviews:
        if review.number not in noted:
            _note_review(directory, review)


def _write_reviewed_package(directory: RunDir, review: SkillReview, head: SkillHead) -> None:
    """Write the package as agents install it. What its front matter says of it follows from the store, too."""
    folder, own = directory.path / REVIEWED_PACKAGE, find_reviewed_package(directory.path, review)
    if own is None:
        shutil.rmtree(folder, ignore_errors=True)  # of a review before this one
        return
    measured = [each.sentence for each in read_measures(directory) if each.skill == review.skill.hash]
    stamp = {
        "ludus-version": f"review-{review.number}",
        "ludus-hash": review.skill.hash,
        "ludus-claim": " ".join((measured or ["a person chose this skill; it was not measured"])[-1].split()),
        "ludus-evidence": f"{directory.path.resolve().name}/{REVIEW_FILE}",
    }
    files = render_package(review.skill, *head, stamp)
    if {path.name for path in folder.glob("*")} == {own.name} and _is_written(files, own):
        return
    if folder.exists() and {path.name for path in folder.iterdir()} != {own.name}:
        shutil.rmtree(folder)
    write_package(files, own)


def _is_written(files: Mapping[str, tuple[bytes, bool]], folder: Path) -> bool:
    there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return there.keys() == files.keys() and all(there[name].read_bytes() == data for name, (data, _) in files.items())


def find_reviewed_package(run: Path, review: SkillReview) -> Path | None:
    """The folder of a reviewed package; None if the skill is one document, which is in `reviewed/SKILL.md` alone."""
    if not review.skill.files:
        return None
    front = review.skill.front
    return run / REVIEWED_PACKAGE / (front.name if front else SkillHead().name)


def find_result(run: Path, review: SkillReview) -> Path:
    """Where a person finds the reviewed skill: the folder of a package, or the file of a document."""
    return find_reviewed_package(run, review) or run / REVIEWED


def _note_review(directory: RunDir, review: SkillReview) -> None:
    counts: dict[str, int] = {}
    for decision in review.decisions:
        counts[decision.action] = counts.get(decision.action, 0) + 1
    words = ", ".join(f"{count} {_PAST[action]}" for action, count in counts.items())
    text = f"review {review.number} of the skill '{review.version}' by a person: {words} → {review.skill.hash}"
    facts = {"review": review.number, "skill": review.skill.hash, "parent": review.parent, "decisions": counts}
    append_event(directory, "review", text, who=review.who, facts=facts)


_PAST = {"accept": "accepted", "reject": "rejected", "edit": "edited", "revert": "reverted"}


def _read_head(directory: RunDir) -> SkillHead:
    """The front matter that the run gave its shipped skill, for a skill that has none."""
    try:
        front = Skill((directory.path / BEST).read_text()).front
    except (OSError, ValueError, ConfigError):
        front = None
    return SkillHead() if front is None else SkillHead(front.name, front.description)


def keep_measure(directory: RunDir, measure: ReviewMeasure) -> None:
    """Store the measure of a reviewed skill, and note it among the events of the run."""
    body = to_json(measure)
    number = len(read_measures(directory))
    directory.put_record(_make_key(MEASURES, body, number), MEASURES, body)
    text = f"review {measure.review} of the skill was measured: {measure.sentence}"
    append_event(directory, "review", text, facts={"measured": measure.review, "skill": measure.skill})
    write_review_files(directory)  # what the package says of itself
