"""The files of an RL run, written as its records arrive: `steps.jsonl` and `summary.json`."""

from collections.abc import Sequence
from typing import Any

import msgspec

from ludus.encoding import to_json
from ludus.rl.records import RlStep, encode_step, find_best_step
from ludus.rl.run_health import find_troubles
from ludus.store import RunDir

STEPS, SUMMARY, CHECKPOINTS = "steps.jsonl", "summary.json", "checkpoints"


class RlRecorder:
    """Writes the files of a run as its records arrive."""

    def __init__(self, run: RunDir) -> None:
        self.records: list[RlStep] = []
        self._run = run
        run.repair(STEPS)
        lines = list(run.read_lines(STEPS))
        self.known = len(lines) - 1
        """The last step that an earlier process had written; -1: there was none."""
        self._written: list[bytes] = lines

    def add(self, record: RlStep) -> None:
        self.records.append(record)
        line, place = encode_step(record), len(self.records) - 1
        if self._written[place : place + 1] != [line]:
            if place < len(self._written):  # computed again after a resume, with other groups
                self._written = self._written[:place]
                self._run.write(STEPS, (old + b"\n" for old in self._written))
            self._written.append(line)
            self._run.append(STEPS, line)

    def finish(self) -> None:
        """Write the summary. Called also after an error."""
        self._run.write(SUMMARY, msgspec.json.format(to_json(summarize_steps(self.records)), indent=2) + b"\n")


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
