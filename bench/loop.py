"""Measure the cost of a turn of the agent loop, and compare it with other systems.

    $ python bench/loop.py                 Ludus, the baselines, and the peers that are installed
    $ python bench/loop.py --peers         install the peers first (about 1.3 GB, once)
    $ python bench/loop.py --no-peers --rounds 5

Every rollout is the same conversation with a mock server on loopback that replies at once (`mock_openai.py`): three
calls of a tool `add` that runs in process, and a final answer with reward 1. Every system runs in a new process. Peers
have their own virtual environments. Ludus stores every rollout in a run directory, as in a normal run.

Systems are compared by the client's CPU time per model call ("turn"): on a shared machine it varies by about 10 %,
while wall time may double. Each round runs all systems, and medians are reported. Not measured: the latency of a real
model, which hides this cost until many rollouts run at once, and sandboxes, which `exec.py` measures.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from common import (
    ROOT,
    Check,
    CommandFailed,
    describe_machine,
    find_venv,
    make_rounds_parser,
    make_venv,
    print_verdict,
    render_table,
)
from mock_openai import run_mock
from peers.meter import Reading

ROLLOUTS = 256
CONCURRENCIES = (64, 256, 1024)
DRIVERS = ROOT / "bench" / "peers"

MAX_CPU_MS = 0.6
MAX_SPREAD = 1.5
"""CPU time per turn at the most expensive concurrency, divided by that at the cheapest."""
MAX_MB = 0.1
MIN_LEAD = 12.0


@dataclass(frozen=True)
class System:
    """A system to measure: its driver, and the packages that the driver needs."""

    name: str
    driver: str
    requirements: tuple[str, ...] = ()
    concurrencies: tuple[int, ...] = (64,)


OURS = System("ludus", "run_ludus.py", concurrencies=CONCURRENCIES)
RAW = System("raw", "run_raw.py", concurrencies=(64, 1024))
AIOHTTP = System("aiohttp", "run_aiohttp.py", ("aiohttp",), (64, 1024))
PEERS = (
    System("verifiers", "run_verifiers.py", ("verifiers==0.1.14",), (64, 256)),
    # litellm imports mcp but does not require it.
    System("mini-swe-agent", "run_mini.py", ("mini-swe-agent", "mcp")),
    System("inspect-ai", "run_inspect.py", ("inspect-ai", "openai")),
)


@dataclass(frozen=True)
class Row:
    """A system at one concurrency: its figures, or the reason why there are none."""

    system: System
    concurrency: int
    reading: Reading | None = None
    trouble: str = ""

    @property
    def valid(self) -> bool:
        return self.reading is not None and not self.trouble


# ---- measuring ----------------------------------------------------------------------------------------------------


def run_driver(system: System, python: Path, base_url: str, rollouts: int, concurrency: int, seconds: float) -> Row:
    """Run a driver in a new process."""
    command = [str(python), str(DRIVERS / system.driver), base_url, str(max(rollouts, concurrency)), str(concurrency)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return Row(system, concurrency, trouble=f"no result within {seconds:g} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Row(system, concurrency, trouble=f"exit {done.returncode}: {last}")
    return judge_row(Row(system, concurrency, Reading(**json.loads(done.stdout.splitlines()[-1]))))


def judge_row(row: Row) -> Row:
    """Mark a reading as invalid unless every rollout has reward 1."""
    reading = row.reading
    if reading is None or reading.perfect == reading.rollouts:
        return row
    return replace(row, trouble=f"reward 1 in only {reading.perfect} of {reading.rollouts}")


def take_median(rows: Sequence[Row]) -> Row:
    """Take the median of each figure over the rounds. If a round is invalid, the result is that round."""
    for row in rows:
        if not row.valid:
            return row
    readings = [row.reading for row in rows if row.reading is not None]
    figures = {
        name: median(getattr(reading, name) for reading in readings)
        for name in ("cpu_seconds", "wall_seconds", "before_mb", "peak_mb")
    }
    return replace(rows[0], reading=replace(readings[0], **figures))


def find_pythons(cache: Path, peers: bool | None) -> tuple[dict[System, Path], list[Row]]:
    """Find the Python of each system to run. Also returns rows for peers that could not be installed.

    `peers`: True installs missing peers, None uses the installed ones, False uses none.
    """
    found = {OURS: Path(sys.executable), RAW: Path(sys.executable)}
    lost: list[Row] = []
    for system in (AIOHTTP, *PEERS) if peers is not False else ():
        if python := find_venv(cache / system.name, system.requirements):
            found[system] = python
        elif peers:
            print(f"installing {' '.join(system.requirements)} …", file=sys.stderr)
            try:
                found[system] = make_venv(cache / system.name, system.requirements)
            except CommandFailed as error:
                print(error, file=sys.stderr)
                lost += [Row(system, concurrency, trouble="not installed") for concurrency in system.concurrencies]
    return found, lost


def run_rounds(systems: Mapping[System, Path], count: int, rollouts: int, seconds: float) -> tuple[list[Row], str]:
    """Run `count` rounds of all systems. Returns the medians, and the CPU time of the mock server as text."""
    cells = [(system, concurrency) for system in systems for concurrency in system.concurrencies]
    taken: dict[tuple[System, int], list[Row]] = {cell: [] for cell in cells}
    with run_mock(seconds=seconds * len(cells) * count) as mock:
        for number in range(1, count + 1):
            for system, concurrency in cells:
                print(f"round {number} of {count}: {system.name} at {concurrency} …", file=sys.stderr)
                taken[system, concurrency].append(
                    run_driver(system, systems[system], mock.base_url, rollouts, concurrency, seconds)
                )
    server = f"mock server {mock.cpu_seconds * 1000 / max(mock.requests, 1):.3f} ms CPU/request (not counted)"
    return [take_median(rows) for rows in taken.values()], server


# ---- judging ------------------------------------------------------------------------------------------------------


def list_valid_readings(rows: Iterable[Row], systems: Iterable[System]) -> list[Reading]:
    wanted = set(systems)
    return [row.reading for row in rows if row.system in wanted and row.valid and row.reading is not None]


def render_report(rows: Sequence[Row]) -> str:
    """Render the table. Each system is compared with Ludus at the same concurrency."""
    ours = {reading.concurrency: reading.cpu_ms_per_turn for reading in list_valid_readings(rows, [OURS])}
    head = ("system", "at once", "CPU ms/turn", "× ours", "rollouts/s", "RSS MB", "MB per rollout at once", "note")
    lines: list[tuple[object, ...]] = []
    for row in rows:
        if row.reading is None:
            lines.append((row.system.name, row.concurrency, "", "", "", "", "", row.trouble))
            continue
        reading, cpu = row.reading, row.reading.cpu_ms_per_turn
        ratio = cpu / ours[row.concurrency] if row.concurrency in ours else ""
        rate = reading.rollouts / reading.wall_seconds
        memory = (reading.peak_mb, reading.mb_per_rollout)
        lines.append((reading.system, row.concurrency, cpu, ratio, rate, *memory, row.trouble))
    return render_table([head, *lines])


def make_checks(rows: Sequence[Row]) -> tuple[list[Check], list[str]]:
    """Make the checks against the targets, and notes on missing figures."""
    ours = list_valid_readings(rows, [OURS])
    runs = [row for row in rows if row.system is OURS]
    found = [Check("valid runs of ours", len(ours) / len(runs), 1.0, at_least=True)] if len(ours) < len(runs) else []
    if ours:
        costs = [reading.cpu_ms_per_turn for reading in ours]
        found += [
            Check("cpu", max(costs), MAX_CPU_MS, "ms/turn"),
            Check("spread", max(costs) / min(costs), MAX_SPREAD, "x"),
            Check("memory", max(reading.mb_per_rollout for reading in ours), MAX_MB, "MB/rollout"),
        ]
    peers = list_valid_readings(rows, PEERS)
    notes = [f"no figure for {row.system.name} at {row.concurrency}" for row in rows if not row.valid]
    if not peers:
        return found, [*notes, "peers not run"]
    for reading in ours:
        rivals = [peer for peer in peers if peer.concurrency == reading.concurrency]
        if rivals:
            best = min(rivals, key=lambda peer: peer.cpu_ms_per_turn)
            lead = best.cpu_ms_per_turn / reading.cpu_ms_per_turn
            name = f"at {reading.concurrency} lead over {best.system}"
            found.append(Check(name, lead, MIN_LEAD, "x", at_least=True))
    return found, notes


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_rounds_parser(__doc__)
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS, help=f"minimum rollouts per run (default {ROLLOUTS})")
    options = parser.parse_args(arguments)
    systems, lost = find_pythons(options.cache, options.peers)
    rows, server = run_rounds(systems, options.rounds, options.rollouts, options.seconds)
    rows += lost
    print(f"{describe_machine()}; {options.rounds} rounds; {server}")
    print(render_report(rows))
    found, notes = make_checks(rows)
    code = print_verdict("loop", found, notes=notes)
    missing = options.peers and any(not row.valid for row in rows)
    return 1 if missing else code


if __name__ == "__main__":
    sys.exit(main())
