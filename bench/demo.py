"""Check the promise of `make demo`: a significantly better skill in less than five minutes.

    python bench/demo.py             three seeds, each with its own orders, batches and proposals
    python bench/demo.py --short     one seed with few tasks, as a test of the script; no targets

Each seed runs the demo's command, `ludus train --config configs/demo.yaml`, in its own process. The difference is the
best skill's accuracy on the sealed test split minus the initial skill's. Its interval is Newcombe's 95 % interval for a
difference of two proportions, which is also valid when a proportion is 0 or 1. Targets: no interval includes 0, and no
seed takes more than five minutes.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT, Check, CommandFailed, describe_machine, print_verdict, render_table

SECONDS = 300.0
Z = 1.959964


@dataclass(frozen=True)
class Share:
    """Passed tasks out of all tasks."""

    passed: int
    tasks: int

    @property
    def value(self) -> float:
        return self.passed / self.tasks

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval."""
        share, n = self.value, self.tasks
        middle = share + Z * Z / (2 * n)
        reach = Z * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
        return (middle - reach) / (1 + Z * Z / n), (middle + reach) / (1 + Z * Z / n)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.0%} [{low:.0%}, {high:.0%}]"


@dataclass(frozen=True)
class Run:
    """The result of one seed on the test split."""

    seed: int
    initial: Share
    best: Share
    accepted: int
    rejected: int
    seconds: float
    cpu_seconds: float = 0.0
    """CPU time of all cores. On a busy machine it is more reliable than wall time."""

    @property
    def gain(self) -> float:
        return self.best.value - self.initial.value

    @property
    def gain_interval(self) -> tuple[float, float]:
        """Newcombe's interval, computed from the intervals of both shares."""
        (low_a, high_a), (low_b, high_b) = self.best.interval, self.initial.interval
        a, b = self.best.value, self.initial.value
        return self.gain - math.hypot(a - low_a, high_b - b), self.gain + math.hypot(high_a - a, b - low_b)


def run_demo(seed: int, folder: Path, more: Sequence[str] = ()) -> Run:
    """Run the demo with this seed."""
    ludus = Path(sys.executable).with_name("ludus")
    seeds = ["--env.seed", str(seed), "--train.seed", str(seed)]
    command = [ludus, "train", "--config", ROOT / "configs" / "demo.yaml", "--out", folder, "--json", *seeds, *more]
    started, before = time.monotonic(), _read_cpu_seconds()
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=ROOT)
    seconds, cpu = time.monotonic() - started, _read_cpu_seconds() - before
    if done.returncode:
        raise CommandFailed(f"seed {seed}: exit {done.returncode}\n{done.stderr.strip()}")
    return read_run(seed, json.loads(done.stdout)["summary"], seconds, cpu)


def _read_cpu_seconds() -> float:
    """Read the CPU time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read_run(seed: int, summary: Any, seconds: float, cpu: float = 0.0) -> Run:
    initial, best = (_read_share(summary[name]["test"]["overall"]) for name in ("initial", "best"))
    return Run(seed, initial, best, summary["accepted"], summary["rejected"], seconds, cpu)


def _read_share(bucket: Any) -> Share:
    return Share(round(bucket["hard"] * bucket["scored"]), bucket["scored"])


def render_report(runs: Sequence[Run]) -> str:
    head = ("seed", "initial", "best", "difference", "accepted", "rejected", "seconds", "CPU s")
    return render_table([head, *map(_make_row, runs)])


def _make_row(run: Run) -> tuple[object, ...]:
    low, high = run.gain_interval
    gain = f"{run.gain:+.0%} [{low:+.0%}, {high:+.0%}]"
    shares = (str(run.initial), str(run.best))
    return (run.seed, *shares, gain, run.accepted, run.rejected, run.seconds, run.cpu_seconds)


def make_checks(runs: Sequence[Run], *, short: bool) -> list[Check]:
    lowest = min(run.gain_interval[0] for run in runs) * 100
    slowest = max(run.seconds for run in runs)
    mean = sum(run.gain for run in runs) / len(runs) * 100
    # Not 0: an interval that starts at 0 would meet that target.
    floor, limit = (None, None) if short else (0.001, SECONDS)
    return [
        Check("mean difference", mean, None, "points"),
        Check("lowest end of a difference's interval", lowest, floor, "points", at_least=True),
        Check("slowest seed", slowest, limit, "s"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds (default: 3)")
    parser.add_argument("--short", action="store_true", help="one seed, few tasks, no target")
    arguments = parser.parse_args()
    more = ["--data.limit", "8", "--train.epochs", "1"] if arguments.short else []
    print(f"{describe_machine()}\n")
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1 if arguments.short else arguments.seeds):
            runs.append(run_demo(seed, Path(folder) / str(seed), more))
            print(f"seed {seed}: {runs[-1].initial} -> {runs[-1].best} in {runs[-1].seconds:.0f} s", file=sys.stderr)
    print(f"{render_report(runs)}\n")
    return print_verdict("demo", make_checks(runs, short=arguments.short))


if __name__ == "__main__":
    sys.exit(main())
