"""Stage 4: decide how many changes are made, and which.

The budget comes from the schedule or from the optimizer (which gives its reasons), or there is none. Within it the best
items are chosen, in the order in which they are applied. A budget of 0 selects nothing. When the optimizer's reply is
unusable, an autonomous budget is 0 and a ranking is the order of the items. Both are recorded as events.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from ludus.errors import ConfigError
from ludus.reflact.items import FORMS, Item, number_items
from ludus.reflact.proposers import Proposer, View, check_result
from ludus.reflact.records import BatchReport, BudgetDecision, Fate, UnusableReply, pool_scores
from ludus.reflact.schedule import compute_budget
from ludus.skill import render_whole


class BudgetReply(Struct, frozen=True):
    budget: Annotated[int, Meta(ge=0)]
    reasoning: str = ""
    confidence: Literal["low", "medium", "high"] = "medium"
    risks: tuple[str, ...] = ()


class RankReply(Struct, frozen=True):
    selected: tuple[int, ...]
    reasoning: str = ""


async def decide_budget(
    view: View, items: Sequence[Item], batches: Sequence[BatchReport], selection: int, total: int
) -> BudgetDecision | None:
    """The number of items to apply in selection number `selection` of `total`; None if no budget applies."""
    settings = view.settings
    if not FORMS[settings.update_mode].limited:
        return None
    if settings.control == "autonomous":
        return await _ask_budget(view, items, batches)
    value = None
    if settings.control == "scheduled":
        value = compute_budget(
            settings.schedule, selection, total, most=settings.edit_budget, least=settings.min_edit_budget
        )
    return BudgetDecision(settings.control, value, len(items))


async def _ask_budget(view: View, items: Sequence[Item], batches: Sequence[BatchReport]) -> BudgetDecision:
    scored, hard, soft = pool_scores(batches)
    reply = await view.require_optimizer().ask(
        "budget",
        {
            "skill": render_whole(view.skill).strip() or "(empty)",
            "memory": view.memory.strip() or "Nothing yet.",
            "history": view.history or "Nothing yet.",
            "evidence": f"{scored} rollouts; passed {_format_share(hard)}; mean partial credit {_format_share(soft)}",
            "items": number_items(items),
            "count": str(len(items)),
        },
        BudgetReply,
        stage="budget",
        place=f"{view.epoch}/{view.step}",
        otherwise="nothing was applied",
    )
    if isinstance(reply, UnusableReply):
        return BudgetDecision("autonomous", 0, len(items))
    value = min(reply.budget, len(items))
    return BudgetDecision(
        "autonomous", value, len(items), reply.budget, reply.reasoning, reply.confidence, tuple(reply.risks)
    )


def _format_share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.6f}"


async def choose_items(
    proposer: Proposer, view: View, items: Sequence[Item], budget: BudgetDecision | None
) -> tuple[int, ...]:
    """The indices of the items to apply, in order. All items are chosen if they fit the budget."""
    limit = None if budget is None else budget.value
    if limit is None or len(items) <= limit:
        return tuple(range(len(items)))
    if not limit:
        return ()
    chosen = check_result(proposer, "select", await proposer.select(view, items, limit), int, "indices of items")
    wrong = [place for place in chosen if not 0 <= place < len(items)]
    if wrong:
        name, last = type(proposer).__name__, len(items) - 1
        raise ConfigError(f"train.proposer: {name}.select returned the index {wrong[0]}; the items are 0 to {last}")
    return chosen[:limit]


def list_not_selected(items: Sequence[Item], chosen: Sequence[int]) -> tuple[Fate, ...]:
    return tuple(Fate(item, "not_selected") for place, item in enumerate(items) if place not in chosen)


async def rank_items(view: View, items: Sequence[Item], budget: int) -> tuple[int, ...]:
    """Ask the optimizer which items to apply. Returns their indices, best first."""
    reply = await view.require_optimizer().ask(
        "rank",
        {
            "skill": render_whole(view.skill).strip() or "(empty)",
            "memory": view.memory.strip() or "Nothing yet.",
            "items": number_items(items),
            "count": str(len(items)),
            "budget": str(budget),
        },
        RankReply,
        stage="rank",
        place=f"{view.epoch}/{view.step}",
        otherwise="the first items were taken",
        check=lambda reply: (
            "" if _parse_places(reply, len(items)) else f"selected must name items by numbers 1 to {len(items)}"
        ),
    )
    places = range(len(items)) if isinstance(reply, UnusableReply) else _parse_places(reply, len(items))
    return tuple(places[:budget])


def _parse_places(reply: RankReply, count: int) -> list[int]:
    return [number - 1 for number in dict.fromkeys(reply.selected) if 1 <= number <= count]
