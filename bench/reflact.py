"""What training in words costs beside the model's own time, side by side with SkillOpt.

    $ python bench/reflact.py                 ours, and SkillOpt if it is installed already
    $ python bench/reflact.py --peers         install it first (about 160 MB, once)
    $ python bench/reflact.py --short         one round, a store of 100,000 outcomes

Both train the same skill on the same questions with the same two models, which are functions (`peers/skill_world.py`),
with every stage on: 12 steps of 40 train questions, 40 questions to select on, the slow update gated, optimizer memory,
the test at the end. SkillOpt runs its own SearchQA adapter with 64 workers, and none of its model clients; ours runs 64
rollouts at a time and commits each to its run directory. A run counts only if both come to the same decisions.

CPU per step is taken with models that answer at once. Wall time is taken with models that take 50 ms, once with a
step's 40 questions in one batch and once in four (gradient accumulation). In one batch nearly every stage needs the one
before it, so what is left to gain is the overhead; batches do not need each other, and ours run side by side. The
target is held to the second. On a busy machine CPU is the figure to believe.

Then ours alone: going on with a finished run of 40 steps, from the start of the process to its end, and the CPU time to
find one outcome in a store of a million. What this does not show: agents with tools and sandboxes, where rollouts are
long and all of this is small.
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
"""CPU per step: theirs against ours."""
MAX_WALL = 0.5
"""Wall time at 50 ms: ours against theirs."""
MAX_RESUME_SECONDS = 2.0
MAX_LOOK_UP_US = 50.0


@dataclass(frozen=True)
class Case:
    """How the models and the batches are."""

    name: str
    delay_ms: int
    batches: int


CPU = Case("models at once", 0, 1)
ONE = Case("50 ms, 1 batch per step", 50, 1)
FOUR = Case("50 ms, 4 batches per step", 50, 4)


@dataclass(frozen=True)
class Pair:
    """A case on both sides; theirs may be missing."""

    case: Case
    ours: Reading
    theirs: Reading | None

    @property
    def trouble(self) -> str:
        """Why the two cannot be compared."""
        if self.theirs is None:
            return "not run"
        same = ("steps", "accepted", "test")
        differ = [name for name in same if getattr(self.ours, name) != getattr(self.theirs, name)]
        return f"they differ in {', '.join(differ)}" if differ else ""


# ---- measuring ----------------------------------------------------------------------------------------------------


def run_driver(python: Path, driver: str, *arguments: object) -> dict[str, Any]:
    """What a driver prints last, run in a fresh process."""
    command = [str(python), str(DRIVERS / driver), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise CommandFailed(f"{driver}: exit {done.returncode}\n{done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def take_median(readings: Sequence[Reading]) -> Reading:
    """The median of several rounds, figure by figure."""
    cpu = median(reading.cpu_seconds for reading in readings)
    wall = median(reading.wall_seconds for reading in readings)
    return replace(readings[0], cpu_seconds=cpu, wall_seconds=wall)


def run_rounds(cases: Sequence[Case], theirs: Path | None, count: int) -> list[Pair]:
    """Every case on both sides, in turn, so that a busy minute of the machine meets them all."""
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
    """From the start of a process to its end, when the run was finished by an earlier one."""
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
    """The Python that has SkillOpt; None to go without it. `peers` None takes it if it is installed already."""
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
    """The targets, and what has to be said beside them."""
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
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, help="install and run SkillOpt, or leave it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="one round and a small store")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where peers are installed")
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
