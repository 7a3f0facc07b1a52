"""The settings of `ludus plan`."""

from ludus.settings import Settings
from ludus.types import Count, Positive, Whole


class PlanSettings(Settings, frozen=True):
    """What a plan assumes of the machines. What is not set is measured, or as on this machine."""

    rollouts: Count = 50
    """How many rollouts the calibration runs."""
    total: Count | None = None
    """The rollouts of the run that is planned; null: those of all tasks of the split (`env.group_size` of each)."""
    per_node: Count | None = None
    """Rollouts at once on a node; null: as `engine.per_node`, or `run.concurrency` if that is null too."""
    starting: Whole | None = None
    """Slots that may be starting at once on one node, 0 for no limit; null: as `sandbox.starting`."""
    cores: Count | None = None
    """Cores of a node; null: as many as this machine has."""
    server_tokens_per_second: Positive | None = None
    """Tokens of replies per second that the model servers give in all; null: the rate limits of the `model` section, or
    the point at which the calibration found the server saturated, or no limit."""
    network_mbit: Positive = 1000.0
    """The link of the driver, in megabits per second."""
    engine_ms: Positive = 0.5
    """Milliseconds of the driver's time that the engine takes for a rollout, beside decoding and storing it
    (`bench/scale.py` measures it)."""
    node_dollars: float = 0.0
    """The price of a node for an hour."""
    tolerance: Positive = 0.25
    """How far a forecast may be from what a run did, for `--check`: 0.25 is 25 %."""
