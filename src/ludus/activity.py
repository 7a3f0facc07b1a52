"""What a run waits for: which rollout is in which phase, and since when.

    with activity.follow("task-7#0"):           a rollout, from its start to its end
        with enter_phase("slot"): ...           it waits for a slot

Every step that may wait (a slot, `setup`, the model, the ledger, a tool, `verify`, a node) says so with `enter_phase`,
which finds the rollout in the context of its task. Calls of a model that belong to no rollout, such as the optimizer's,
are on the board by their role. When a phase begins or ends, something has moved; `ActivityReport.quiet` is how long
nothing has. An engine on other machines puts the reports of their boards on this one (`merge`).

The board also knows how long a rollout was in each phase (`RolloutMark.make_times`): its record has that, and `ludus
plan` reads it there. A moment counts for the innermost phase alone, so the seconds of all phases add up to the whole.
"""

import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from msgspec import Struct

from ludus.types import RolloutTimes

OTHER = "other"
"""The phase of a rollout between those that have a name."""


class PhaseCount(Struct, frozen=True, omit_defaults=True):
    """How many rollouts are in a phase."""

    phase: str
    count: int
    oldest: float
    """How many seconds the one that is in it longest has been there."""
    who: str
    """The name of that one."""
    node: str = ""
    """Where they run; empty: in this process."""


class ActivityReport(Struct, frozen=True):
    """What is under way at a moment."""

    phases: tuple[PhaseCount, ...] = ()
    """Those that have waited longest come first."""
    ended: int = 0
    """How many outcomes there are since the run was opened."""
    lost: dict[str, int] = {}
    """How many of them have no score, by the boundary that failed."""
    quiet: float = 0.0
    """For how many seconds no phase has begun or ended, and no rollout."""
    since_end: float = 0.0
    """For how many seconds no rollout has ended."""

    @property
    def running(self) -> int:
        return sum(each.count for each in self.phases)


class _Entry:
    """A phase in which a rollout is."""

    __slots__ = ("mark", "phase", "since")

    def __init__(self, mark: "RolloutMark", phase: str) -> None:
        self.mark = mark
        self.phase = phase
        self.since = time.monotonic()


class RolloutMark:
    """A rollout on the board: the phases that it has entered and not left. The last one is shown."""

    __slots__ = ("_seconds", "_since", "began", "board", "entries", "name")

    def __init__(self, board: "Activity", name: str) -> None:
        self.board = board
        self.name = name
        self.entries = [_Entry(self, OTHER)]
        self.began = time.time()
        self._seconds: dict[str, float] = {}
        self._since = self.entries[0].since

    def count(self, now: float) -> None:
        """Count the time since the last change for the phase that is shown. Called before a change."""
        phase = self.entries[-1].phase
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._since
        self._since = now

    def make_times(self) -> RolloutTimes:
        """When it began, and how long it has been in each phase so far."""
        self.count(time.monotonic())
        return RolloutTimes(self.began, {phase: round(seconds, 6) for phase, seconds in self._seconds.items()})


_current: ContextVar[RolloutMark | None] = ContextVar("ludus_activity", default=None)


class enter_phase:  # a class and not a generator, because it is entered for every call of a model and of a tool
    """While the block runs, the rollout of this task is in a phase. Without a rollout it does nothing, unless a `board`
    is given: then a mark by this name (`who`) is on it."""

    __slots__ = ("_alone", "_board", "_entry", "_phase", "_who")

    def __init__(self, phase: str, board: "Activity | None" = None, who: str = "") -> None:
        self._phase = phase
        self._board = board
        self._who = who
        self._alone = False
        self._entry: _Entry | None = None

    def __enter__(self) -> "enter_phase":
        mark = _current.get()
        if mark is None and self._board is not None:
            mark, self._alone = self._board.add(self._who), True
        if mark is not None:
            self._entry = _Entry(mark, self._phase)
            mark.count(self._entry.since)
            mark.entries.append(self._entry)
            mark.board.moved = self._entry.since
        return self

    def __exit__(self, *_: object) -> None:
        entry = self._entry
        if entry is None:
            return
        mark, self._entry, now = entry.mark, None, time.monotonic()
        mark.count(now)
        mark.entries.remove(entry)
        mark.board.moved = now
        if self._alone:
            mark.board.remove(mark)


class Activity:
    """The board of a run."""

    def __init__(self) -> None:
        self.moved = self._last_end = time.monotonic()
        """When something last began or ended, by the monotonic clock."""
        self.ended = 0
        """Outcomes so far."""
        self.lost: Counter[str] = Counter()
        """Those without a score, by the boundary that failed."""
        self._marks: dict[int, RolloutMark] = {}
        self._nodes: dict[str, tuple[float, ActivityReport]] = {}

    @contextmanager
    def follow(self, name: str) -> Generator[RolloutMark]:
        """Have a rollout on the board while the block runs. It ends with the block."""
        mark = self.add(name)
        token = _current.set(mark)
        try:
            yield mark
        finally:
            _current.reset(token)
            self.remove(mark)
            self._last_end = self.moved

    def count_outcome(self, failed_at: str = "") -> None:
        """Count an outcome. `failed_at`: the boundary that failed, if it has no score."""
        self.ended += 1
        self.moved = self._last_end = time.monotonic()
        if failed_at:
            self.lost[failed_at] += 1

    def add(self, name: str) -> RolloutMark:
        mark = RolloutMark(self, name)
        self._marks[id(mark)] = mark
        self.moved = mark.entries[0].since
        return mark

    def remove(self, mark: RolloutMark) -> None:
        del self._marks[id(mark)]
        self.moved = time.monotonic()

    def merge(self, node: str, report: ActivityReport | None) -> None:
        """Put the report of a node's board in place of its last one. None: the node is gone."""
        if report is None:
            self._nodes.pop(node, None)
        else:
            self._nodes[node] = (time.monotonic(), report)

    def report(self) -> ActivityReport:
        """What is under way now, here and on nodes."""
        now = time.monotonic()
        nodes = [(now - at, node, report) for node, (at, report) in self._nodes.items()]
        phases = [*_count_phases(self._marks.values(), now), *_list_phases_of_nodes(nodes)]
        return ActivityReport(
            phases=tuple(sorted(phases, key=lambda each: -each.oldest)),
            ended=self.ended,
            lost=dict(self.lost),
            quiet=min([now - self.moved, *(age + report.quiet for age, _, report in nodes)]),
            since_end=min([now - self._last_end, *(age + report.since_end for age, _, report in nodes)]),
        )


def _count_phases(marks: Iterable[RolloutMark], now: float) -> Iterator[PhaseCount]:
    counts: dict[str, int] = {}
    oldest: dict[str, _Entry] = {}
    for mark in marks:
        entry = mark.entries[-1]
        counts[entry.phase] = counts.get(entry.phase, 0) + 1
        first = oldest.setdefault(entry.phase, entry)
        if entry.since < first.since:
            oldest[entry.phase] = entry
    for phase, entry in oldest.items():
        yield PhaseCount(phase, counts[phase], max(0.0, now - entry.since), entry.mark.name)


def _list_phases_of_nodes(nodes: Iterable[tuple[float, str, ActivityReport]]) -> Iterator[PhaseCount]:
    for age, node, report in nodes:
        for each in report.phases:
            yield PhaseCount(each.phase, each.count, each.oldest + age, each.who, each.node or node)
