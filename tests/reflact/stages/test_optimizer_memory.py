"""Optimizer memory: what the optimizer is shown at the end of an epoch, and what is kept of its reply."""

import dataclasses
from types import SimpleNamespace

from tests.reflact_kit import ScriptedView, make_result

from ludus.reflact.records import UnusableReply
from ludus.reflact.stages.optimizer_memory import write_memory
from ludus.reflact.stages.slow_update import Pair
from ludus.skill import Skill

PAIRS = [Pair("regressed", make_result("r", True), make_result("r", False, feedback="broke"))]


async def test_the_memory_is_the_reply_and_the_prompt_has_both_skills_and_the_comparison(world: SimpleNamespace):
    scripted = ScriptedView(world, lambda request: {"memory": " Adding rules helps.\n"}, skill="# Now\n")
    assert await write_memory(scripted.view, Skill("# Before\n"), PAIRS) == "Adding rules helps."
    (request,) = scripted.requests
    assert world.get_stage(request) == "meta"
    for text in ("# Before", "# Now", "Nothing yet.", "Regressed", "broke"):
        assert text in request[1].content


async def test_the_earlier_memory_is_shown(world: SimpleNamespace):
    scripted = ScriptedView(world)
    view = dataclasses.replace(scripted.view, memory="Shorter is better.")
    await write_memory(view, Skill("x"), PAIRS)
    assert "Shorter is better." in scripted.requests[0][1].content


async def test_an_empty_memory_is_unusable(world: SimpleNamespace):
    scripted = ScriptedView(world, lambda request: {"memory": "  "})
    result = await write_memory(scripted.view, Skill("x"), PAIRS)
    assert isinstance(result, UnusableReply)
    assert (result.problem, result.consequence) == ("its memory is empty", "the memory stayed as it was")
    assert scripted.journal.list_events() == (result,)
