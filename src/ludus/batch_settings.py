"""The settings of `ludus batch`: which trajectories are written, and how."""

from typing import ClassVar, Literal

from ludus.settings import Settings
from ludus.types import Count

FilterName = Literal["no-reasoning", "invalid-calls", "unfinished", "short", "failed-check", "duplicates"]
"""What a trajectory may be left out for. `ludus.trajectories.filters` says what each means."""


class BatchSettings(Settings, frozen=True):
    """What `ludus batch` writes. All of it may change when the run is resumed: shards are made again of the store."""

    drop: tuple[FilterName, ...] = ()
    """Which trajectories are left out of the shards: `no-reasoning` (no reply with thinking), `invalid-calls` (a call
    of a tool that was not offered, or whose arguments are no object), `unfinished` (the agent was cut off),
    `short` (fewer replies than `batch.min_turns`), `failed-check`, `duplicates` (equal to an earlier one)."""
    min_turns: Count = 2
    """How many replies of the model a trajectory has that is not `short`."""
    format: Literal["jsonl", "parquet"] = "jsonl"
    """The form of the shards. Parquet needs the extra `parquet`."""
    shard_rows: Count = 10_000
    """How many trajectories a shard has, at most."""
    skip_bad: bool = False
    """Leave out rows of the file that cannot be used, and count them. Otherwise the first one is an error."""

    may_change: ClassVar[tuple[str, ...]] = ("drop", "min_turns", "format", "shard_rows", "skip_bad")
