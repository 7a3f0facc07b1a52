"""Which worker runs what: the queue of a run and its leases, without I/O and without a clock.

    waiting ──give──> out at a worker ──end──> gone
       ^                     │
       └───── take_back, lose ┘

A unit is one rollout, or those that are judged together. It is at one worker at a time. When a worker is lost, its
units return to the front of the queue, and each remembers how. One of them may have killed the worker: a unit that was
lost once is given out with few others of its kind, and one that was lost again runs alone. A unit that was lost
`deaths` times while it ran alone is not run again; that it was lost beside others is no evidence against it.

Only one worker at a time runs such units alone, so that the others go on.
"""

import math
from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
W = TypeVar("W", bound=Hashable)

FEW = 8
"""Units that were lost once, at one worker at a time."""
AHEAD = 256
"""Units that are read ahead of their turn, to find one whose image a worker has."""
MOVES = 2
"""How often a unit is run elsewhere because its worker had no slot for it."""
LONGEST = 4096
"""Units that one worker has at most."""


@dataclass
class Unit(Generic[T]):
    """Something to run, and how often its worker was lost."""

    number: int
    body: T
    source: int
    """Which source it came from."""
    image: Hashable = None
    """Units of one image go first to workers that have run another one of it."""
    losses: list[str] = field(default_factory=list[str])
    """How each of its workers ended."""
    alone: int = 0
    """How many of these losses were while it ran alone."""

    avoids: set[Hashable] = field(default_factory=set[Hashable])
    """The workers that had no slot for it."""
    moves: int = 0
    """How often it was run again elsewhere for that reason."""

    @property
    def needs_isolation(self) -> bool:
        return len(self.losses) >= 2


@dataclass(frozen=True)
class Loss(Generic[T]):
    """What became of the units of a lost worker."""

    returned: tuple[Unit[T], ...]
    poisoned: tuple[Unit[T], ...]
    """They are not run again."""


class LeaseQueue(Generic[T]):
    """Hands out units. Bodies come from sources, which are read only as far as units are given out."""

    def __init__(self, deaths: int = 3) -> None:
        self._deaths = deaths
        self._sources: dict[int, Iterator[tuple[T, Hashable]]] = {}
        self._waiting: deque[Unit[T]] = deque()
        """Units that were read from their source: returned ones, and those that wait for a worker with their image."""
        self._out: dict[Hashable, dict[int, Unit[T]]] = {}
        self._images: dict[Hashable, set[Hashable]] = {}
        self._numbers = 0
        self._added = 0
        self._open: Counter[int] = Counter()
        """How many units of each source were read and have not ended."""
        self._isolating: Hashable = None

    def add(self, bodies: Iterator[tuple[T, Hashable]]) -> int:
        """Add a source of bodies and their images. Returns its number."""
        self._added += 1
        self._sources[self._added] = bodies
        return self._added

    def drop(self, source: int) -> list[Unit[T]]:
        """Give out nothing more of a source. Returns its units that had been read and not been given out."""
        self._sources.pop(source, None)
        dropped = [unit for unit in self._waiting if unit.source == source]
        self._waiting = deque(unit for unit in self._waiting if unit.source != source)
        self._open[source] -= len(dropped)
        return dropped

    def is_drained(self, source: int) -> bool:
        """Whether nothing of a source waits and nothing of it is out."""
        if not self._open[source] and source in self._sources:
            unit = self._read_from(source)
            if unit is not None:
                self._waiting.append(unit)
        return not self._open[source]

    def count_out(self, worker: Hashable) -> int:
        return len(self._out.get(worker, ()))

    def list_out(self, worker: Hashable) -> list[Unit[T]]:
        return list(self._out.get(worker, {}).values())

    def give(self, worker: Hashable, most: int) -> list[Unit[T]]:
        """Up to `most` units for a worker, in the order of the queue."""
        out = self._out.setdefault(worker, {})
        if most < 1 or any(unit.needs_isolation for unit in out.values()):
            return []
        suspects = [unit for unit in self._waiting if unit.needs_isolation]
        if suspects and self._isolating in (None, worker):
            self._isolating = worker
            return [] if out else [self._send(worker, suspects[0])]
        self.excuse(worker)
        given: list[Unit[T]] = []
        lost_before = sum(bool(unit.losses) for unit in out.values())
        while len(given) < most and (unit := self._choose(worker, FEW - lost_before)) is not None:
            lost_before += bool(unit.losses)
            given.append(self._send(worker, unit))
        return given

    def end(self, worker: Hashable, number: int) -> Unit[T] | None:
        """A unit has ended. None: it is not at this worker any more, so another one runs it or has run it."""
        unit = self._out.get(worker, {}).pop(number, None)
        if unit is not None:
            self._open[unit.source] -= 1
        if unit is not None and self._isolating == worker and not self._has_suspects():
            self._isolating = None
        return unit

    def take_back(self, worker: Hashable, numbers: Sequence[int]) -> list[Unit[T]]:
        """Units that a worker has not begun return to the front."""
        out = self._out.get(worker, {})
        units = [out.pop(number) for number in numbers if number in out]
        self._return(units)
        return units

    def move(self, worker: Hashable, number: int) -> bool:
        """Have a unit that a worker could not run run again, before others. False: it was moved too often."""
        unit = self._out.get(worker, {}).get(number)
        if unit is None or unit.moves >= MOVES:
            return False
        unit.moves += 1
        unit.avoids.add(worker)
        self.take_back(worker, [number])
        return True

    def pardon(self, workers: Collection[Hashable]) -> None:
        """Let units that none of these workers may have go to any of them."""
        for unit in self._waiting:
            if unit.avoids and unit.avoids.issuperset(workers):
                unit.avoids.clear()

    def lose(self, worker: Hashable, how: str) -> Loss[T]:
        """A worker is gone: `how` says how it ended."""
        units = list(self._out.pop(worker, {}).values())
        self._images.pop(worker, None)
        self.excuse(worker)
        for unit in units:
            unit.losses.append(how)
            unit.alone += len(units) == 1
        poisoned = tuple(unit for unit in units if unit.alone >= self._deaths)
        self._open.subtract(unit.source for unit in poisoned)
        returned = [unit for unit in units if unit.alone < self._deaths]
        self._return(returned)
        return Loss(tuple(returned), poisoned)

    def excuse(self, worker: Hashable) -> None:
        """A worker gets no more units: another one runs what must run alone."""
        if self._isolating == worker:
            self._isolating = None

    def _has_suspects(self) -> bool:
        return any(unit.needs_isolation for unit in self._waiting)

    def _return(self, units: list[Unit[T]]) -> None:
        self._waiting.extendleft(sorted(units, key=lambda unit: -unit.number))

    def _send(self, worker: Hashable, unit: Unit[T]) -> Unit[T]:
        if unit in self._waiting:
            self._waiting.remove(unit)
        self._out[worker][unit.number] = unit
        if unit.image is not None:
            self._images.setdefault(worker, set()).add(unit.image)
        return unit

    def _choose(self, worker: Hashable, lost_allowed: int) -> Unit[T] | None:
        """The next unit for a worker that may have others beside it: one that was lost before, one of an image that
        this worker has, one of an image that no worker has, the first."""
        able = (unit for unit in self._waiting if not unit.needs_isolation and worker not in unit.avoids)
        ready = [unit for unit in able if not unit.losses or lost_allowed > 0]
        lost = next((unit for unit in ready if unit.losses), None)
        if lost is not None:
            return lost
        own = self._images.get(worker, set())
        if found := next((unit for unit in ready if unit.image is None or unit.image in own), None):
            return found
        while len(self._waiting) < AHEAD and (unit := self._read()) is not None:
            if unit.image is None or unit.image in own:
                return unit
            self._waiting.append(unit)
            ready.append(unit)
        known = set[Hashable]().union(*self._images.values())
        return next((unit for unit in ready if unit.image not in known), ready[0] if ready else None)

    def _read(self) -> Unit[T] | None:
        """The next unit of the first source that has one."""
        for source in list(self._sources):
            unit = self._read_from(source)
            if unit is not None:
                return unit
        return None

    def _read_from(self, source: int) -> Unit[T] | None:
        found = next(self._sources[source], None)
        if found is None:
            del self._sources[source]
            return None
        self._numbers += 1
        self._open[source] += 1
        return Unit(self._numbers, found[0], source, found[1])


def choose_window(slots: int, seconds: float | None, ended: int, lease_seconds: float) -> int:
    """How many units a worker should have: what it can run at once, and more if that takes less than `lease_seconds`.
    `seconds`: what a unit takes on average; None: not known yet. A few short ones do not say that all are, so that a
    worker has no more units ahead than it has `ended`."""
    if not slots or seconds is None:
        return slots
    return max(slots, min(LONGEST, slots + ended, math.ceil(slots * lease_seconds / max(seconds, 1e-4))))


def is_worth_a_lease(free: int, window: int) -> bool:
    """Whether a worker gets more now. Each lease costs a call, so short units are sent in quarters of the window."""
    return free >= max(1, window // 4)


def split_evenly(total: int, workers: Sequence[W], most: int | None) -> dict[W, int]:
    """How many rollouts each worker runs at once: `total` over all of them, and at most `most` on one."""
    share, rest = divmod(total, max(1, len(workers)))
    sizes = {worker: share + (place < rest) for place, worker in enumerate(workers)}
    return {worker: size if most is None else min(size, most) for worker, size in sizes.items()}
