"""The files that a training run writes for people and programs, besides its store.

    steps.jsonl        a line for the baseline, each step and each end of an epoch, as they happen
    summary.json       the result of the run, its claim first
    best/SKILL.md      the skill that is shipped, with the files of its package; until the end, the best one so far
    package/NAME/      the same for agents, at the end: in a folder of its name, with the claim in its front matter
    best-on-selection/SKILL.md  the one with the highest score on the selection split (recipe `reflact`)
    final/SKILL.md     the current skill; at the end, the final one
    report.html        its pages in one file, written when the run ends (`ludus.view.report`)

A skill without front matter gets some in its file, so that agents find it; `ludus.skill.parse_file` removes it again.
All files are made from the records that `train` yields. A resumed run yields the earlier records again and writes equal
files: a line that is there is not written twice. Equal runs have byte-equal `steps.jsonl` and skills; times are only in
`summary.json` and the report.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.reflact.gate import Gate
from ludus.reflact.records import Claim, MeasuredSkill, Record, Summary, find_gate
from ludus.reflact.report.run_words import sum_times
from ludus.reflact.stages.evaluate import compute_score
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.training_run import RECORDS
from ludus.skill import Skill, render_file
from ludus.skill_folder import render_package, write_package
from ludus.store import RunDir

STEPS = "steps.jsonl"
SUMMARY = "summary.json"
BEST = "best/SKILL.md"
BEST_ON_SELECTION = "best-on-selection/SKILL.md"
FINAL = "final/SKILL.md"
PACKAGE = "package"


def encode_line(record: Record, gate: Gate) -> bytes:
    """A record as a line of `steps.jsonl`, with a short form of its state and without times."""
    plain = msgspec.json.decode(to_json(record), type=dict[str, Any])
    plain.pop("seconds", None)
    plain["state"] = {
        "epoch": record.state.epoch,
        "step": record.state.step,
        "metric": (gate := find_gate(gate, record.state)).metric,
        "current": _describe_skill(record.state.current, gate),
        "best": _describe_skill(record.state.best, gate),
    }
    return to_json(plain)


def encode_summary(record: Summary, records: Sequence[Record]) -> bytes:
    """The content of `summary.json`. Its times cover all records, including those of earlier processes."""
    plain = msgspec.json.decode(to_json(record), type=dict[str, Any])
    del plain["state"]
    plain["seconds"] = sum_times(records)
    plain = {"claim": plain["claim"], **plain}  # what counts comes first
    return msgspec.json.format(to_json(plain), indent=2) + b"\n"


def _describe_skill(measured: MeasuredSkill, gate: Gate) -> dict[str, Any]:
    return {"skill": measured.skill.hash, "origin": measured.origin, "score": compute_score(gate, measured)}


def make_stamp(shipped: MeasuredSkill, claim: Claim | None, run: str) -> dict[str, str]:
    """What the front matter of a shipped skill says of it: version, hash, the claim with its interval, the evidence."""
    said = "nothing was tested" if claim is None else " ".join(claim.sentence.split())
    if claim is not None and claim.interval is not None and claim.difference is not None:
        low, high = (f"{100 * bound:+.1f}" for bound in (claim.interval.low, claim.interval.high))
        said += f" [{100 * claim.difference:+.1f} points, 95 % {low} to {high}, {claim.tasks} tasks]"
    return {
        "ludus-version": shipped.origin,
        "ludus-hash": shipped.skill.hash,
        "ludus-claim": said.replace("---", "-"),  # a row of hyphens ends front matter for some readers
        "ludus-evidence": f"{run}/{SUMMARY}",
    }


def find_tested_skills(run: Path, test_split: str) -> frozenset[str]:
    """The hashes of the skills that other runs in the same folder have tested on this test split."""
    found: set[str] = set()
    for path in run.parent.glob(f"*/{SUMMARY}"):
        if path.parent.name == run.name:
            continue
        try:
            claim = msgspec.json.decode(path.read_bytes(), type=_ClaimFile).claim
        except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
            continue
        if claim is not None and claim.test_split == test_split:
            found.add(claim.skill)
    return frozenset(found)


class _ClaimFile(msgspec.Struct):
    """The part of `summary.json` that counts uses of test splits."""

    claim: Claim | None = None


class SkillHead(NamedTuple):
    """The front matter for the file of a skill that has none."""

    name: str = "task-skill"
    description: str = "What to know and to do for tasks of this kind."


class RunRecorder:
    """Writes the files of a run as its records arrive."""

    def __init__(self, run: RunDir, settings: TrainSettings, head: SkillHead = SkillHead()) -> None:
        self.records: list[Record] = []
        self._run = run
        self._settings = settings
        self._head = head
        run.repair(STEPS)
        self._lines = list(run.read_lines(STEPS))
        self.known = sum(1 for _ in run.read_records(RECORDS))
        """The number of records in the store, which the run will yield first."""
        self.taken = 0
        """The number of records that the run has yielded. A summary with the arms of the claim replaces the one
        without."""
        self._skills: dict[str, Skill] = {}

    def add(self, record: Record) -> None:
        self.taken += 1
        if isinstance(record, Summary) and self.records and isinstance(self.records[-1], Summary):
            self.records.pop()
        self.records.append(record)
        if isinstance(record, Summary):
            self._run.write(SUMMARY, encode_summary(record, self.records))
        else:
            self._write_line(encode_line(record, self._settings.gate))
        if self.taken >= self.known:
            self._drop_lines_after()
        if isinstance(record, Summary) or self.taken >= self.known:  # else the files are newer than this record
            self._write_skill(BEST, record.state.best.skill)
            if isinstance(record, Summary):
                self._write_shipped(record)
            self._write_skill(FINAL, record.state.current.skill)
            if (best := _find_best_on_selection(record)) is not None:
                self._write_skill(BEST_ON_SELECTION, best)

    def _write_line(self, new: bytes) -> None:
        place = len([record for record in self.records if not isinstance(record, Summary)]) - 1
        if place < len(self._lines) and self._lines[place] == new:
            return
        if place < len(self._lines):  # a line of another run: it and all lines after it are replaced
            self._lines = self._lines[:place]
            self._run.write(STEPS, (line + b"\n" for line in self._lines))
        self._lines.append(new)
        self._run.append(STEPS, new)

    def _drop_lines_after(self) -> None:
        """Remove what follows the last record's line. All lines of the store's records are written by now."""
        count = sum(not isinstance(record, Summary) for record in self.records)
        if count < len(self._lines):
            self._lines = self._lines[:count]
            self._run.write(STEPS, (line + b"\n" for line in self._lines))

    def _write_skill(self, name: str, skill: Skill) -> None:
        before = self._skills.get(name)
        if before == skill:
            return
        self._skills[name] = skill
        folder = (self._run.path / name).parent
        if skill.files or (before and before.files):
            write_package(render_package(skill, *self._head), folder)
        else:
            self._run.write(name, render_file(skill, *self._head).encode())

    def _write_shipped(self, record: Summary) -> None:
        """Write the shipped skill as agents install it, with its claim. The form wants a folder of the skill's name, so
        a document whose own front matter is not in that form is in `best` only."""
        best = record.state.best
        try:
            front = best.skill.front
        except ConfigError:
            return
        if not best.skill.text.strip():
            return
        name = front.name if front else self._head.name
        stamp = make_stamp(best, record.claim, self._run.path.resolve().name)
        write_package(render_package(best.skill, *self._head, stamp), self._run.path / PACKAGE / name)


def _find_best_on_selection(record: Record) -> Skill | None:
    """The skill with the highest score on the selection split so far; None where nothing is measured there."""
    if not isinstance(record, Summary):
        return None if record.state.ledger else record.state.best.skill
    return record.best_on_selection.skill if record.best_on_selection else None
