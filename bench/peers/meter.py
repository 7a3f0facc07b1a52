"""Measures a system. All systems are measured in the same way, and only during the run.

A driver runs `rollouts` rollouts against a server, `concurrency` at a time, and returns how many have reward 1.
`measure` first runs a few rollouts as a warm-up, so that lazy imports are not measured. Then it measures the real run
and prints the figures as one line of JSON:

    $ python bench/peers/run_raw.py http://127.0.0.1:8001/v1 256 64
    {"system": "raw asyncio sockets", "cpu_seconds": 0.11, …}

CPU time is that of this process and its ended children, without the server. Memory is the peak resident size during the
run minus the size just before it. This module uses only the standard library: it runs in the environment of each peer.
"""

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

WARM_UP = 8
"""Rollouts before the measured ones."""

TURNS = 4
"""Model calls in a rollout."""

PROMPT = "Add 1 and 2, then 3 to the sum, then 36 to that. Use the add tool for each step and say the final sum."


@dataclass(frozen=True)
class Work:
    """The work of a driver."""

    base_url: str
    rollouts: int
    concurrency: int


@dataclass(frozen=True)
class Reading:
    """The figures of a run."""

    system: str
    rollouts: int
    concurrency: int
    perfect: int
    """Rollouts with reward 1."""
    cpu_seconds: float
    wall_seconds: float
    before_mb: float
    peak_mb: float

    @property
    def cpu_ms_per_turn(self) -> float:
        return self.cpu_seconds * 1000 / (self.rollouts * TURNS)

    @property
    def mb_per_rollout(self) -> float:
        """Growth of the resident size per concurrent rollout."""
        return (self.peak_mb - self.before_mb) / min(self.concurrency, self.rollouts)


def measure(system: str, run: Callable[[Work], int]) -> None:
    """Measure a driver and print the figures. `run` returns how many rollouts have reward 1."""
    base_url, rollouts, concurrency = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    allow_many_sockets()
    run(Work(base_url, WARM_UP, WARM_UP))
    gc.collect()
    reset_peak()
    before_mb = read_memory_mb("VmRSS")
    cpu, wall = read_cpu_seconds(), time.perf_counter()
    perfect = run(Work(base_url, rollouts, concurrency))
    reading = Reading(
        system=system,
        rollouts=rollouts,
        concurrency=concurrency,
        perfect=perfect,
        cpu_seconds=read_cpu_seconds() - cpu,
        wall_seconds=time.perf_counter() - wall,
        before_mb=before_mb,
        peak_mb=read_memory_mb("VmHWM"),
    )
    print(json.dumps(asdict(reading)), flush=True)


def read_cpu_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def read_memory_mb(field: str) -> float:
    """Read a size from /proc/self/status: VmRSS is the current size, VmHWM the peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {field}")


def reset_peak() -> None:
    """Reset the peak, so that imports are not part of it."""
    Path("/proc/self/clear_refs").write_text("5")


def allow_many_sockets() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def set_environment() -> None:
    """Set the variables that the SDKs of peers need: a dummy key, and no proxy for loopback."""
    os.environ["OPENAI_API_KEY"] = "none"
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
