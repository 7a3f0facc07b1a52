"""The `Trainer` protocol: what the RL loop needs from whatever changes weights.

    get_model(name) ──> rollouts ──> groups ──> TrainingRows ──> update(rows) ──> the next version ──> get_model(name) …

A trainer holds one policy and counts its versions: 0 is the policy that it starts from, and every `update` makes the
next one. It gets rows, not rollouts. A `TrainingRow` is one linear sequence of exact ids with the logprobs that the
sampler recorded, the version that sampled it, and an advantage. The loop computes advantages (`ludus.rl.advantages`),
so that all trainers learn from the same numbers: they are centred over the rollouts of a group, not over rows, and a
rollout whose history branched gives several rows with one advantage. Groups without any difference in score give no
rows. A trainer only has to turn rows into a gradient and weights into a `Model`.

Rows may be older than the trainer's version, by up to the loop's `rl.staleness`. A trainer corrects for that with the
recorded logprobs (an importance ratio), or refuses rows of another version.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from ludus.errors import LudusError
from ludus.models import Model
from ludus.types import Tokens


class TrainingDiverged(LudusError):
    """The loss or a gradient is not a finite number. The trainer still has the weights of its last good version."""


class TrainingRow(Struct, frozen=True, kw_only=True):
    """One sequence to learn from. The gradient goes through the ids that are marked as `sampled`."""

    tokens: Tokens
    """Ids, which of them were sampled, and the logprob of each sampled id under the policy that sampled it."""
    advantage: float
    """How much better than its group the rollout was. It is the same for every sampled id of the rollout."""
    version: int
    """The version of the policy that sampled it; the oldest one if the weights were swapped meanwhile."""
    group: int = 0
    """The number of its group in the run."""
    replicate: int = 0
    """The number of its rollout in the group. Rows of one rollout have the same group and replicate."""


class UpdateMetrics(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an update measured, over the sampled ids of its rows. None where a trainer does not know it."""

    loss: float | None = None
    kl: float | None = None
    """The mean of (ratio - 1 - log ratio): how far the policy is from the one that sampled the rows."""
    reference_kl: float | None = None
    """The same, from the reference policy. None without a reference."""
    entropy: float | None = None
    """The mean entropy of the policy at the sampled ids, in nats. If a trainer does not know it, the mean of -logprob
    of the sampled ids, which estimates it."""
    clipped: float | None = None
    """The share of sampled ids whose ratio was clipped."""
    ratio: float | None = None
    """The largest importance ratio."""
    gradient: float | None = None
    """The norm of the gradient before it was clipped."""
    tokens: int = 0
    """Sampled ids that were trained on."""
    seconds: float = 0.0


class PolicyUpdate(Struct, frozen=True, kw_only=True):
    """The result of `Trainer.update`."""

    version: int
    """The new version."""
    metrics: UpdateMetrics
    logprobs: tuple[tuple[float, ...], ...] = ()
    """Of each row, the logprobs of its sampled ids by the weights before the update; empty if they are not known."""


class Trainer(Protocol):
    """Holds a policy, improves it from rows, and gives models that sample from it.

    The loop calls `load` or nothing, then `get_model` and `update` in turn. `get_model` and rollouts may go on while an
    `update` runs. `update` and `save` are never called at the same time.
    """

    @property
    def name(self) -> str:
        """The name of the policy that training starts from. It must differ where its weights differ."""
        ...

    @property
    def version(self) -> int:
        """The number of updates so far."""
        ...

    async def get_model(self, name: str) -> Model:
        """A model that samples from the current version. `name` is its name on records: it contains the version.

        Rollouts may be under way on the model of an earlier version. They may go on with the new weights; their rows
        keep the older version. The caller closes the model.

        Raises:
            ModelUnusable: the weights could not be handed over, for example because an adapter did not load.
        """
        ...

    async def update(self, rows: Sequence[TrainingRow]) -> PolicyUpdate:
        """Make the next version from rows. There is at least one.

        Raises:
            TrainingDiverged: the loss is not a finite number. Version and weights are as they were before.
        """
        ...

    async def save(self, folder: Path) -> None:
        """Write what `load` needs to continue exactly: weights, optimizer, random state and version. The folder exists
        and is empty. A trainer whose state is elsewhere writes where that is."""
        ...

    async def load(self, folder: Path) -> None:
        """Continue from a saved state, in this or another process.

        Raises:
            ConfigError: the state is damaged, or it belongs to other settings.
        """
        ...

    async def close(self) -> None:
        """Free what the trainer holds. Safe to call twice."""
        ...


def check_finite(metrics: UpdateMetrics) -> None:
    """Raises `TrainingDiverged` if the loss or the gradient is not a finite number."""
    for name in ("loss", "gradient", "kl"):
        value = getattr(metrics, name)
        if value is not None and not math.isfinite(value):
            raise TrainingDiverged(
                f"the {name} is {value}; the weights of the last good version are kept. Lower the learning rate "
                "(trainer.learning_rate), or check the rows: ludus check RUN"
            )
