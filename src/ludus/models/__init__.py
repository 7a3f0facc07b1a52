"""Who decides: the `Model` protocol.

The agent, a judge and the optimizer of a skill are all Models. One method is enough: a conversation, the tools the
model may call and how to sample go in, a `Completion` comes out. A model raises `ModelError` when its server is at
fault (after its own retries) and `BudgetExhausted` when a budget is spent; it never invents a reply.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ludus.types import Completion, Message, Sampling, ToolSpec


class Model(Protocol):
    @property
    def name(self) -> str:
        """What the record calls this model; part of the policy's fingerprint."""
        ...

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Completion: ...

    async def close(self) -> None:
        """Give back connections and processes. Safe to call twice."""
        ...


@runtime_checkable
class Starts(Protocol):
    """A model that has something to do before its first reply: to load weights, or to ask its server what it is."""

    async def start(self) -> None: ...
