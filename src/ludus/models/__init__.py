"""The `Model` protocol.

The agent, a judge and the optimizer of a skill are all models. One method is enough: it takes a conversation, the tools
that the model may call and the sampling, and returns a `Completion`. A model raises `ModelError` when its server fails
(after its own retries) and `BudgetExhausted` when a budget is spent. It never makes up a reply.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ludus.types import Completion, Message, Sampling, ToolSpec


class Model(Protocol):
    @property
    def name(self) -> str:
        """The model's name in records. It is part of the policy's fingerprint."""
        ...

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Completion: ...

    async def close(self) -> None:
        """Close connections and end processes. Safe to call twice."""
        ...


@runtime_checkable
class StartableModel(Protocol):
    """A model that prepares before its first reply: it loads weights, or asks its server for facts."""

    async def start(self) -> None: ...
