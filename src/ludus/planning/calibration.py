"""Calibrate: what a short run on this machine takes of its cores and its memory.

A quarter of the rollouts runs first, with a quarter of them at once: if the model server then gives nearly as many
tokens per second as with all, it is saturated, and `find_saturation` says at how many.
"""

import asyncio
import math
import os
import resource
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from ludus.activity import Activity
from ludus.sandbox.processes import find_descendants
from ludus.types import Task

LOW = 4
"""The first part has this part of the rollouts, and of those at once."""
FEWEST = 8
"""With fewer rollouts at once there is no first part: it would say nothing."""
LOOK_SECONDS = 1.0


def choose_tasks(tasks: Sequence[Task], rollouts: int, group_size: int) -> tuple[tuple[Task, ...], int]:
    """Tasks from all parts of a split, and how often each is run. More than `group_size` times only if there are too
    few of them."""
    size = max(group_size, math.ceil(rollouts / len(tasks)))
    count = min(len(tasks), math.ceil(rollouts / size))
    return tuple(tasks[number * len(tasks) // count] for number in range(count)), size


def choose_first(tasks: Sequence[Task], at_once: int) -> tuple[tuple[Task, ...], int]:
    """The tasks of the first part, and how many rollouts run at once then. None: there is no such part."""
    if at_once < FEWEST or len(tasks) < LOW:
        return (), at_once
    return tuple(tasks[: len(tasks) // LOW]), at_once // LOW


class Meter:
    """What a run has taken of this machine so far, with the processes that it started."""

    def __init__(self) -> None:
        self.base_mb = _read_mb([os.getpid()])
        self.slot_mb: float | None = None
        """The most memory of a rollout that was seen."""
        self._began = _read_cpu()

    @property
    def core_seconds(self) -> float:
        """Since the meter was made, or reset. Processes that have not ended are not counted."""
        return _read_cpu() - self._began

    def reset_cores(self) -> None:
        self._began = _read_cpu()

    @asynccontextmanager
    async def watch(self, activity: Activity) -> AsyncGenerator[None, None]:
        """Look at the memory from time to time while the block runs."""
        watching = asyncio.create_task(self._look(activity))
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _look(self, activity: Activity) -> None:
        while True:
            running = activity.report().running
            now = await asyncio.to_thread(_read_mb, find_descendants([os.getpid()]))
            if running:
                self.slot_mb = max(self.slot_mb or 0.0, (now - self.base_mb) / running)
            await asyncio.sleep(LOOK_SECONDS)


def _read_cpu() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _read_mb(pids: Sequence[int] | set[int]) -> float:
    """The memory of processes, with shared pages divided among their users."""
    return sum(map(_read_pss, pids)) / 1024


def _read_pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # the process has ended
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
