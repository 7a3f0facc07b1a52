"""What a training run leaves behind for people and programs, beside its store.

    steps.jsonl      a line for the baseline, each step and each epoch's end, as they happen
    summary.json     what the run came to
    best/SKILL.md    the skill with the highest score on the selection split so far
    final/SKILL.md   the skill as it is now; at the end, the final one
    report.html      all of it to look at

A skill that began without a head gets one in its file, so that agents find it; `ludus.skill.from_file` takes it off
again. All of the files are made from the records that `train` yields, and a resumed run, which yields the earlier
records again, leaves equal ones: lines that are there are not written twice. Equal runs have equal `steps.jsonl` and
skills to the byte: how long things took is in `summary.json` and the report only.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ludus.reflact.gate import Gate
from ludus.reflact.records import Held, Record, Summary
from ludus.reflact.report.training_page import render, times
from ludus.reflact.stages.evaluate import score_of
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.training_run import RECORDS
from ludus.skill import as_file
from ludus.store import RunDir
from ludus.types import to_json

STEPS = "steps.jsonl"
SUMMARY = "summary.json"
BEST = "best/SKILL.md"
FINAL = "final/SKILL.md"
REPORT = "report.html"

_EVERY = 10.0
"""Seconds between two reports while the run goes on."""


def line(record: Record, gate: Gate) -> bytes:
    """A record as a line of `steps.jsonl`: the state after it in short, and no times."""
    plain = msgspec.json.decode(to_json(record), type=dict[str, Any])
    plain.pop("seconds", None)
    plain["state"] = {
        "epoch": record.state.epoch,
        "step": record.state.step,
        "current": _held(record.state.current, gate),
        "best": _held(record.state.best, gate),
    }
    return to_json(plain)


def summary(record: Summary, records: Sequence[Record]) -> bytes:
    """The content of `summary.json`; times are those of all records, in whatever process they were made."""
    plain = msgspec.json.decode(to_json(record), type=dict[str, Any])
    del plain["state"]
    plain["seconds"] = times(records)
    return msgspec.json.format(to_json(plain), indent=2) + b"\n"


def _held(held: Held, gate: Gate) -> dict[str, Any]:
    return {"skill": held.skill.hash, "origin": held.origin, "score": score_of(gate, held)}


class Head(NamedTuple):
    """What the file of a skill says about it, if the skill does not."""

    name: str = "task-skill"
    description: str = "What to know and to do for tasks of this kind."


class Recorder:
    """Writes the files of a run as its records come in."""

    def __init__(self, run: RunDir, settings: TrainSettings, facts: Mapping[str, str], head: Head = Head()) -> None:
        self.records: list[Record] = []
        self._run = run
        self._settings = settings
        self._facts = dict(facts)
        self._head = head
        run.repair(STEPS)
        self._lines = list(run.read_lines(STEPS))
        self.known = sum(1 for _ in run.records(RECORDS))
        """How many of the records to come were made earlier."""
        self._skills: dict[str, str] = {}
        self._reported = time.monotonic()

    def add(self, record: Record) -> None:
        self.records.append(record)
        if isinstance(record, Summary):
            self._run.write(SUMMARY, summary(record, self.records))
        else:
            self._log(line(record, self._settings.gate))
        if isinstance(record, Summary) or len(self.records) >= self.known:  # else the files are ahead of it
            self._skill(BEST, record.state.best)
            self._skill(FINAL, record.state.current)
        if time.monotonic() - self._reported > _EVERY:
            self.report()

    def report(self) -> None:
        """Draw the report anew; also to be called when the run ends, however it does."""
        name = self._run.path.resolve().name
        self._run.write(REPORT, render(name, self._facts, self._settings, self.records))
        self._reported = time.monotonic()

    def _log(self, new: bytes) -> None:
        place = len([record for record in self.records if not isinstance(record, Summary)]) - 1
        if place < len(self._lines) and self._lines[place] == new:
            return
        if place < len(self._lines):  # somebody else's line: what follows from it cannot stand either
            self._lines = self._lines[:place]
            self._run.write(STEPS, (kept + b"\n" for kept in self._lines))
        self._lines.append(new)
        self._run.append(STEPS, new)

    def _skill(self, name: str, held: Held) -> None:
        if self._skills.get(name) != held.skill.text:
            self._skills[name] = held.skill.text
            self._run.write(name, as_file(held.skill, *self._head).encode())
