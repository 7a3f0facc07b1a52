"""The default proposer: its three methods ask the optimizer, each in its stage."""

from types import SimpleNamespace

import pytest
from tests.reflact_kit import ScriptedView, make_result, stream

from ludus.errors import ConfigError
from ludus.reflact.proposers import View
from ludus.reflact.proposers.analysts import Analysts
from ludus.reflact.train_settings import TrainSettings
from ludus.skill import Edit, Skill

FAILED = [make_result(str(n), False, feedback=f"rule missing: RULE-{n}") for n in range(3)]


async def test_rollouts_are_read_merged_and_ranked_by_the_optimizer(world: SimpleNamespace):
    scripted, proposer = ScriptedView(world), Analysts()

    reflections = await proposer.reflect(scripted.view, 1, stream(FAILED))
    items = await proposer.aggregate(scripted.view, reflections)
    contents = [item.content for item in items if isinstance(item, Edit)]
    result = contents, await proposer.select(scripted.view, items, 2)
    assert result == (["Obey RULE-0.", "Obey RULE-1.", "Obey RULE-2."], (2, 1))
    stages = [world.get_stage(request) for request in scripted.requests]
    assert stages == ["analyst_failure", "analyst_failure", "merge_failure", "rank"]


async def test_it_works_in_every_update_mode_and_says_that_it_needs_an_optimizer():
    assert Analysts.modes == ("patch", "rewrite_from_suggestions", "full_rewrite_minibatch")
    assert Analysts.needs_optimizer
    assert Analysts().identity == "analysts@1"
    view = View(TrainSettings(), Skill(""), 1, 1, "", "", "", None)
    with pytest.raises(ConfigError, match="asks for the optimizer's model, and the run has none"):
        await Analysts().select(view, [], 1)
