"""The feed: which groups are run, how far ahead, and what is found again."""

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.build import make_task
from tests.rl_kit import Letters, TableModel

from ludus.control import RunControl
from ludus.errors import BudgetExhausted
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.rl.group_feed import FeedPlan, GroupFeed, fits_later_steps
from ludus.runner import Runner, RunOptions
from ludus.store import MemoryStore

TASKS = tuple(Letters().tasks("train"))


def make_feed(
    store: MemoryStore | None = None, consumed: tuple[int, ...] = (), options: RunOptions | None = None, **plan: int
) -> GroupFeed:
    fields = {"groups": 2, "group_size": 3, "staleness": 0, "seed": 0, **plan}
    runner = Runner(Letters(), store=store or MemoryStore(), options=options or RunOptions(concurrency=64))
    return GroupFeed(FeedPlan(TASKS, **fields), Policy(ScriptedModel([])), runner, lambda v: f"m{v}", consumed)


class Gate:
    """Holds replies until it is opened. Counts those that were begun, by model."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.begun: Counter[str] = Counter()

    async def __call__(self, model: TableModel) -> None:
        self.begun[model.name] += 1
        await self.opened.wait()


async def settle() -> None:
    """Let everything that can run run."""
    for _ in range(50):
        await asyncio.sleep(0)


@given(st.integers(1, 20), st.integers(0, 60), st.integers(0, 5))
def test_every_task_comes_once_before_any_comes_again(count: int, number: int, seed: int):
    tasks = tuple(make_task(str(n)) for n in range(count))
    plan = FeedPlan(tasks, 1, 2, 0, seed)
    first = number // count * count
    assert sorted(plan.choose_task(n).id for n in range(first, first + count)) == sorted(task.id for task in tasks)


def test_seeds_differ_between_groups_of_one_task():
    plan = FeedPlan(TASKS[:1], 1, 2, 0, 0)
    policy = Policy(ScriptedModel([]))
    assert len({job.seed for number in range(5) for job in plan.make_jobs(number, policy)}) == 10


@pytest.mark.parametrize(("staleness", "ahead"), [(0, 2), (1, 4), (3, 8)])
async def test_no_more_groups_are_begun_than_the_staleness_allows(staleness: int, ahead: int):
    gate = Gate()
    async with make_feed(staleness=staleness) as feed:
        await feed.set_model(TableModel("m0", {}, gate), 0, 0)
        await settle()
        assert gate.begun["m0"] == ahead * 3
        await feed.set_model(TableModel("m1", {}, gate), 1, 1)
        await settle()
        assert gate.begun["m1"] == 2 * 3


async def test_on_policy_groups_come_in_order_and_are_of_the_newest_version():
    async with make_feed() as feed:
        for version in range(3):
            await feed.set_model(TableModel(f"m{version}", {}), version, version)
            taken = await feed.take()
            assert taken is not None
            assert [group.number for group in taken] == [2 * version, 2 * version + 1]
            assert {group.version for group in taken} == {version}
            assert {r.provenance.model for group in taken for r in group.group.rollouts} == {f"m{version}"}


async def test_a_step_waits_for_a_group_that_would_be_too_old_after_it():
    slow = Gate()
    first = TableModel("m0", {}, slow)
    async with make_feed(staleness=1, groups=1, options=RunOptions(concurrency=9)) as feed:
        await feed.set_model(first, 0, 0)
        await settle()  # groups 0 and 1 wait
        await feed.set_model(TableModel("m1", {}), 1, 1)
        await settle()  # group 2 is ready
        taking = asyncio.create_task(feed.take())
        await settle()
        assert not taking.done()
        slow.opened.set()
        taken = await taking
        assert taken is not None
        assert [group.number for group in taken] == [0]  # the oldest first


@pytest.mark.parametrize(
    ("ages", "staleness", "groups", "fits"),
    [
        ([], 0, 1, True),
        ([0], 0, 1, False),  # on-policy: the next version is another one
        ([0], 1, 1, True),
        ([1], 1, 1, False),
        ([0, 0], 1, 1, False),  # the one later step takes one
        ([0, 0], 2, 1, True),
        ([1, 1], 2, 1, False),
        ([1, 0], 2, 1, True),
        ([0, 0, 0, 0, 0], 2, 2, False),
    ],
)
def test_groups_wait_only_if_later_steps_can_take_them(ages: list[int], staleness: int, groups: int, fits: bool):
    assert fits_later_steps(ages, staleness, groups) is fits


@settings(max_examples=60)
@given(st.integers(0, 3), st.integers(1, 3), st.randoms(use_true_random=False))
def test_nothing_is_dropped_and_nothing_is_older_than_the_staleness(staleness: int, groups: int, random: Random):
    async def run() -> list[tuple[int, int, int]]:
        async def wait(_: TableModel) -> None:
            for _ in range(random.choice((0, 0, 3, 40))):
                await asyncio.sleep(0)

        seen: list[tuple[int, int, int]] = []
        async with make_feed(staleness=staleness, groups=groups, options=RunOptions(concurrency=64)) as feed:
            for step in range(8):
                await feed.set_model(TableModel(f"m{step}", {}, wait), step, step)
                taken = await feed.take()
                assert taken is not None
                seen += [(step, group.number, group.version) for group in taken]
        return seen

    seen = asyncio.run(run())
    assert len(seen) == 8 * groups
    assert max(step - version for step, _, version in seen) <= staleness
    numbers = sorted(number for _, number, _ in seen)
    missing = set(range(numbers[-1])) - set(numbers)
    assert len(missing) <= (staleness + 1) * groups  # those that are still under way


async def test_slow_tasks_are_learned_from_as_often_as_fast_ones():
    """Rollouts of the last tasks take long, as if they were hard."""
    counts: Counter[str] = Counter()

    class Slow(TableModel):
        async def complete(self, messages: Any, tools: Any, sampling: Any) -> Any:
            for _ in range(400 if messages[-1].content in ("4", "5") else 0):
                await asyncio.sleep(0)
            return await super().complete(messages, tools, sampling)

    async with make_feed(staleness=2, groups=2) as feed:
        for step in range(30):
            await feed.set_model(Slow(f"m{step}", {}), step, step)
            counts.update(group.group.task.id for group in await feed.take() or ())
            for _ in range(40):  # the trainer is busy
                await asyncio.sleep(0)
    assert max(counts.values()) - min(counts.values()) <= 1, counts


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.randoms(use_true_random=False))
def test_a_reward_that_depends_on_duration_is_seen_without_bias(staleness: int, groups: int, random: Random):
    """Slow tasks pay 1, fast ones 0. Half of the tasks are slow, and so is half of what is learned from."""
    slow = {"0", "2", "4"}

    class Slow(TableModel):
        async def complete(self, messages: Any, tools: Any, sampling: Any) -> Any:
            for _ in range(random.randint(100, 300) if messages[-1].content in slow else 0):
                await asyncio.sleep(0)
            return await super().complete(messages, tools, sampling)

    async def run() -> list[float]:
        rewards: list[float] = []
        async with make_feed(staleness=staleness, groups=groups) as feed:
            for step in range(18):
                await feed.set_model(Slow(f"m{step}", {}), step, step)
                rewards += [float(each.group.task.prompt in slow) for each in await feed.take() or ()]
                for _ in range(random.randint(0, 60)):  # the trainer is busy
                    await asyncio.sleep(0)
        return rewards

    rewards = asyncio.run(run())
    assert abs(sum(rewards) - len(rewards) / 2) <= (staleness + 1) * groups + 3, "but for what is under way"


async def test_whole_groups_of_an_earlier_process_are_found_and_consumed_ones_are_not_run():
    store = MemoryStore()

    async def sample(version: int, consumed: tuple[int, ...], gate: Gate | None) -> list[tuple[int, int]]:
        async with make_feed(store, consumed, staleness=1) as feed:
            await feed.set_model(TableModel(f"m{version}", {}, gate), version, version)
            taken = await feed.take()
            assert taken is not None
            return [(group.number, group.version) for group in taken]

    assert await sample(0, (), None) == [(0, 0), (1, 0)]  # 2 and 3 are sampled, too
    never = Gate()
    assert await sample(1, (0, 1), never) == [(2, 0), (3, 0)]


async def test_an_error_of_a_rollout_is_raised_to_the_taker():
    class Broke(TableModel):
        async def complete(self, *_: object) -> object:
            raise BudgetExhausted("no tokens left")

    async with make_feed() as feed:
        await feed.set_model(Broke("m0", {}), 0, 0)
        with pytest.raises(BudgetExhausted):
            await feed.take()


async def test_stopping_drains_and_ends_the_feed():
    control, gate, store = RunControl(), Gate(), MemoryStore()
    async with make_feed(store, options=RunOptions(concurrency=3, control=control)) as feed:
        await feed.set_model(TableModel("m0", {}, gate), 0, 0)
        taking = asyncio.create_task(feed.take())
        await settle()
        control.stop()
        await settle()
        assert not taking.done()
        gate.opened.set()
        assert await taking is None
        assert len(store.outcomes) == 3


async def test_leaving_the_feed_ends_what_runs_and_closes_the_model():
    model = TableModel("m0", {}, Gate())
    async with make_feed() as feed:
        await feed.set_model(model, 0, 0)
        await settle()
    assert model.closed
