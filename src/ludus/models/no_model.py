"""In place of a model where none is asked: where stored rollouts are judged, or found by the name of their model."""

from collections.abc import Sequence

from ludus.errors import ModelError
from ludus.types import Completion, Message, Sampling, ToolSpec


class NoModel:
    """Has a name and cannot sample."""

    def __init__(self, name: str = "none", why: str = "there is no model") -> None:
        self.name = name
        self._why = why

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        raise ModelError(self._why, retryable=False)

    async def close(self) -> None: ...
