"""Slots held by name, their time limits, and what the pool does when slots or the backend fail."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.sandbox_kit import make_pool

from ludus.errors import SandboxError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.pace import LONGEST_PAUSE
from ludus.sandbox.pool import Pool, PoolSettings
from ludus.sandbox.profiles import open_pool

SPEC = SandboxSpec(disk_mb=16)


class Slot:
    """A slot that can be made to fail."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec, self.alive, self.closed, self.resets, self.stubborn = spec, True, False, 0, False

    async def reset(self) -> None:
        await asyncio.sleep(0)
        if self.stubborn:
            raise SandboxError("will not reset")
        self.resets += 1

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed = True


class Maker:
    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.tries = 0
        self.down = False

    async def __call__(self, spec: SandboxSpec) -> Any:
        self.tries += 1
        await asyncio.sleep(0)
        if self.down:
            raise SandboxError("the backend is down")
        self.slots.append(Slot(spec))
        return self.slots[-1]


@asynccontextmanager
async def pooled(**options: Any) -> AsyncGenerator[tuple[Pool, Maker]]:
    maker = Maker()
    async with asyncio.timeout(300), make_pool(maker, **options) as pool:
        yield pool, maker
    assert all(slot.closed for slot in maker.slots)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_trajectory_keeps_its_slot_until_it_releases_it():
    async with pooled() as (pool, _):
        one, again, two = await pool.acquire("a", SPEC), await pool.acquire("a", SPEC), await pool.acquire("b", SPEC)
        assert one is again
        assert one is not two
        both = await asyncio.gather(pool.acquire("c", SPEC), pool.acquire("c", SPEC))
        assert both[0] is both[1]
        pool.release("a")
        pool.release("a")
        pool.release("nobody")
        with pytest.raises(SandboxError, match="'a' holds no slot"):
            pool.heartbeat("a")
        assert await pool.acquire("a", SPEC) is not one


async def test_a_reset_slot_is_used_again_and_one_that_cannot_be_reset_is_not():
    async with pooled(max_slots=1) as (pool, maker):
        first = await pool.acquire("a", SPEC)
        waiting = asyncio.create_task(pool.acquire("b", SPEC))
        await asyncio.sleep(0)
        pool.release("a", reset=True)
        assert await waiting is first
        assert maker.slots[0].resets == 1
        maker.slots[0].stubborn = True
        next_one = asyncio.create_task(pool.acquire("c", SPEC))
        await asyncio.sleep(0)
        pool.release("b", reset=True)
        assert await next_one is not first
        assert (pool.metrics().reused, pool.metrics().broken) == (1, 1)
    assert len(maker.slots) == 2


async def test_a_name_without_a_heartbeat_loses_its_slot_and_one_with_it_does_not(pass_time):
    async with pooled(lease_seconds=100) as (pool, maker):
        await pool.acquire("silent", SPEC)
        await pool.acquire("alive", SPEC)
        pass_time(60)
        pool.heartbeat("alive")
        pass_time(60)
        await until(lambda: maker.slots[0].closed)
        assert not maker.slots[1].closed
        assert pool.metrics().expired == 1
        with pytest.raises(SandboxError, match="heartbeat"):
            pool.heartbeat("silent")


async def test_idle_slots_end_and_are_not_replaced_until_the_next_request(pass_time):
    async with pooled(warm=2, idle_seconds=100) as (pool, maker):
        async with pool.lease(SPEC):
            pass
        await until(lambda: pool.metrics().warm == 2)
        pass_time(110)
        await until(lambda: pool.metrics().live == 0)
        made_so_far = len(maker.slots)
        await asyncio.sleep(0.1)
        assert len(maker.slots) == made_so_far
        async with pool.lease(SPEC):
            pass
        await until(lambda: pool.metrics().warm == 2)


async def test_a_slot_that_is_held_for_too_long_is_taken_back():
    async with pooled(lifetime_seconds=0.1, max_slots=1) as (pool, maker):
        async with pool.lease(SPEC):
            await until(lambda: maker.slots[0].closed)
        assert pool.metrics().expired == 1
        async with pool.lease(SPEC):
            pass


async def test_a_warm_slot_that_died_is_not_handed_out():
    async with pooled(warm=1) as (pool, maker):
        async with pool.lease(SPEC):
            pass
        await until(lambda: pool.metrics().warm == 1)
        maker.slots[-1].alive = False
        async with pool.lease(SPEC) as box:
            assert box is not maker.slots[1]
        assert pool.metrics().broken == 1


async def test_a_backend_that_is_down_gets_a_pause_and_comes_back(pass_time):
    async with pooled(max_slots=2 * 40, starts_per_second=2000) as (pool, maker):
        maker.down = True
        waiting: list[asyncio.Task[Sandbox]] = []
        for number in range(40):
            waiting.append(asyncio.create_task(pool.acquire(str(number), SPEC)))
            for _ in range(5):  # what is tried has failed before the next one asks
                await asyncio.sleep(0)
        await until(lambda: pool.metrics().failed >= 3 and pool.metrics().paused > 0)
        tries = maker.tries
        for _ in range(50):
            await asyncio.sleep(0)
        assert maker.tries <= tries + 1
        maker.down = False
        pass_time(LONGEST_PAUSE)
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(r, Slot | SandboxError) for r in results)
        assert sum(isinstance(r, Slot) for r in results) >= 30
        assert pool.metrics().paused == 0


async def test_slots_are_not_made_faster_than_allowed():
    async with pooled(starts_per_second=50) as (pool, _):
        loop = asyncio.get_running_loop()
        before = loop.time()
        await asyncio.gather(*(pool.acquire(str(n), SPEC) for n in range(6)))
        assert loop.time() - before >= 5 / 50


async def test_a_thousand_requests_for_one_slot_and_a_deadline():
    async with pooled(max_slots=1) as (pool, _):
        await pool.acquire("holder", SPEC)
        waiting = [asyncio.create_task(pool.acquire(str(n), SPEC, timeout=0.2)) for n in range(1000)]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(r, SandboxError) and "no slot within 0.2 s" in str(r) for r in results)
        assert pool.metrics().waiting == 0
        pool.release("holder")
        assert isinstance(await pool.acquire("next", SPEC), Slot)


async def test_an_exchange_is_served_first_and_needs_no_more_room():
    async with pooled(max_slots=1) as (pool, maker), pool.lease(SPEC) as box:
        behind = [asyncio.create_task(pool.acquire(str(n), SPEC)) for n in range(3)]
        await asyncio.sleep(0)
        async with pool.exchange(box) as fresh:
            assert fresh is not box
            assert maker.slots[0].closed
            assert not any(task.done() for task in behind)
        for number, task in enumerate(behind):
            await task
            pool.release(str(number))


async def test_real_slots_are_reset_and_used_again(backend):
    async with asyncio.timeout(300), open_pool(backend, PoolSettings(max_slots=1)) as pool:
        box = await pool.acquire("one", SPEC)
        await box.exec("echo secret >s; export S=1; sleep 77 & true")
        waiting = asyncio.create_task(pool.acquire("two", SPEC))
        await asyncio.sleep(0)
        pool.release("one", reset=True)
        again: Sandbox = await waiting
        assert again is box
        assert (await again.exec('ls -A; echo "[$S]"')).stdout == b"[]\n"
