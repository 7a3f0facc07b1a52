"""The journal of a training run: costs, events and progress of the part that is running.

The `Journal` collects costs, unusable replies and warnings since the last record was made. No decision depends on it.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager

from msgspec import Struct

from ludus.errors import raise_first
from ludus.reflact.records import StageCost, UnusableReply
from ludus.types import Usage


class StageProgress(Struct, frozen=True):
    """The progress of a stage."""

    epoch: int
    step: int
    stage: str
    done: int
    total: int
    """0 if it is not known, as for replies of the optimizer."""


Watch = Callable[[StageProgress], None]


class Journal:
    """Collects costs and events since the last record was made, and reports progress."""

    def __init__(self, watch: Watch | None = None) -> None:
        self._watch = watch
        self._usages: dict[tuple[str, str], list[Usage]] = {}
        self._events: list[UnusableReply] = []
        self._warnings: dict[str, None] = {}
        self._suspects: Counter[str] = Counter()
        self._outcomes: set[str] = set()
        self._new: list[str] = []
        self.epoch = self.step = 0
        """The current epoch and step, for progress reports."""

    def book(self, role: str, stage: str, usage: Usage) -> None:
        usages = self._usages.setdefault((role, stage), [])
        usages.append(usage)
        if role == "optimizer":
            self.report_progress(stage, len(usages), 0)

    def book_outcome(self, key: str, stage: str, usage: Usage, suspects: int = 0) -> None:
        """Count the cost of a rollout, once in the run however often the rollout is used. `suspects`: 1 if it is
        one."""
        if key not in self._outcomes:
            self._outcomes.add(key)
            self._new.append(key)
            self._suspects[stage] += suspects
            self.book("agent", stage, usage)

    def note(self, event: UnusableReply) -> None:
        self._events.append(event)

    def warn(self, warning: str) -> None:
        self._warnings[warning] = None

    def report_progress(self, stage: str, done: int, total: int) -> None:
        if self._watch is not None:
            self._watch(StageProgress(self.epoch, self.step, stage, done, total))

    def sum_costs(self) -> tuple[StageCost, ...]:
        """The costs since the last `close`. They are exactly the same in whatever order the calls ended."""
        return tuple(
            _sum_usages(role, stage, self._usages[role, stage], self._suspects[stage] if role == "agent" else 0)
            for role, stage in sorted(self._usages)
        )

    def list_events(self) -> tuple[UnusableReply, ...]:
        return tuple(sorted(self._events, key=lambda event: (event.stage, event.place)))

    def list_warnings(self) -> tuple[str, ...]:
        """Each warning once, in their order."""
        return tuple(self._warnings)

    def close(self) -> tuple[str, ...]:
        """Start a new part. Returns the outcomes whose cost was counted, for `mark_counted`."""
        counted = tuple(sorted(self._new))
        self._usages.clear()
        self._suspects.clear()
        self._events.clear()
        self._warnings.clear()
        self._new.clear()
        return counted

    def mark_counted(self, outcomes: Iterable[str]) -> None:
        """Mark outcomes whose cost is in an earlier record, so that they are not counted again."""
        self._outcomes.update(outcomes)


class Clock:
    """Measures the seconds of each stage, and sets the journal's epoch and step."""

    def __init__(self, journal: Journal, epoch: int, step: int) -> None:
        journal.epoch, journal.step = epoch, step
        self._last = time.monotonic()
        self.seconds: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """End the stage."""
        now = time.monotonic()
        self.seconds[stage] = now - self._last
        self._last = now


def _sum_usages(role: str, stage: str, usages: list[Usage], suspects: int) -> StageCost:
    usage = Usage(
        sum(u.prompt_tokens for u in usages),
        sum(u.completion_tokens for u in usages),
        sum(u.cached_tokens for u in usages),
        math.fsum(u.dollars for u in usages),
    )
    return StageCost(role, stage, len(usages), usage, suspects)


@asynccontextmanager
async def open_task_group() -> AsyncGenerator[asyncio.TaskGroup, None]:
    """Open a task group that raises its first error and not an exception group."""
    with raise_first():
        async with asyncio.TaskGroup() as group:
            yield group
