"""Stage 2: the minibatches that analysts read, and what is accepted from their replies."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.reflact_kit import (
    ScriptedView,
    make_result,
    stream,
)

from ludus.reflact.records import (
    Pattern,
    Reflection,
)
from ludus.reflact.stages.reflect import parse_notes, reflect
from ludus.reflact.train_settings import Appendix
from ludus.types import Message, Rollout


async def test_failures_and_successes_are_dealt_apart_and_broken_rollouts_are_left_out(world: SimpleNamespace):
    scripted = ScriptedView(world)
    rollouts = [
        make_result("a", False),
        make_result("b", True),
        make_result("c", None),
        make_result("d", False),
        make_result("e", False),
    ]
    found = await reflect(scripted.view, 1, stream(rollouts))
    assert [(r.source, r.tasks) for r in found] == [("failure", ("a", "d")), ("failure", ("e",)), ("success", ("b",))]
    assert "gone" not in str(scripted.requests)


async def test_learning_from_failures_only(world: SimpleNamespace):
    scripted = ScriptedView(world, failure_only=True)
    found = await reflect(scripted.view, 1, stream([make_result("a", True), make_result("b", False)]))
    assert [r.source for r in found] == ["failure"]


async def test_partial_credit_is_not_a_success_unless_a_threshold_says_so(world: SimpleNamespace):
    """SkillOpt takes any score above 0 for a success."""
    partly = [make_result("a", False, soft=0.9), make_result("b", False, soft=0.2)]
    strict = await reflect(ScriptedView(world).view, 1, stream(partly))
    assert [(r.source, r.tasks) for r in strict] == [("failure", ("a", "b"))]
    loose = await reflect(ScriptedView(world, success_at=0.5).view, 1, stream(partly))
    assert [(r.source, r.tasks) for r in loose] == [("failure", ("b",)), ("success", ("a",))]


@pytest.mark.parametrize(
    ("origins", "evidence"),
    [
        ([{"item": 1, "rollouts": [2]}, {"item": 2, "rollouts": [1, 3, 3]}], [("b",), ("a", "c")]),
        ([{"item": 2, "rollouts": [1]}], [(), ("a",)]),
        ([], [("a", "b", "c")] * 2),
    ],
)
async def test_an_item_counts_the_rollouts_that_it_was_learned_from(
    world: SimpleNamespace, origins: Any, evidence: Any
):
    """Without any origins nothing better is known than the minibatch."""
    reply = {"items": [world.edit("x"), world.edit("y")], "origins": origins}
    scripted = ScriptedView(world, lambda m: reply, minibatch_size=3)
    (found,) = await reflect(scripted.view, 1, stream([make_result(id, False) for id in "abc"]))
    assert [item.evidence for item in found.items] == evidence
    assert [item.support for item in found.items] == [len(tasks) for tasks in evidence]
    assert '"origins"' in scripted.requests[0][0].content


@pytest.mark.parametrize(
    ("origin", "problem"),
    [
        ({"item": 1, "rollouts": [9]}, "rollouts that were not shown: [9]"),
        ({"item": 7}, "items that do not exist: [7]"),
    ],
)
async def test_origins_that_do_not_exist_are_sent_back(world: SimpleNamespace, origin: Any, problem: str):
    scripted = ScriptedView(world, lambda m: {"items": [world.edit("x")], "origins": [origin]})
    (found,) = await reflect(scripted.view, 1, stream([make_result("a", False)]))
    assert found.items == () and problem in scripted.requests[1][-1].content


async def test_runs_of_earlier_versions_are_not_asked_for_origins(world: SimpleNamespace):
    scripted = ScriptedView(world, support="minibatch")
    await reflect(scripted.view, 1, stream([make_result("a", False)]))
    assert '"origins"' not in scripted.requests[0][0].content


async def test_support_is_the_minibatch_that_was_read_and_not_what_the_model_claims(world: SimpleNamespace):
    """SkillOpt aborts on a claim that is not a number."""

    def claims(messages: Sequence[Message]) -> dict[str, Any]:
        return {"items": [world.edit("x", support="all of them", evidence="sure")], "batch_size": "about eight"}

    (found,) = await reflect(
        ScriptedView(world, claims).view, 1, stream([make_result("a", False), make_result("b", False)])
    )
    (item,) = found.items
    assert (item.support, item.evidence, item.source) == (2, ("a", "b"), "failure")


async def test_an_analyst_proposes_at_most_what_it_may(world: SimpleNamespace):
    def many(messages: Sequence[Message]) -> dict[str, Any]:
        return {"items": [world.edit(f"rule {n}") for n in range(5)]}

    (found,) = await reflect(ScriptedView(world, many, edit_budget=2).view, 1, stream([make_result("a", False)]))
    assert ([item.content for item in found.items], found.cut) == (["rule 0", "rule 1"], 3)


async def test_an_analyst_who_stays_unusable_proposes_nothing_and_the_event_is_recorded(world: SimpleNamespace):
    scripted = ScriptedView(world, lambda messages: "I would rather not.")
    (found,) = await reflect(scripted.view, 1, stream([make_result("a", False)]))
    assert found == Reflection("failure", ("a",))
    (event,) = scripted.journal.list_events()
    assert (event.stage, event.consequence) == ("analyst", "this minibatch proposed nothing")


async def test_patterns_are_tied_to_the_tasks_that_were_shown(world: SimpleNamespace):
    tries = iter([[1, 7], [2]])

    def replies(messages: Sequence[Message]) -> dict[str, Any]:
        return {"items": [], "patterns": [{"name": "slips", "rollouts": next(tries)}]}

    scripted = ScriptedView(world, replies)
    (found,) = await reflect(scripted.view, 1, stream([make_result("a", False), make_result("b", False)]))
    assert found.patterns == (Pattern("slips", "", ("b",)),)
    assert "were not shown: [7]" in scripted.requests[1][3].content


async def test_prompts_are_bounded_whatever_the_rollouts_are(world: SimpleNamespace):
    huge = make_result("a", False, feedback="f" * 500_000)
    scripted = ScriptedView(world, trajectory_tokens=1000)
    await reflect(scripted.view, 1, stream([huge, make_result("b", False, feedback="see me")]))
    (message,) = {m[1].content for m in scripted.requests}
    assert len(message) < 8_000
    assert "see me" in message
    assert "characters left out" in message


async def test_the_same_rollouts_make_the_same_minibatches_whatever_ends_first(world: SimpleNamespace):
    rollouts = [make_result(str(n), n % 3 == 0) for n in range(9)]

    async def slowly(order: Sequence[int]) -> list[tuple[str, ...]]:
        loop = asyncio.get_running_loop()
        slots = [loop.create_future() for _ in rollouts]

        async def stream() -> AsyncIterator[Rollout]:
            for slot in slots:
                yield await slot

        async with asyncio.TaskGroup() as group:
            reading = group.create_task(reflect(ScriptedView(world).view, 1, stream()))
            for n in order:
                await asyncio.sleep(0)
                slots[n].set_result(rollouts[n])
        return [r.tasks for r in reading.result()]

    assert await slowly(range(9)) == await slowly([8, 2, 5, 0, 1, 7, 6, 4, 3])


async def test_an_analyst_starts_as_soon_as_its_minibatch_is_complete(world: SimpleNamespace):
    scripted = ScriptedView(world)

    async def stream() -> AsyncIterator[Rollout]:
        yield make_result("a", False)
        yield make_result("b", False)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(scripted.requests) == 1  # the first minibatch is being read while rollouts still run
        yield make_result("c", False)

    assert len(await reflect(scripted.view, 1, stream())) == 2


@pytest.mark.parametrize(
    ("written", "notes"),
    [
        (["a", " ", "b "], ("a", "b")),
        ("one", ("one",)),
        ([{"note": "a"}, {"content": "b"}, {"text": "c"}], ("a", "b")),
        ([], ()),
    ],
)
def test_notes_are_read_in_every_form_that_models_write_them(written: Any, notes: tuple[str, ...]):
    assert parse_notes(written) == notes


@pytest.mark.parametrize(
    ("settings", "source", "asked"),
    [
        ({"appendix": Appendix(enabled=True)}, False, True),
        ({"appendix": Appendix(enabled=True)}, True, True),
        ({"appendix": Appendix(enabled=True, sources="failure_only")}, True, False),
        ({"appendix": Appendix(enabled=True, sources="failure_only")}, False, True),
        ({}, False, False),
        ({"appendix": Appendix(enabled=True), "update_mode": "full_rewrite_minibatch"}, False, False),
    ],
)
async def test_who_is_asked_for_notes(world: SimpleNamespace, settings: dict[str, Any], source: bool, asked: bool):
    scripted = ScriptedView(world, **settings)
    (found,) = await reflect(scripted.view, 1, stream([make_result("a", source, feedback="rule missing: RULE-1")]))
    assert ("Tell two kinds of failure apart" in scripted.requests[0][0].content) == asked
    assert bool(found.notes) == (asked and not source)
