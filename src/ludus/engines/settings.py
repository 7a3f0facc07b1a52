"""The settings of engines: where rollouts run."""

from typing import ClassVar, Literal

from ludus.settings import Settings, UsedIf
from ludus.types import Count, Positive, Whole

_RAY = (UsedIf("type", ("ray",)),)


class EngineSettings(Settings, frozen=True):
    """Where rollouts run. `--engine ray` is short for `--engine.type ray`."""

    type: Literal["local", "ray"] = "local"
    """`local`: in this process. `ray`: on the nodes of a Ray cluster."""
    address: str = ""
    """The cluster: `HOST:PORT` of its head, or `auto` for the one that this machine belongs to. Empty: the one that
    this program was submitted to, otherwise a cluster on this machine that ends with the run."""
    per_node: Count | None = None
    """Rollouts that one node runs at once, at most; null: `run.concurrency` divided by the nodes."""
    deaths: Count = 3
    """After its worker has died this often while it was running alone, a rollout has failed and is not run again."""
    lease_seconds: Positive = 3.0
    """How many seconds of work a node is given ahead. It always has as much as it can run at once."""
    variables: tuple[str, ...] = ()
    """Environment variables of this process that workers get, beside those that the settings name."""
    ship_mb: Whole = 32
    """The files that the settings name are sent to nodes that do not have them, up to this many megabytes in all."""
    open_seconds: Positive = 300.0
    """How long a node may take to open its worker: to load the environment, and to find model and slots."""

    added_later: ClassVar[tuple[str, ...]] = (
        "type",
        "address",
        "per_node",
        "deaths",
        "lease_seconds",
        "variables",
        "ship_mb",
        "open_seconds",
    )
    used_if: ClassVar = {name: _RAY for name in added_later if name != "type"}
