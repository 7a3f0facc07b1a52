"""The `Model` protocol.

The agent, a judge and the optimizer of a skill are all models. One method is enough: it takes a conversation, the tools
that the model may call and the sampling, and returns a `Completion`. A model raises `ModelError` when its server fails
(after its own retries) and `BudgetExhausted` when a budget is spent. It never makes up a reply.

Some models can do more: prepare (`StartableModel`), pass a reply on while it is sampled (`StreamingModel`), name their
price (`PricedModel`), report exact ids (`tokens.ExactModel`). A model says so by having the methods. Models are often
wrapped, to book their calls for example. `find_capability` looks into wrappers.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar, runtime_checkable

from ludus.types import Completion, Message, Sampling, ToolSpec

T = TypeVar("T")


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


class ModelWrapper:
    """The base class of models around another one. What the inner model can do is found in it, and may be called
    directly by those who do what the wrapper does, such as booking the call."""

    def __init__(self, inner: Model) -> None:
        self.inner = inner


def list_layers(model: Model) -> list[Model]:
    """The model, the model inside it, and so on."""
    layers = [model]
    while isinstance(model, ModelWrapper):
        model = model.inner
        layers.append(model)
    return layers


def find_capability(model: Model, kind: type[T]) -> T | None:
    """The outermost layer of a model that is of a class, or of a protocol such as `StartableModel`; None if none is."""
    return next((layer for layer in list_layers(model) if isinstance(layer, kind)), None)
