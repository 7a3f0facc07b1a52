"""What the two interfaces of the package `verifiers` have in common: tasks, and rollouts that they run themselves.

A release opens a session of the gateway for each rollout, lets the environment play with it, and returns the record of
the session with the outcome, or with the error that is the reason why there is none.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from ludus.errors import BudgetExhausted, LudusError, ModelError, ModelUnusable
from ludus.gateway.service import Gateway, Route
from ludus.gateway.session import SessionRecord
from ludus.models import Model
from ludus.policy import Together
from ludus.types import Message, Sampling, StopReason, Task

KEY_VARIABLE = "LUDUS_NO_KEY"
"""A variable that is not set: clients of the package read their key from a variable, and ours need none."""


class RolloutOutcome(Struct, frozen=True, kw_only=True):
    """What an environment says about a rollout."""

    reward: float
    parts: Mapping[str, float] = {}
    stop: StopReason = StopReason.FINISHED
    condition: str = ""
    """Why it ended, in the package's words."""
    fault: str = ""
    """What the agent did that ended the rollout without a reward. The reward is 0 then."""
    member: str = ""
    """The name of a rollout that has no reward yet: it is scored with the others of its group."""


class PlayedRollout(NamedTuple):
    """A rollout that an environment has run."""

    record: SessionRecord
    outcome: RolloutOutcome | LudusError
    answers: Mapping[str, str] = {}
    """Results of tools by the id of the call, where the environment knows them."""


class PlayerModel(NamedTuple):
    """The policy's model, and the gateway through which an environment reaches it."""

    gateway: Gateway
    model: Model
    sampling: Sampling
    together: Together | None = None
    """The rollouts that this one is scored with."""


class VerifiersRelease(Protocol):
    """An environment of the package, through the interface of the installed release."""

    routes: tuple[Route, ...]
    """Routes that its rollouts need at the gateway."""
    judges_groups: bool
    """Whether its rewards need all rollouts of a task."""

    def load_tasks(self, split: str) -> Iterable[Task]: ...

    def make_opening(self, task: Task) -> tuple[Message, ...]: ...

    async def play(self, task: Task, opening: Sequence[Message], player: PlayerModel) -> PlayedRollout:
        """Let the environment run one rollout, whose prompt is `opening`."""
        ...

    async def score(self, names: Sequence[str]) -> Sequence[RolloutOutcome | LudusError]:
        """The outcomes of rollouts of one task that wait for their reward, by their names (`member`)."""
        ...

    async def close(self) -> None: ...


def find_model_error(record: SessionRecord) -> LudusError | None:
    """Why a rollout does not count, if the model or its budget is the reason."""
    if record.failure is not None and record.stop == "unusable":
        return ModelUnusable(record.failure.message)
    if record.failure is not None:
        return ModelError(record.failure.message, retryable=record.failure.retryable)
    if record.stop == "budget":
        return BudgetExhausted(
            "the budget of the run is spent, and an environment was stopped in the middle of its work"
        )
    return None


def list_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The values that are numbers."""
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
