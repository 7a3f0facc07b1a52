"""What a run keeps and counts while it works: the store it finds things in, and the journal of the part under way.

A `Store` is content-addressed and only grows; `ludus.store.RunDir` is one, on disk. `InMemory` is one for runs that
need no resuming. The `Journal` collects what was spent and what went wrong since the last record was made; nothing
that is decided depends on it.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager

from msgspec import Struct

from ludus.errors import raise_first
from ludus.reflact.records import StageCost, UnusableReply
from ludus.types import Usage


class StageProgress(Struct, frozen=True):
    """How far a stage is, for whoever watches."""

    epoch: int
    step: int
    stage: str
    done: int
    total: int
    """0 where it is not known: replies of the optimizer."""


Watch = Callable[[StageProgress], None]


class Journal:
    """Collects what happened since the last record was made."""

    def __init__(self, watch: Watch | None = None) -> None:
        self._watch = watch
        self._usages: dict[tuple[str, str], list[Usage]] = {}
        self._events: list[UnusableReply] = []
        self._outcomes: set[str] = set()
        self._new: list[str] = []
        self.epoch = self.step = 0
        """Where the run is, for those who watch."""

    def book(self, role: str, stage: str, usage: Usage) -> None:
        usages = self._usages.setdefault((role, stage), [])
        usages.append(usage)
        if role == "optimizer":
            self.report_progress(stage, len(usages), 0)

    def book_outcome(self, key: str, stage: str, usage: Usage) -> None:
        """Count a rollout, once in the run however often it is used."""
        if key not in self._outcomes:
            self._outcomes.add(key)
            self._new.append(key)
            self.book("agent", stage, usage)

    def note(self, event: UnusableReply) -> None:
        self._events.append(event)

    def report_progress(self, stage: str, done: int, total: int) -> None:
        if self._watch is not None:
            self._watch(StageProgress(self.epoch, self.step, stage, done, total))

    def sum_costs(self) -> tuple[StageCost, ...]:
        """What was spent since the last `close`, the same to the last bit whatever ended first."""
        return tuple(_sum_usages(role, stage, self._usages[role, stage]) for role, stage in sorted(self._usages))

    def list_events(self) -> tuple[UnusableReply, ...]:
        return tuple(sorted(self._events, key=lambda event: (event.stage, event.place)))

    def close(self) -> tuple[str, ...]:
        """Begin anew; returns the outcomes that were counted, for `counted`."""
        counted = tuple(sorted(self._new))
        self._usages.clear()
        self._events.clear()
        self._new.clear()
        return counted

    def mark_counted(self, outcomes: Iterable[str]) -> None:
        """These were counted in a record that was made earlier."""
        self._outcomes.update(outcomes)


class Clock:
    """How long the stages of a part take; tells the journal where the run is."""

    def __init__(self, journal: Journal, epoch: int, step: int) -> None:
        journal.epoch, journal.step = epoch, step
        self._last = time.monotonic()
        self.seconds: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """The stage is over."""
        now = time.monotonic()
        self.seconds[stage] = now - self._last
        self._last = now


def _sum_usages(role: str, stage: str, usages: list[Usage]) -> StageCost:
    usage = Usage(
        sum(u.prompt_tokens for u in usages),
        sum(u.completion_tokens for u in usages),
        sum(u.cached_tokens for u in usages),
        math.fsum(u.dollars for u in usages),
    )
    return StageCost(role, stage, len(usages), usage)


@asynccontextmanager
async def open_task_group() -> AsyncGenerator[asyncio.TaskGroup, None]:
    """A task group that raises one error."""
    with raise_first():
        async with asyncio.TaskGroup() as group:
            yield group
