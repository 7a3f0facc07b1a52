"""What a run keeps and counts while it works: the store it finds things in, and the journal of the part under way.

A `Store` is content-addressed and only grows; `ludus.store.RunDir` is one, on disk. `InMemory` is one for runs that
need no resuming. The `Journal` collects what was spent and what went wrong since the last record was made; nothing
that is decided depends on it.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

from msgspec import Struct

from ludus.reflact.records import Spent, Unusable
from ludus.types import Rollout, Usage


class Store(Protocol):
    """Where finished rollouts and replies are found again."""

    def get(self, key: str) -> Rollout | None: ...

    def keep(self, key: str, rollout: Rollout) -> Rollout:
        """Keep a rollout and return what is kept: a scored one under the same key stays."""
        ...

    def get_record(self, key: str) -> bytes | None: ...

    def put_record(self, key: str, kind: str, body: bytes) -> bytes:
        """Keep a record and return what is kept: the first one under a key stays."""
        ...


class InMemory:
    """A store that lasts as long as its process."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Rollout] = {}
        self.bodies: dict[str, tuple[str, bytes]] = {}

    def get(self, key: str) -> Rollout | None:
        return self.outcomes.get(key)

    def keep(self, key: str, rollout: Rollout) -> Rollout:
        kept = self.outcomes.get(key)
        if kept is None or kept.score is None:
            kept = self.outcomes[key] = rollout
        return kept

    def get_record(self, key: str) -> bytes | None:
        found = self.bodies.get(key)
        return found[1] if found else None

    def put_record(self, key: str, kind: str, body: bytes) -> bytes:
        return self.bodies.setdefault(key, (kind, body))[1]

    def records(self, kind: str) -> Iterable[tuple[str, bytes]]:
        return ((key, body) for key, (its, body) in self.bodies.items() if its == kind)


class Progress(Struct, frozen=True):
    """How far a stage is, for whoever watches."""

    epoch: int
    step: int
    stage: str
    done: int
    total: int
    """0 where it is not known: replies of the optimizer."""


Watch = Callable[[Progress], None]


class Journal:
    """Collects what happened since the last record was made."""

    def __init__(self, watch: Watch | None = None) -> None:
        self._watch = watch
        self._usages: dict[tuple[str, str], list[Usage]] = {}
        self._events: list[Unusable] = []
        self._outcomes: set[str] = set()
        self._new: list[str] = []
        self.epoch = self.step = 0
        """Where the run is, for those who watch."""

    def book(self, role: str, stage: str, usage: Usage) -> None:
        usages = self._usages.setdefault((role, stage), [])
        usages.append(usage)
        if role == "optimizer":
            self.progress(stage, len(usages), 0)

    def book_outcome(self, key: str, stage: str, usage: Usage) -> None:
        """Count a rollout, once in the run however often it is used."""
        if key not in self._outcomes:
            self._outcomes.add(key)
            self._new.append(key)
            self.book("agent", stage, usage)

    def note(self, event: Unusable) -> None:
        self._events.append(event)

    def progress(self, stage: str, done: int, total: int) -> None:
        if self._watch is not None:
            self._watch(Progress(self.epoch, self.step, stage, done, total))

    def spent(self) -> tuple[Spent, ...]:
        """What was spent since the last `close`, the same to the last bit whatever ended first."""
        return tuple(_spent(role, stage, self._usages[role, stage]) for role, stage in sorted(self._usages))

    def events(self) -> tuple[Unusable, ...]:
        return tuple(sorted(self._events, key=lambda event: (event.stage, event.place)))

    def close(self) -> tuple[str, ...]:
        """Begin anew; returns the outcomes that were counted, for `counted`."""
        counted = tuple(sorted(self._new))
        self._usages.clear()
        self._events.clear()
        self._new.clear()
        return counted

    def counted(self, outcomes: Iterable[str]) -> None:
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


def _spent(role: str, stage: str, usages: list[Usage]) -> Spent:
    usage = Usage(
        sum(u.prompt_tokens for u in usages),
        sum(u.completion_tokens for u in usages),
        sum(u.cached_tokens for u in usages),
        math.fsum(u.dollars for u in usages),
    )
    return Spent(role, stage, len(usages), usage)


@contextmanager
def one_error() -> Generator[None]:
    """Raise the first error of a group instead of the group: tasks that fall together have one cause."""
    try:
        yield
    except BaseExceptionGroup as errors:
        error: BaseException = errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        raise error from errors  # pyright: ignore[reportUnknownVariableType]


@asynccontextmanager
async def side_by_side() -> AsyncGenerator[asyncio.TaskGroup, None]:
    """A task group that raises one error."""
    with one_error():
        async with asyncio.TaskGroup() as group:
            yield group
