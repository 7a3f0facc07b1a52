"""Trackers: where the metrics of a run go.

    values, step ──> TrackerSet ──┬─> metrics.jsonl in the run directory, always
                                  └─> wandb, mlflow, …, or one of the user's own (`tracking.use`)

A tracker is any object with `start`, `log` and `close`. Values are numbers, texts and `Table`s. One that also has
`trace` gets every rollout that ends. A tracker must not end a run: when one raises, the error is reported once, and the
tracker gets no more values. The local file has them all.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from msgspec import Struct, field

from ludus.encoding import to_json
from ludus.errors import describe_error
from ludus.settings import Settings, UsedIf
from ludus.types import JsonObject, Rollout

METRICS = "metrics.jsonl"
"""The file of a run directory that has every value."""


class Table(Struct, frozen=True):
    """Rows of texts and numbers, such as some rollouts with their scores."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | int, ...], ...]


Value = float | str | Table
Values = Mapping[str, Value]
"""Metrics by name, such as `train/reward`. Files of other systems log texts, too."""


class TrackedRun(Struct, frozen=True, kw_only=True):
    """The run whose metrics a tracker gets."""

    name: str
    project: str
    group: str = ""
    """Runs of one experiment have the same group."""
    folder: Path
    """The run directory."""
    config: JsonObject = field(default_factory=dict[str, Any])
    """The settings of the run, without secrets."""
    mask: Callable[[str], str] = str
    """Takes secrets out of a text of a rollout, before it leaves this machine."""


class Tracker(Protocol):
    """Gets the metrics of one run. The parameters of its constructor are its options (`tracking.options`)."""

    def start(self, run: TrackedRun) -> None:
        """Called once, before the first values."""
        ...

    def log(self, values: Values, step: int) -> None:
        """Keep values. Steps do not fall. It is called in the event loop, so it must not wait for a server."""
        ...

    def close(self) -> None:
        """Send what is left. Called once, also after an error."""
        ...


@runtime_checkable
class RolloutTracker(Tracker, Protocol):
    """A tracker that gets rollouts, too."""

    def trace(self, key: str, rollout: Rollout) -> None:
        """Keep a rollout that has ended; `key` is its content address. It must not wait for a server."""
        ...


class TrackingSettings(Settings, frozen=True):
    """Where metrics go beside `metrics.jsonl` in the run directory."""

    use: tuple[str, ...] = ()
    """`wandb`, `trackio`, `mlflow`, `tensorboard`, `otel` (each needs its extra: `ludus-train[wandb]`, …), or trackers
    of your own: `module:Class`, `file.py:Class`."""
    project: str = ""
    """The project of the run; empty: the trainer's, or `ludus`."""
    group: str = ""
    """The group of the run; empty: the trainer's."""
    name: str = ""
    """The name of the run; empty: that of the run directory."""
    options: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Options by tracker, such as `tracking.options.wandb.mode offline`. They are recorded: no secrets here."""

    may_change: ClassVar[tuple[str, ...]] = ("use", "project", "group", "name", "options")
    used_if: ClassVar[Mapping[str, tuple[UsedIf, ...]]] = {
        name: (UsedIf("use", other_than=((),)),) for name in ("project", "group", "name")
    }


class TrackerSet:
    """All trackers of a run, and the local file. It is used like one tracker."""

    def __init__(
        self, trackers: Sequence[tuple[str, Tracker]], write_line: Callable[[bytes], None], tell: Callable[[str], None]
    ) -> None:
        self._trackers = dict(trackers)
        self._write_line = write_line
        self._tell = tell
        self._step = 0

    def start(self, run: TrackedRun) -> None:
        self._call(lambda tracker: tracker.start(run))

    def log(self, values: Values, step: int) -> None:
        self._step = max(self._step, step)
        if values:
            self._write_line(to_json({"step": step, "time": time.time(), **values}))
            self._call(lambda tracker: tracker.log(values, step))

    def log_beside(self, values: Values) -> None:
        """Keep values that belong to no step, beside those of the last one."""
        self.log(values, self._step)

    @property
    def takes_rollouts(self) -> bool:
        """Whether one of them gets rollouts."""
        return any(isinstance(tracker, RolloutTracker) for tracker in self._trackers.values())

    def trace(self, key: str, rollout: Rollout) -> None:
        """Give a rollout that has ended to the trackers that take one."""
        self._call(lambda tracker: tracker.trace(key, rollout) if isinstance(tracker, RolloutTracker) else None)

    def close(self) -> None:
        self._call(lambda tracker: tracker.close())
        self._trackers.clear()

    def _call(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                act(tracker)
            except Exception as error:  # foreign code, and its servers: the run goes on without it
                del self._trackers[name]
                self._tell(
                    f"tracking: {name} gets no more values, because it failed: {describe_error(error)} "
                    f"({METRICS} in the run directory has all of them)"
                )
