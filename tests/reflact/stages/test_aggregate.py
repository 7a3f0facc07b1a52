"""Stage 3: merges keep their evidence, and one that loses proposals is not accepted."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.reflact_kit import (
    ScriptedView,
)

from ludus.reflact.items import credit_item
from ludus.reflact.records import (
    Reflection,
)
from ludus.reflact.stages.aggregate import aggregate
from ludus.skill import Edit


def make_proposal(source: str, *tasks: str, items: Sequence[str]) -> Reflection:
    made = tuple(credit_item(Edit("append", text), source, tasks) for text in items)  # type: ignore[arg-type]
    return Reflection(source, tasks, made)  # type: ignore[arg-type]


async def test_one_proposal_is_taken_as_it_is_without_a_call(world: SimpleNamespace):
    scripted = ScriptedView(world)
    only = make_proposal("failure", "a", items=["x"])
    assert await aggregate(scripted.view, [only, Reflection("failure", ("b",))]) == only.items
    assert await aggregate(scripted.view, []) == ()
    assert scripted.requests == []


async def test_proposals_are_merged_level_by_level_with_the_evidence_they_came_from(world: SimpleNamespace):
    scripted = ScriptedView(world)
    merged = await aggregate(
        scripted.view,
        [
            make_proposal("failure", "a", items=["x", "y"]),
            make_proposal("failure", "b", items=["x"]),
            make_proposal("failure", "c", items=["x"]),
            make_proposal("success", "s", items=["x"]),
        ],
    )
    assert [world.get_stage(m) for m in scripted.requests] == ["merge_failure", "merge_failure", "merge_final"]
    assert [(i.content, i.support, i.evidence, i.source) for i in merged] == [
        ("x", 4, ("a", "b", "c", "s"), "mixed"),
        ("y", 1, ("a",), "failure"),
    ]
    assert merged[0].level == 3


async def test_a_merge_that_drops_everything_is_not_believed(world: SimpleNamespace):
    """SkillOpt accepts an empty merge, and with it loses every proposal of the step."""
    scripted = ScriptedView(world, lambda messages: {"items": []})
    proposals = [make_proposal("failure", "a", items=["x"]), make_proposal("failure", "b", items=["y"])]
    assert [i.content for i in await aggregate(scripted.view, proposals)] == ["x", "y"]
    (event,) = scripted.journal.list_events()
    assert "must not drop everything" in event.problem
    assert event.consequence == "the items of the group were kept as they were"


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"item": {"op": "append", "content": "z"}, "made_of": []}, "empty made_of"),
        ({"item": {"op": "append", "content": "z"}, "made_of": [3]}, "do not exist: [3]"),
        ({"item": "just text", "made_of": [1]}, "Expected `object`"),
        ("just text", "Expected `object`"),
        ({"item": {"op": "swap"}, "made_of": [1]}, "Invalid enum value 'swap'"),
    ],
)
async def test_a_merge_whose_items_come_from_nowhere_is_asked_again(world: SimpleNamespace, entry: Any, says: str):
    """Items that are no objects crash SkillOpt's own fallback."""
    scripted = ScriptedView(world, lambda messages: {"items": [entry]})
    proposals = [make_proposal("failure", "a", items=["x"]), make_proposal("failure", "b", items=["y"])]
    assert len(await aggregate(scripted.view, proposals)) == 2
    assert says in scripted.requests[1][3].content
