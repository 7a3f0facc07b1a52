"""The feed: which groups are run, how far ahead, and what is found again."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.build import make_task
from tests.rl_kit import Letters, TableModel

from ludus.agent import Policy
from ludus.errors import BudgetExhausted
from ludus.models.scripted import ScriptedModel
from ludus.rl.group_feed import FeedPlan, GroupFeed, RunParts
from ludus.rollout import RunOptions
from ludus.store import MemoryStore

TASKS = tuple(Letters().tasks("train"))


def make_feed(
    store: MemoryStore | None = None, consumed: tuple[int, ...] = (), options: RunOptions | None = None, **plan: int
) -> GroupFeed:
    fields = {"groups": 2, "group_size": 3, "staleness": 0, "seed": 0, **plan}
    parts = RunParts(Letters(), None, store or MemoryStore(), options or RunOptions(concurrency=64))
    return GroupFeed(FeedPlan(TASKS, **fields), Policy(ScriptedModel([])), parts, lambda v: f"m{v}", consumed)


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
def test_no_more_groups_are_begun_than_the_staleness_allows(staleness: int, ahead: int):
    async def main() -> None:
        gate = Gate()
        async with make_feed(staleness=staleness) as feed:
            await feed.set_model(TableModel("m0", {}, gate), 0, 0)
            await settle()
            assert gate.begun["m0"] == ahead * 3
            await feed.set_model(TableModel("m1", {}, gate), 1, 1)
            await settle()
            assert gate.begun["m1"] == 2 * 3

    asyncio.run(main())


def test_on_policy_groups_come_in_order_and_are_of_the_newest_version():
    async def main() -> None:
        async with make_feed() as feed:
            for version in range(3):
                await feed.set_model(TableModel(f"m{version}", {}), version, version)
                taken = await feed.take()
                assert taken is not None
                groups, stale = taken
                assert [group.number for group in groups] == [2 * version, 2 * version + 1]
                assert {group.version for group in groups} == {version}
                assert {r.provenance.model for group in groups for r in group.group.rollouts} == {f"m{version}"}
                assert not stale

    asyncio.run(main())


def test_a_group_that_became_too_old_is_dropped_and_another_one_is_begun():
    async def main() -> None:
        slow = Gate()
        first = TableModel("m0", {}, slow)
        async with make_feed(staleness=1, groups=1, options=RunOptions(concurrency=9)) as feed:
            await feed.set_model(first, 0, 0)
            await settle()  # groups 0 and 1 wait
            await feed.set_model(TableModel("m1", {}), 1, 1)
            assert (await take(feed)) == ([2], [])
            await feed.set_model(TableModel("m2", {}), 2, 2)
            assert (await take(feed)) == ([3], [])
            assert not first.closed
            slow.opened.set()
            await settle()
            assert first.closed
            await feed.set_model(TableModel("m3", {}), 3, 3)
            assert (await take(feed)) == ([4], [0, 1])

    async def take(feed: GroupFeed) -> tuple[list[int], list[int]]:
        taken = await feed.take()
        assert taken is not None
        return [group.number for group in taken[0]], [group.number for group in taken[1]]

    asyncio.run(main())


def test_whole_groups_of_an_earlier_process_are_found_and_consumed_ones_are_not_run():
    store = MemoryStore()

    async def sample(version: int, consumed: tuple[int, ...], gate: Gate | None) -> list[tuple[int, int]]:
        async with make_feed(store, consumed, staleness=1) as feed:
            await feed.set_model(TableModel(f"m{version}", {}, gate), version, version)
            taken = await feed.take()
            assert taken is not None
            return [(group.number, group.version) for group in taken[0]]

    assert asyncio.run(sample(0, (), None)) == [(0, 0), (1, 0)]  # 2 and 3 are sampled, too
    never = Gate()
    assert asyncio.run(sample(1, (0, 1), never)) == [(2, 0), (3, 0)]


def test_an_error_of_a_rollout_is_raised_to_the_taker():
    class Broke(TableModel):
        async def complete(self, *_: object) -> object:
            raise BudgetExhausted("no tokens left")

    async def main() -> None:
        async with make_feed() as feed:
            await feed.set_model(Broke("m0", {}), 0, 0)
            with pytest.raises(BudgetExhausted):
                await feed.take()

    asyncio.run(main())


def test_stopping_drains_and_ends_the_feed():
    async def main() -> None:
        stop, gate, store = asyncio.Event(), Gate(), MemoryStore()
        async with make_feed(store, options=RunOptions(concurrency=3, stop=stop)) as feed:
            await feed.set_model(TableModel("m0", {}, gate), 0, 0)
            taking = asyncio.create_task(feed.take())
            await settle()
            stop.set()
            await settle()
            assert not taking.done()
            gate.opened.set()
            assert await taking is None
            assert len(store.outcomes) == 3

    asyncio.run(main())


def test_leaving_the_feed_ends_what_runs_and_closes_the_model():
    async def main() -> None:
        model = TableModel("m0", {}, Gate())
        async with make_feed() as feed:
            await feed.set_model(model, 0, 0)
            await settle()
        assert model.closed

    asyncio.run(main())
