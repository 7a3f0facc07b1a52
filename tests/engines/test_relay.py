"""A model of the driver that is asked from a node: the same objects on both ends, errors as they were raised."""

import gc

import pytest

from ludus.engines.relay import RelayDesk, RelayLine
from ludus.errors import BudgetExhausted, ModelError, ModelUnusable
from ludus.models import Model
from ludus.models.scripted import ScriptedModel, say
from ludus.types import Completion, Message, Sampling, ToolSpec

HELLO = Message("user", "Hello \ud800")
"""With half a surrogate pair, which programs print."""


class Remembering:
    """Knows its own replies by their identity, as a model in token mode does."""

    name = "remembering"

    def __init__(self) -> None:
        self.replies: list[Message] = []
        self.known: list[list[bool]] = []

    async def complete(self, messages: list[Message], tools: tuple[ToolSpec, ...], sampling: Sampling) -> Completion:
        self.known.append([any(message is reply for reply in self.replies) for message in messages])
        self.replies.append(say(f"reply {len(self.replies)}"))
        return Completion(self.replies[-1])

    async def close(self) -> None: ...


def connect(model: Model) -> tuple[RelayDesk, RelayLine]:
    desk = RelayDesk(lambda name: model if name == model.name else None)
    return desk, RelayLine(lambda data: desk.answer("node", data))


async def test_the_driver_meets_its_own_replies_again():
    model = Remembering()
    _, line = connect(model)
    relayed = line.open_model("remembering")
    first = await relayed.complete([HELLO], (), Sampling())
    copied = Message("assistant", first.message.content)
    await relayed.complete([HELLO, first.message, copied], (), Sampling())
    assert model.known == [[False], [False, True, False]]


async def test_what_a_node_lets_go_of_is_dropped():
    desk, line = connect(Remembering())
    first = await line.open_model("remembering").complete([HELLO], (), Sampling())
    assert line.dropped == []
    del first
    gc.collect()
    assert len(line.dropped) == 1
    desk.drop("node", line.dropped)
    desk.lose("node")


@pytest.mark.parametrize(
    "error",
    [BudgetExhausted("spent"), ModelUnusable("wrong key"), ModelError("busy"), ModelError("no", retryable=False)],
)
async def test_errors_arrive_as_they_were_raised(error: Exception):
    def script(*_: object) -> str:
        raise error

    _, line = connect(ScriptedModel(script))
    with pytest.raises(type(error), match=str(error)) as caught:
        await line.open_model("scripted").complete([HELLO], (), Sampling())
    assert getattr(caught.value, "retryable", None) == getattr(error, "retryable", None)


async def test_a_bug_of_the_model_and_a_model_that_is_gone():
    def script(*_: object) -> str:
        raise ZeroDivisionError("oh")

    _, line = connect(ScriptedModel(script))
    with pytest.raises(RuntimeError, match="ZeroDivisionError: oh"):
        await line.open_model("scripted").complete([HELLO], (), Sampling())
    with pytest.raises(ModelError, match="the model other is not in use any more"):
        await line.open_model("other").complete([HELLO], (), Sampling())
