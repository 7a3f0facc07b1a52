"""The base class of proposers: its defaults need no model."""

import dataclasses
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest
from tests.reflact_kit import ScriptedView, make_result, stream

from ludus.errors import ConfigError
from ludus.reflact import proposers
from ludus.reflact.items import Item, credit_item
from ludus.reflact.proposers import Proposer, check_result
from ludus.reflact.records import Reflection
from ludus.skill import Edit


class Silent(Proposer):
    name = "silent"
    version = "7"


async def test_without_a_model_the_items_with_most_support_are_selected(world: SimpleNamespace):
    items = [
        credit_item(Edit("append", str(n)), "failure", map(str, range(support))) for n, support in enumerate([1, 3, 2])
    ]
    assert await Proposer().select(ScriptedView(world).view, items, 2) == (1, 2)


async def test_equal_items_are_merged_with_the_evidence_of_all_and_those_from_failures_come_first(
    world: SimpleNamespace,
):
    def reflect(source: str, task: str, *contents: str) -> Reflection:
        items: list[Item] = [credit_item(Edit("append", text), source, [task]) for text in contents]  # type: ignore[arg-type]
        return Reflection(source, (task,), tuple(items))  # type: ignore[arg-type]

    reflections = [reflect("success", "s", "x", "z"), reflect("failure", "a", "y"), reflect("failure", "b", "x")]
    items = await Proposer().aggregate(ScriptedView(world).view, reflections)
    assert [(item.content, item.source, item.evidence) for item in items if isinstance(item, Edit)] == [
        ("y", "failure", ("a",)),
        ("x", "mixed", ("b", "s")),
        ("z", "success", ("s",)),
    ]


async def test_a_proposer_must_define_reflect_and_its_identity_has_name_and_version(world: SimpleNamespace):
    assert Silent().identity == "silent@7"
    with pytest.raises(NotImplementedError, match="Silent does not define reflect"):
        await Silent().reflect(ScriptedView(world).view, 1, stream([]))


async def test_the_example_of_the_documentation_proposes_an_edit_with_its_evidence(world: SimpleNamespace):
    assert proposers.__doc__ is not None
    code = textwrap.dedent(proposers.__doc__.partition("define `name` and `reflect`:\n")[2])
    names: dict[str, Any] = {
        "Proposer": Proposer,
        "Reflection": Reflection,
        "Edit": Edit,
        "credit_item": credit_item,
    }
    exec(code, names)
    rollouts = [make_result("a", False), make_result("b", True), make_result("c", None), make_result("d", False)]
    view = ScriptedView(world).view
    (reflection,) = await names["Reminder"]().reflect(view, 1, stream(rollouts))
    (edit,) = reflection.items
    assert (edit.content, edit.evidence) == ("Check your answer twice.", ("a", "d"))
    assert await names["Reminder"]().reflect(view, 1, stream([])) == ()


def test_a_proposer_that_asks_for_a_model_must_say_that_it_needs_one(world: SimpleNamespace):
    view = dataclasses.replace(ScriptedView(world).view, optimizer=None)
    with pytest.raises(ConfigError, match=r"train\.proposer: .* set `needs_optimizer = True` in the proposer's class"):
        view.require_optimizer()


def test_the_result_of_a_proposer_is_checked_and_becomes_a_tuple():
    assert check_result(Silent(), "select", [2, 1], int, "indices") == (2, 1)
    for wrong, given in {"ab": "str", (1, None): "a sequence with NoneType"}.items():
        with pytest.raises(
            ConfigError, match=rf"train\.proposer: Silent\.select returned {given}, not a tuple of indices"
        ):
            check_result(Silent(), "select", wrong, int, "indices")
