"""Stages 1 and 2 side by side: the rollouts of a step, and the proposer reading them as they come.

The proposer gets the rollouts of a batch in the order of the plan, each as soon as it and those before it are there, so
what it makes of them does not depend on which ended first.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from ludus.reflact.journal import Clock, side_by_side
from ludus.reflact.lab import Trial
from ludus.reflact.proposers import View
from ludus.reflact.records import Reflection
from ludus.reflact.splits import Batch
from ludus.reflact.training_run import Run
from ludus.types import Rollout

T = TypeVar("T")


class _Arriving:
    """Rollouts in the order of the plan, each as soon as it is there."""

    def __init__(self, slots: Sequence["asyncio.Future[Rollout]"]) -> None:
        self._slots = iter(slots)

    def __aiter__(self) -> AsyncIterator[Rollout]:
        return self

    async def __anext__(self) -> Rollout:
        for slot in self._slots:
            return await slot
        raise StopAsyncIteration


async def roll_and_reflect(
    run: Run, view: View, batches: Sequence[Batch], clock: Clock
) -> tuple[list[list[Rollout]], list[Reflection]]:
    """The rollouts of each batch, and what they taught."""
    trials = [Trial(view.skill, task, batch.seed) for batch in batches for task in batch.tasks]
    loop = asyncio.get_running_loop()
    slots: list[asyncio.Future[Rollout]] = [loop.create_future() for _ in trials]
    async with side_by_side() as group:
        rolling = group.create_task(run.lab.roll(trials, "rollout", lambda index, it: slots[index].set_result(it)))
        reading = [
            group.create_task(run.proposer.reflect(view, number, _Arriving(part)))
            for number, part in enumerate(_cut(slots, batches), 1)
        ]
        rollouts = await rolling
        clock.lap("rollout")
    clock.lap("reflect")
    return _cut(rollouts, batches), [reflection for task in reading for reflection in task.result()]


def _cut(values: Sequence[T], batches: Sequence[Batch]) -> list[list[T]]:
    """The values, batch by batch."""
    rest = iter(values)
    return [[next(rest) for _ in batch.tasks] for batch in batches]
