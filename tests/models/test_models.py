"""What models can do, also inside of others."""

from collections.abc import Sequence

from ludus.models import ModelWrapper, StartableModel, find_capability, list_layers
from ludus.models.ledger import Ledger, MeteredModel
from ludus.models.scripted import ScriptedModel
from ludus.types import Completion, Message, Sampling, ToolSpec


class Plain:
    """A model as users write it: nothing but the protocol."""

    name = "plain"

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        return Completion(Message("assistant", "ok"))

    async def close(self) -> None: ...


class Starting(Plain):
    async def start(self) -> None: ...


class Holder(Plain):
    """A model with an attribute that only looks like a wrapper's."""

    inner = Starting()


class Watched(ModelWrapper, Plain):
    """A wrapper as users write it."""


def test_a_model_that_says_nothing_has_one_layer_and_no_capability():
    model = Plain()
    assert list_layers(model) == [model] and find_capability(model, StartableModel) is None


def test_the_layers_of_a_wrapped_model_are_listed_from_outside():
    inner = ScriptedModel(["ok"])
    middle = Watched(inner)
    outer = MeteredModel(middle, Ledger(), "agent")
    assert list_layers(outer) == [outer, middle, inner]
    assert find_capability(outer, ScriptedModel) is inner


def test_the_outermost_layer_that_can_do_it_is_found():
    inner = Starting()
    one = MeteredModel(inner, Ledger(), "agent")
    two = MeteredModel(one, Ledger(), "judge")
    assert find_capability(two, StartableModel) is inner
    assert find_capability(two, MeteredModel) is two


def test_an_attribute_of_a_users_own_model_is_not_looked_into():
    assert find_capability(MeteredModel(Holder(), Ledger(), "agent"), StartableModel) is None
