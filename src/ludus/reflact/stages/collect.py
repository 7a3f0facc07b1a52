"""Stages 1 and 2 in parallel: run the rollouts of a step while the proposer reads those that have ended.

The proposer gets the rollouts of a batch in the order of the plan. Each one is delivered when it and all rollouts
before it have ended, so the result does not depend on the order in which they end.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from ludus.reflact.journal import Clock, open_task_group
from ludus.reflact.measure import Trial
from ludus.reflact.proposers import Proposer, View, check_result
from ludus.reflact.records import Reflection
from ludus.reflact.splits import TrainBatch
from ludus.reflact.training_run import TrainingRun
from ludus.types import Rollout

T = TypeVar("T")


class _RolloutStream:
    """Yields rollouts in the order of the plan, each when it has ended."""

    def __init__(self, slots: Sequence["asyncio.Future[Rollout]"]) -> None:
        self._slots = iter(slots)

    def __aiter__(self) -> AsyncIterator[Rollout]:
        return self

    async def __anext__(self) -> Rollout:
        for slot in self._slots:
            return await slot
        raise StopAsyncIteration


async def roll_and_reflect(
    run: TrainingRun, view: View, batches: Sequence[TrainBatch], clock: Clock
) -> tuple[list[list[Rollout]], list[Reflection]]:
    """The rollouts of each batch, and the reflections on them."""
    trials = [Trial(view.skill, task, batch.seed) for batch in batches for task in batch.tasks]
    loop = asyncio.get_running_loop()
    slots: list[asyncio.Future[Rollout]] = [loop.create_future() for _ in trials]
    async with open_task_group() as group:
        rolling = group.create_task(
            run.runner.run_trials(trials, "rollout", lambda index, it: slots[index].set_result(it))
        )
        reading = [
            group.create_task(_reflect(run.proposer, view, number, _RolloutStream(part)))
            for number, part in enumerate(_split_by_batch(slots, batches), 1)
        ]
        rollouts = await rolling
        clock.lap("rollout")
    clock.lap("reflect")
    return _split_by_batch(rollouts, batches), [reflection for task in reading for reflection in task.result()]


async def _reflect(
    proposer: Proposer, view: View, number: int, rollouts: AsyncIterator[Rollout]
) -> tuple[Reflection, ...]:
    result = await proposer.reflect(view, number, rollouts)
    return check_result(proposer, "reflect", result, Reflection, "Reflections")


def _split_by_batch(values: Sequence[T], batches: Sequence[TrainBatch]) -> list[list[T]]:
    """The values as one list per batch."""
    rest = iter(values)
    return [[next(rest) for _ in batch.tasks] for batch in batches]
