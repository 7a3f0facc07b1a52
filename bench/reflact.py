"""Measure the cost of skill training without the time of the models, and compare it with SkillOpt.

    $ python bench/reflact.py                 Ludus, and SkillOpt if it is installed
    $ python bench/reflact.py --peers         install SkillOpt first (about 160 MB, once)
    $ python bench/reflact.py --short         one round, a store of 100,000 outcomes

Both train the same skill on the same questions with the same two models, which are functions (`peers/skill_world.py`).
All stages are on: 12 steps of 40 train questions, 40 selection questions, a gated slow update, optimizer memory, and
the final test. SkillOpt uses its SearchQA adapter with 64 workers and does not use its model clients. Ludus runs 64
rollouts at a time and stores each in its run directory. A run is valid only if both make the same decisions.

CPU per step is measured with models that reply at once. Wall time is measured with models that take 50 ms, once with
the 40 questions of a step in one batch and once in four (gradient accumulation). With one batch, nearly every stage
needs the result of the previous one, so only overhead can be saved. Batches are independent, and Ludus runs them
concurrently. The target for wall time applies to four batches. On a busy machine CPU time is more reliable.

Then two figures of Ludus alone: the time to resume a finished run of 40 steps, from the start of the process to its
end, and the CPU time to find one outcome in a store of a million. Not measured: agents with tools and sandboxes, whose
rollouts are so long that these costs are small.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from common import (
    CACHE,
    ROOT,
    Check,
    CommandFailed,
    describe_machine,
    find_venv,
    make_venv,
    print_verdict,
    render_table,
)
from peers.skill_world import Reading

DRIVERS = ROOT / "bench" / "peers"
PEER = "skillopt"
REQUIREMENTS = ("skillopt==0.2.0",)

MIN_LEAD = 5.0
"""CPU per step: SkillOpt divided by Ludus."""
MAX_WALL = 0.5
"""Wall time at 50 ms: Ludus divided by SkillOpt."""
MAX_RESUME_SECONDS = 2.0
MAX_LOOK_UP_US = 50.0


@dataclass(frozen=True)
class Case:
    """The delay of the models, and the batches per step."""

    name: str
    delay_ms: int
    batches: int


CPU = Case("models at once", 0, 1)
ONE = Case("50 ms, 1 batch per step", 50, 1)
FOUR = Case("50 ms, 4 batches per step", 50, 4)


@dataclass(frozen=True)
class Pair:
    """The readings of one case. Those of SkillOpt may be missing."""

    case: Case
    ours: Reading
    theirs: Reading | None

    @property
    def trouble(self) -> str:
        """Why the two readings cannot be compared."""
        if self.theirs is None:
            return "not run"
        same = ("steps", "accepted", "test")
        differ = [name for name in same if getattr(self.ours, name) != getattr(self.theirs, name)]
        return f"they differ in {', '.join(differ)}" if differ else ""


# ---- measuring ----------------------------------------------------------------------------------------------------


def run_driver(python: Path, driver: str, *arguments: object) -> dict[str, Any]:
    """Run a driver in a new process. Returns the JSON of its last line."""
    command = [str(python), str(DRIVERS / driver), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise CommandFailed(f"{driver}: exit {done.returncode}\n{done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def take_median(readings: Sequence[Reading]) -> Reading:
    """Take the median of each figure over the rounds."""
    cpu = median(reading.cpu_seconds for reading in readings)
    wall = median(reading.wall_seconds for reading in readings)
    return replace(readings[0], cpu_seconds=cpu, wall_seconds=wall)


def run_rounds(cases: Sequence[Case], theirs: Path | None, count: int) -> list[Pair]:
    """Run `count` rounds. Each round runs all cases on both systems, so load of the machine affects all of them."""
    sides = {"run_reflact.py": Path(sys.executable)} | ({"run_skillopt.py": theirs} if theirs else {})
    taken: dict[tuple[Case, str], list[Reading]] = {(case, driver): [] for case in cases for driver in sides}
    for number in range(1, count + 1):
        for case, driver in taken:
            print(f"round {number} of {count}: {driver}, {case.name} …", file=sys.stderr)
            figures = run_driver(sides[driver], driver, case.delay_ms, case.batches)
            taken[case, driver].append(Reading(**figures))
    return [
        Pair(
            case,
            take_median(taken[case, "run_reflact.py"]),
            take_median(taken[case, "run_skillopt.py"]) if theirs else None,
        )
        for case in cases
    ]


def time_resume(rounds: int) -> float:
    """Measure a process that resumes a finished run, from its start to its end, in seconds."""
    ours = Path(sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        assert run_driver(ours, "run_reflact.py", "keep", run)["steps"] == 40
        seconds = []
        for _ in range(rounds):
            started = time.perf_counter()
            assert run_driver(ours, "run_reflact.py", "keep", run)["steps"] == 40
            seconds.append(time.perf_counter() - started)
    return median(seconds)


def find_peer_python(cache: Path, peers: bool | None) -> Path | None:
    """Find the Python that has SkillOpt.

    `peers`: True installs SkillOpt, None uses it if it is installed, False does not use it.
    """
    if peers is False:
        return None
    if peers:
        return make_venv(cache / PEER, REQUIREMENTS)
    return find_venv(cache / PEER, REQUIREMENTS)


# ---- judging ------------------------------------------------------------------------------------------------------


def render_report(pairs: Sequence[Pair]) -> str:
    head = ("case", "system", "CPU ms/step", "wall s", "accepted", "test", "note")
    lines: list[tuple[object, ...]] = []
    for pair in pairs:
        for side in (pair.ours, pair.theirs):
            if side is not None:
                note = "" if side is pair.ours else pair.trouble
                figures = (side.cpu_ms_per_step, side.wall_seconds, f"{side.accepted} of {side.steps}", side.test)
                lines.append((pair.case.name, side.system, *figures, note))
    return render_table([head, *lines])


def make_checks(pairs: Sequence[Pair], resume: float, look_up: float, outcomes: int) -> tuple[list[Check], list[str]]:
    """Make the checks against the targets, and notes on missing figures."""
    found: list[Check] = []
    notes: list[str] = []
    for pair in pairs:
        if pair.trouble or pair.theirs is None:
            notes.append(f"{pair.case.name}: {PEER} {pair.trouble}")
        elif pair.case is CPU:
            lead = pair.theirs.cpu_ms_per_step / pair.ours.cpu_ms_per_step
            found.append(Check(f"CPU lead over {PEER}", lead, MIN_LEAD, "x", at_least=True))
        else:
            share = pair.ours.wall_seconds / pair.theirs.wall_seconds
            found.append(
                Check(f"wall at {pair.case.name}", share, MAX_WALL if pair.case is FOUR else None, "of theirs")
            )
    found.append(Check("resume of 40 steps", resume, MAX_RESUME_SECONDS, "s"))
    found.append(Check(f"look-up in {outcomes:,} outcomes", look_up, MAX_LOOK_UP_US, "µs CPU"))
    return found, notes


def main() -> int:
    parser = argparse.ArgumentParser(description="Skill training: overhead, overlap, resume, store.")
    parser.add_argument(
        "--peers", action=argparse.BooleanOptionalAction, help="install and run SkillOpt, or do not run it"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="one round and a small store")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for SkillOpt")
    arguments = parser.parse_args()
    rounds, outcomes = (1, 100_000) if arguments.short else (arguments.rounds, 1_000_000)
    theirs = find_peer_python(arguments.cache, arguments.peers)
    pairs = run_rounds((CPU, ONE, FOUR), theirs, rounds)
    resume = time_resume(rounds)
    print(f"filling a store with {outcomes:,} outcomes …", file=sys.stderr)
    look_up = run_driver(Path(sys.executable), "run_store.py", outcomes)["microseconds"]
    print(f"\nSkill training on {describe_machine()}\n\n{render_report(pairs)}\n")
    found, notes = make_checks(pairs, resume, look_up, outcomes)
    return print_verdict("reflact", found, notes=notes)


if __name__ == "__main__":
    sys.exit(main())
