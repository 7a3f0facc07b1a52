"""Stage 4: budgets, and the items that are chosen within them."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.reflact_kit import (
    ScriptedView,
)

from ludus.errors import ConfigError
from ludus.reflact.items import credit_item
from ludus.reflact.proposers import Proposer, View
from ludus.reflact.records import (
    BatchReport,
    BudgetDecision,
    pool_scores,
)
from ludus.reflact.stages.select import choose_items, decide_budget, rank_items
from ludus.skill import Edit

ITEMS = tuple(credit_item(Edit("append", str(n)), "failure", ["t"] * 1) for n in range(4))


REPORTS = (BatchReport(1, 4, 1, 1 / 3, 0.5), BatchReport(2, 1, 0, 1.0, 1.0))


async def test_what_fits_the_budget_is_taken_untouched_without_a_call(world: SimpleNamespace):
    scripted = ScriptedView(world)
    assert await choose_items(Proposer(), scripted.view, ITEMS, BudgetDecision("scheduled", 4, 4)) == (
        0,
        1,
        2,
        3,
    )
    assert await choose_items(Proposer(), scripted.view, ITEMS, None) == (0, 1, 2, 3)
    assert await choose_items(Proposer(), scripted.view, ITEMS, BudgetDecision("none", None, 4)) == (0, 1, 2, 3)


async def test_a_budget_of_zero_selects_nothing(world: SimpleNamespace):
    """SkillOpt still applies one edit."""

    class Eager(Proposer):
        async def select(self, view: View, items: Any, budget: int) -> tuple[int, ...]:
            return (0, 1, 2)

    assert await choose_items(Eager(), ScriptedView(world).view, ITEMS, BudgetDecision("autonomous", 0, 4)) == ()
    assert await choose_items(Eager(), ScriptedView(world).view, ITEMS, BudgetDecision("autonomous", 2, 4)) == (
        0,
        1,
    )


async def test_the_ranking_decides_which_and_in_what_order(world: SimpleNamespace):
    scripted = ScriptedView(world, lambda messages: {"selected": [4, 9, 4, 0, 1, 2]})
    assert await rank_items(scripted.view, ITEMS, 2) == (3, 0)


async def test_a_ranking_that_stays_unusable_means_the_first_items_and_an_event(world: SimpleNamespace):
    scripted = ScriptedView(world, lambda messages: {"selected": [17]})
    assert await rank_items(scripted.view, ITEMS, 2) == (0, 1)
    assert scripted.journal.list_events()[0].consequence == "the first items were taken"


async def test_scheduled_budgets(world: SimpleNamespace):
    scripted = ScriptedView(world, edit_budget=10, min_edit_budget=2, schedule="linear")
    values = [(await decide_budget(scripted.view, ITEMS, REPORTS, step, 4)).value for step in (1, 2, 3, 4)]
    assert values == [8, 6, 4, 2]
    assert (await decide_budget(ScriptedView(world, control="none").view, ITEMS, REPORTS, 1, 4)).value is None
    assert (
        await decide_budget(ScriptedView(world, update_mode="full_rewrite_minibatch").view, ITEMS, REPORTS, 1, 4)
        is None
    )


async def test_an_autonomous_budget_is_the_optimizers_with_its_reasons(world: SimpleNamespace):
    scripted = ScriptedView(
        world, lambda m: {"budget": 9, "reasoning": "much is wrong", "risks": ["haste"]}, control="autonomous"
    )
    decision = await decide_budget(scripted.view, ITEMS, REPORTS, 1, 4)
    assert (decision.value, decision.asked, decision.reasoning, decision.risks) == (4, 9, "much is wrong", ("haste",))
    assert "4 rollouts; passed 0.500000; mean partial credit 0.625000" in scripted.requests[0][1].content
    assert pool_scores(REPORTS) == (4, 0.5, 0.625)


@pytest.mark.parametrize("reply", [{"budget": -1}, {"budget": "a few"}, {"budget": True, "confidence": "sure"}, "two"])
async def test_an_autonomous_budget_that_stays_unusable_applies_nothing_and_is_recorded(
    world: SimpleNamespace, reply: Any
):
    scripted = ScriptedView(world, lambda messages: reply, control="autonomous")
    decision = await decide_budget(scripted.view, ITEMS, REPORTS, 1, 4)
    assert (decision.value, decision.asked) == (0, None)
    assert scripted.journal.list_events()[0].consequence == "nothing was applied"


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (ITEMS[:1], "Wrong.select returned a sequence with Edit, not a tuple of indices"),
        ((0, 9), "Wrong.select returned the index 9; the items are 0 to 3"),
    ],
)
async def test_a_proposer_that_selects_something_else_is_named(world: SimpleNamespace, chosen: Any, message: str):
    class Wrong(Proposer):
        async def select(self, view: View, items: Any, budget: int) -> Any:
            return chosen

    with pytest.raises(ConfigError, match=f"train.proposer: {message}"):
        await choose_items(Wrong(), ScriptedView(world).view, ITEMS, BudgetDecision("scheduled", 2, 4))
