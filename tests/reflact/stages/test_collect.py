"""Parts of a run that do not need each other run side by side. Where they would not, these tests wait until a time
limit ends them: every rollout waits for the others that should be under way."""

import asyncio
from collections.abc import Awaitable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

from ludus.reflact.journal import Journal
from ludus.reflact.measure import Runner
from ludus.reflact.proposers import View
from ludus.reflact.splits import FinishedSkills
from ludus.reflact.stages import evaluate
from ludus.reflact.stages.slow_update import compare_skills
from ludus.reflact.train_settings import SlowUpdate, TrainSettings
from ludus.rollout import RunOptions
from ludus.skill import Skill
from ludus.store import MemoryStore
from ludus.types import Message

T = TypeVar("T")


def meeting(world: SimpleNamespace, size: int) -> Any:
    """An agent whose rollouts wait until `size` of them are under way."""
    here: list[int] = []
    everyone = asyncio.Event()

    async def agent(messages: Sequence[Message], *rest: Any) -> Message:
        here.append(1)
        if len(here) == size:
            everyone.set()
        await everyone.wait()
        return world.agent(messages, *rest)

    return agent


def runner(world: SimpleNamespace, size: int) -> Runner:
    policy = world.policy(script=meeting(world, size))
    return Runner(world.Env(), policy, None, MemoryStore(), Journal(), RunOptions(concurrency=64))


def within_limit(work: Awaitable[T]) -> T:
    async def go() -> T:
        async with asyncio.timeout(120):
            return await work

    return asyncio.run(go())


def test_both_skills_of_the_slow_update_are_rolled_out_together(world: SimpleNamespace):
    settings = TrainSettings(slow=SlowUpdate(samples=4))
    view = View(settings, Skill("Obey RULE-1."), 2, 4, "", "", "", None)

    async def go() -> None:
        pairs = await compare_skills(runner(world, 8), view, Skill("Obey RULE-0."), world.tasks("train", 6))
        assert len(pairs) == 4

    within_limit(go())


def test_several_skills_are_measured_together(world: SimpleNamespace):
    async def go() -> None:
        measures = await runner(world, 6).measure([Skill("a"), Skill("b")], world.tasks("selection", 3), "x", seed=1)
        assert len(measures) == 2

    within_limit(go())


def test_the_three_tests_at_the_end_run_together(world: SimpleNamespace):
    async def go() -> None:
        run: Any = SimpleNamespace(settings=TrainSettings(), splits=world.splits(), runner=runner(world, 18))
        found = await evaluate.run_test(run, FinishedSkills(Skill("a"), Skill("b"), Skill("c")))
        assert len(found) == 3

    within_limit(go())


def test_the_batches_of_a_step_run_together(world: SimpleNamespace):
    """Three batches of two: the first rollouts of a run that need each other to be under way."""
    settings = TrainSettings(
        epochs=1, batch_size=2, accumulation=3, slow=SlowUpdate(enabled=False), memory=False, test=False
    )
    waiting = meeting(world, 6)

    async def agent(messages: Sequence[Message], *rest: Any) -> Message:
        train = messages[-1].content.startswith("train")
        return await waiting(messages, *rest) if train else world.agent(messages, *rest)

    records = world.run(settings=settings, policy=world.policy(script=agent))
    assert len(records[1].batches) == 3
