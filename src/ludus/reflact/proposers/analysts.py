"""The default proposer: the optimizer's model reads minibatches of rollouts, merges the proposals and ranks them."""

from collections.abc import AsyncIterator, Sequence
from typing import ClassVar

from ludus.reflact.items import Item
from ludus.reflact.proposers import Proposer, View
from ludus.reflact.records import Reflection
from ludus.reflact.stages.aggregate import aggregate
from ludus.reflact.stages.reflect import reflect
from ludus.reflact.stages.select import rank_items
from ludus.reflact.train_settings import UpdateMode
from ludus.types import Rollout


class Analysts(Proposer):
    """Proposes changes with the optimizer's model."""

    name: ClassVar[str] = "analysts"
    modes: ClassVar[tuple[UpdateMode, ...]] = ("patch", "rewrite_from_suggestions", "full_rewrite_minibatch")
    needs_optimizer: ClassVar[bool] = True
    simulated: ClassVar[bool] = True
    names_causes: ClassVar[bool] = True

    async def reflect(self, view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> tuple[Reflection, ...]:
        return await reflect(view, batch, rollouts)

    async def aggregate(self, view: View, reflections: Sequence[Reflection]) -> tuple[Item, ...]:
        return await aggregate(view, reflections)

    async def select(self, view: View, items: Sequence[Item], budget: int) -> tuple[int, ...]:
        return await rank_items(view, items, budget)
