"""The files of an RL run, written as its records arrive: `steps.jsonl`, `summary.json` and the page `report.html`."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ludus.encoding import to_json
from ludus.rl.records import RlStep, encode_step, find_best_step
from ludus.rl.run_health import find_troubles
from ludus.store import RunDir

STEPS, SUMMARY, REPORT, CHECKPOINTS = "steps.jsonl", "summary.json", "report.html", "checkpoints"

RenderPage = Callable[[str, Mapping[str, str], Sequence[RlStep]], bytes]


class RlRecorder:
    """Writes the files of a run as its records arrive."""

    _EVERY = 5.0
    """Seconds between two pages while the run is going on."""

    def __init__(self, run: RunDir, facts: dict[str, str], render_page: RenderPage) -> None:
        self.records: list[RlStep] = []
        self._run = run
        self._facts = facts
        self._render_page = render_page
        run.repair(STEPS)
        lines = list(run.read_lines(STEPS))
        self.known = len(lines) - 1
        """The last step that an earlier process had written; -1: there was none."""
        self._written: list[bytes] = lines
        self._reported = 0.0

    def add(self, record: RlStep) -> None:
        self.records.append(record)
        line, place = encode_step(record), len(self.records) - 1
        if self._written[place : place + 1] != [line]:
            if place < len(self._written):  # computed again after a resume, with other groups
                self._written = self._written[:place]
                self._run.write(STEPS, (old + b"\n" for old in self._written))
            self._written.append(line)
            self._run.append(STEPS, line)
        if time.monotonic() - self._reported > self._EVERY:
            self._write_page()

    def finish(self) -> None:
        """Write the page and the summary. Called also after an error."""
        self._write_page()
        self._run.write(SUMMARY, msgspec.json.format(to_json(summarize_steps(self.records)), indent=2) + b"\n")

    def _write_page(self) -> None:
        self._run.write(REPORT, self._render_page(self._run.path.resolve().name, self._facts, self.records))
        self._reported = time.monotonic()


def summarize_steps(records: Sequence[RlStep]) -> dict[str, Any]:
    """The result of a run: the first and the last numbers, and the totals."""
    updates = [record for record in records if record.step]
    held = [record for record in records if record.held_out is not None]
    best = find_best_step(records)
    return {
        "troubles": find_troubles(records),
        "best_step": best.step if best is not None else None,
        "steps": len(updates),
        "version": records[-1].version if records else 0,
        "reward": {"first": updates[0].reward, "last": updates[-1].reward} if updates else None,
        "held_out": [{"step": record.step, **msgspec.to_builtins(record.held_out)} for record in held],
        "rollouts": sum(record.rollouts for record in updates),
        "evaluated": sum(_count_evaluated(record) for record in held),
        "failed": sum(record.failed for record in updates),
        "suspects": sum(record.suspects for record in updates),
        "seconds": sum(record.seconds.get("whole", 0.0) for record in records),
    }


def _count_evaluated(record: RlStep) -> int:
    """The rollouts of an evaluation."""
    held = record.held_out
    return 0 if held is None else held.rollouts if isinstance(held.rollouts, int) else held.tasks
