"""Stages 1 and 2: the batches of a step run together, and a proposer gets rollouts in the order of the plan."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.reflact_kit import make_run, make_waiting_agent

from ludus.errors import ConfigError
from ludus.reflact.journal import Clock
from ludus.reflact.proposers import Proposer, View
from ludus.reflact.records import MeasuredSkill, Reflection, RunState
from ludus.reflact.splits import TrainBatch
from ludus.reflact.stages.collect import roll_and_reflect
from ludus.reflact.train_settings import SlowUpdate, TrainSettings
from ludus.skill import Skill
from ludus.types import Message, Rollout


def test_the_batches_of_a_step_run_together(world: SimpleNamespace):
    """Three batches of two: the first rollouts of a run that need each other to be under way."""
    settings = TrainSettings(
        recipe="reflact",
        epochs=1,
        batch_size=2,
        accumulation=3,
        slow=SlowUpdate(enabled=False),
        memory=False,
        test=False,
    )
    waiting = make_waiting_agent(world, 6)

    async def agent(messages: Sequence[Message], *rest: Any) -> Message:
        train = messages[-1].content.startswith("train")
        return await waiting(messages, *rest) if train else world.agent(messages, *rest)

    records = world.run(settings=settings, policy=world.policy(script=agent))
    assert len(records[1].batches) == 3


class Watcher(Proposer):
    """Keeps what it gets, and when."""

    name = "watcher"

    def __init__(self) -> None:
        self.tasks: dict[int, list[str]] = {}

    async def reflect(self, view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> tuple[Reflection, ...]:
        async for rollout in rollouts:
            self.tasks.setdefault(batch, []).append(rollout.task.id)
        return (Reflection("failure", tuple(self.tasks[batch])),)


async def test_a_proposer_gets_each_batch_in_the_order_of_the_plan_whatever_ends_first(world: SimpleNamespace):
    """Rollouts end in reverse order here."""
    tasks = world.tasks("train", 6)
    batches = [TrainBatch(1, tasks[:4]), TrainBatch(2, tasks[4:])]
    started: list[str] = []
    gates = {task.prompt: asyncio.Event() for task in tasks}

    async def agent(messages: Sequence[Message], *rest: Any) -> Message:
        question = messages[-1].content
        started.append(question)
        if len(started) == len(tasks):
            gates[tasks[-1].prompt].set()
        await gates[question].wait()
        place = [task.prompt for task in tasks].index(question)
        if place:
            gates[tasks[place - 1].prompt].set()
        return world.agent(messages, *rest)

    watcher = Watcher()
    run = make_run(world, proposer=watcher)
    run = dataclasses.replace(run, runner=dataclasses.replace(run.runner, policy=world.policy(script=agent)))
    start = MeasuredSkill(Skill("# Skill\n"), "initial_skill")
    view = run.make_view(RunState(initial=start, current=start, best=start), 1)

    rollouts, reflections = await roll_and_reflect(run, view, batches, Clock(run.journal, 1, 1))
    wanted = [[task.id for task in batch.tasks] for batch in batches]
    assert [[rollout.task.id for rollout in part] for part in rollouts] == wanted
    assert [list(reflection.tasks) for reflection in reflections] == wanted


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "Wrong.reflect returned NoneType, not a tuple of Reflections"),
        (("text",), "Wrong.reflect returned a sequence with str, not a tuple of Reflections"),
    ],
)
def test_a_proposer_that_returns_something_else_is_named(world: SimpleNamespace, result: Any, message: str):
    class Wrong(Proposer):
        name = "wrong"

        async def reflect(self, view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> Any:
            return result

    with pytest.raises(ConfigError, match=f"train.proposer: {message}"):
        world.run(proposer=Wrong())


def test_a_proposer_whose_aggregate_returns_something_else_is_named(world: SimpleNamespace):
    class Wrong(Watcher):
        async def aggregate(self, view: View, reflections: Sequence[Reflection]) -> Any:
            return [reflections]

    with pytest.raises(ConfigError, match=r"Wrong\.aggregate returned a sequence with list, not a tuple of items"):
        world.run(proposer=Wrong())
