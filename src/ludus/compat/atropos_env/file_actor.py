"""A file as the agent of a training run: it acts on one item, with the skill in the system message of every call."""

from collections.abc import Sequence
from typing import Any

import msgspec

from ludus.compat.atropos_env.call_journal import SCOPE, CallScope
from ludus.compat.atropos_env.file_host import describe_trace
from ludus.compat.atropos_env.group_run import FileParts, collect_groups
from ludus.compat.atropos_env.row_rollouts import list_scores, make_row_rollouts
from ludus.errors import ConfigError, HarnessError, LudusError, ModelError
from ludus.harness import AgentResult
from ludus.models import Model
from ludus.types import Message, Sampling, StopReason, Task


class FileActor:
    """Implements `ludus.agent.Actor`. A rollout is one group of the file, whose score is the mean of its rows."""

    def __init__(self, parts: FileParts, name: str, items: dict[str, Any]) -> None:
        self._parts = parts
        self._name = name
        self._items = items

    @property
    def name(self) -> str:
        return self._name

    async def act(self, task: Task, opening: Sequence[Message], sampling: Sampling) -> AgentResult:
        skill = opening[0].content if opening and opening[0].role == "system" else ""
        seed = sampling.seed or 0
        scope = CallScope(f"act/{task.id}/{seed}", seed, skill)
        SCOPE.set(scope)
        groups = await self._collect(task, scope)
        scores = [score for group in groups for score in list_scores(group)]
        parts = self._parts
        made = make_row_rollouts(groups[0], task, parts.provenance, lambda ids: str(len(ids)), first=0, seconds=0.0)
        if not made:
            raise HarnessError(f"{self._name}: the score of item '{task.id}' is not a finite number", retryable=False)
        turns = tuple(_drop_tokens(turn) for turn in made[0].turns)
        details = {"score": sum(scores) / len(scores), "rows": len(scores)}
        first = made[0].opening
        return AgentResult(first, (), turns, StopReason.FINISHED, exit=None, error=None, details=details)

    async def _collect(self, task: Task, scope: CallScope) -> list[dict[str, Any]]:
        parts, item = self._parts, self._items[task.id]
        try:
            groups = await parts.host.run(lambda: collect_groups(parts.env, item))
        except LudusError:
            raise
        except Exception as error:  # foreign code
            raise HarnessError(f"the file raised:\n{describe_trace(error)}", retryable=bool(scope.failures)) from error
        if parts.fatal.error is not None:
            raise parts.fatal.error
        if groups:
            return groups
        failure = next(iter(scope.failures), None)
        if isinstance(failure, LudusError):
            raise ModelError(f"{self._name}: {failure}")
        raise HarnessError(
            f"{self._name}: the file returned no group for item '{task.id}', so it has no score. A file that drops "
            "groups of equal scores cannot be measured rollout by rollout",
            retryable=False,
        )

    def use_stage(self, stage: str) -> "FileActor":
        return self

    def use_model(self, model: Model) -> "FileActor":
        raise ConfigError("env.name: the model of a file is that of its session: feed a trainer with `ludus serve`")

    async def close(self) -> None:
        """The session of the file is closed by its owner."""


def _drop_tokens(turn: Any) -> Any:
    """A turn without ids: skill training reads the text."""
    return msgspec.structs.replace(turn, completion=msgspec.structs.replace(turn.completion, tokens=None))
