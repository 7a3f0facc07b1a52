"""Who gets a slot: order, limits, warm slots, failures and the end of the pool. The slots are fakes."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.sandbox_kit import make_pool

from ludus.errors import ConfigError, SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.pool import Pool

ONE = SandboxSpec(memory_mb=1)
TWO = SandboxSpec(memory_mb=2)


class Nothing:
    """A slot that only knows whether it is open."""

    def __init__(self, maker: "Maker", spec: SandboxSpec) -> None:
        self.maker, self.spec, self.uses, self.open = maker, spec, 0, True

    async def close(self) -> None:
        await asyncio.sleep(0)
        assert self.open, "closed twice"
        self.open = False
        self.maker.live -= 1


class Maker:
    """Makes such slots, counts them, and can be made to wait or to fail."""

    def __init__(self) -> None:
        self.live = self.most = self.made = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.fail = 0
        self.boxes: list[Nothing] = []

    async def __call__(self, spec: SandboxSpec) -> Any:
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            await asyncio.sleep(0)
            await self.gate.wait()
            if self.fail:
                self.fail -= 1
                raise SandboxError("broken")
        except BaseException:
            self.live -= 1
            raise
        self.made += 1
        box = Nothing(self, spec)
        self.boxes.append(box)
        return box


@asynccontextmanager
async def pooled(**options: Any) -> AsyncGenerator[tuple[Pool, Maker]]:
    maker = Maker()
    async with asyncio.timeout(60):
        async with make_pool(maker, **options) as pool:
            yield pool, maker
        assert maker.live == 0
        assert not any(box.open for box in maker.boxes)


async def settle() -> None:
    """Run everything that is ready to run."""
    for _ in range(30):
        await asyncio.sleep(0)


async def test_a_slot_is_used_once_and_closed():
    async with pooled(max_slots=2) as (pool, maker):
        seen: list[Any] = []
        for _ in range(3):
            async with pool.lease(ONE) as box:
                seen.append(box)
                assert pool.metrics().leased == 1
        assert len(set(map(id, seen))) == 3
        await settle()
        assert pool.metrics().live == 0
    assert maker.made == 3


async def test_no_more_than_max_slots_live_and_the_first_come_is_the_first_served():
    async with pooled(max_slots=4) as (pool, maker):
        order: list[int] = []

        async def use(number: int) -> None:
            async with pool.lease(ONE if number % 3 else TWO):
                order.append(number)
                await asyncio.sleep(0)

        tasks: list[asyncio.Task[None]] = []
        for number in range(100):
            tasks.append(asyncio.create_task(use(number)))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        # Slots start side by side, so neighbours may swap; nobody is overtaken by more than the slots in flight.
        assert all(abs(place - number) < 4 for place, number in enumerate(order))
    assert maker.most == 4


async def test_one_slot_serves_a_thousand_requests_in_order():
    async with pooled(max_slots=1) as (pool, maker):
        order: list[int] = []

        async def use(number: int) -> None:
            async with pool.lease(ONE):
                order.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(1000):
                group.create_task(use(number))
        assert order == list(range(1000))
    assert maker.most == 1


async def test_warm_slots_wait_for_the_next_lease():
    async with pooled(max_slots=4, warm=2) as (pool, maker):
        async with pool.lease(ONE):
            pass
        await settle()
        assert pool.metrics().warm == 2
        maker.gate.clear()
        async with pool.lease(ONE), pool.lease(ONE):
            assert pool.metrics().leased == 2
        maker.gate.set()
        await settle()
        assert pool.metrics().warm == 2


async def test_warm_slots_of_one_spec_make_room_for_another():
    async with pooled(max_slots=3, warm=3) as (pool, maker):
        async with pool.lease(ONE):
            pass
        await settle()
        assert pool.metrics().warm == 3
        async with pool.lease(TWO) as a, pool.lease(TWO) as b, pool.lease(TWO) as c:
            assert {box.spec for box in (a, b, c)} == {TWO}
    assert maker.most == 3


async def test_a_lease_that_times_out_says_so():
    async with pooled(max_slots=1, acquire_seconds=0.02) as (pool, _):
        async with pool.lease(ONE):
            with pytest.raises(SandboxError, match="no slot within") as caught:
                async with pool.lease(ONE, timeout=0.01):
                    pass
            assert caught.value.retryable
            with pytest.raises(SandboxError, match="1 of 1 slots are leased"):
                async with pool.lease(ONE):
                    pass
            assert pool.metrics().waiting == 0
        async with pool.lease(ONE, timeout=60):
            pass


async def test_a_failure_reaches_one_request_and_the_pool_goes_on():
    async with pooled(max_slots=2, warm=1) as (pool, maker):
        maker.fail = 2

        async def use() -> str:
            try:
                async with pool.lease(ONE):
                    return "served"
            except SandboxError as error:
                return str(error)

        results = await asyncio.gather(*(use() for _ in range(6)))
        assert sorted(results) == ["broken"] * 2 + ["served"] * 4
        assert pool.metrics().failed == 2


async def test_a_backend_that_raises_anything_is_a_sandbox_error():
    async def create(spec: SandboxSpec) -> Any:
        raise ZeroDivisionError("oops")

    async with make_pool(create) as pool:
        with pytest.raises(SandboxError, match="ZeroDivisionError: oops"):
            async with pool.lease(ONE):
                pass


async def test_a_failing_refill_is_not_tried_for_ever():
    async with pooled(max_slots=8, warm=4) as (pool, maker):
        async with pool.lease(ONE):
            maker.fail = 10**6
        await settle()
        assert pool.metrics().failed <= 4
        maker.fail = 0
        async with pool.lease(ONE):
            pass


async def test_cancelled_requests_and_leases_leak_nothing():
    async with pooled(max_slots=3) as (pool, maker):

        async def use() -> None:
            async with pool.lease(ONE):
                await asyncio.sleep(60)

        maker.gate.clear()
        waiting = [asyncio.create_task(use()) for _ in range(5)]
        await settle()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        maker.gate.set()
        await settle()
        assert pool.metrics().live == 0
        holding = [asyncio.create_task(use()) for _ in range(5)]
        await settle()
        assert pool.metrics().leased == 3
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)
        await settle()
        assert pool.metrics().live == 0


async def test_a_slot_that_arrives_together_with_the_cancellation_is_given_back():
    async with pooled(max_slots=2) as (pool, _):

        async def use() -> None:
            async with pool.lease(ONE):
                pass

        for steps in range(12):
            task = asyncio.create_task(use())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await settle()
        assert pool.metrics().live == 0


async def test_closing_the_pool_ends_every_slot_and_every_wait():
    maker = Maker()
    pool = make_pool(maker, max_slots=2, warm=1)
    async with pool:
        first = pool.lease(ONE)
        await first.__aenter__()
        maker.gate.clear()
        waiting = asyncio.create_task(pool.lease(TWO).__aenter__())
        await settle()
    with pytest.raises(SandboxError, match="closed"):
        await waiting
    assert maker.live == 0
    await first.__aexit__(None, None, None)
    with pytest.raises(SandboxError, match="not open"):
        async with pool.lease(ONE):
            pass


async def test_closing_the_pool_survives_cancellation():
    maker = Maker()

    async def work() -> None:
        async with make_pool(maker, max_slots=4, warm=2) as pool, pool.lease(ONE):
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await settle()
    for _ in range(4):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert maker.live == 0


async def test_a_slot_that_cannot_be_closed_is_counted():
    class Stuck:
        async def close(self) -> None:
            raise OSError("device busy")

    async def create(spec: SandboxSpec) -> Any:
        return Stuck()

    async with make_pool(create) as pool:
        async with pool.lease(ONE):
            pass
        await settle()
        assert (pool.metrics().live, pool.metrics().lost) == (0, 1)


@pytest.mark.parametrize("options", [{"max_slots": 0}, {"warm": -1}])
def test_sizes_that_make_no_sense_are_refused(options):
    with pytest.raises(ConfigError, match="sandbox"):
        make_pool(Maker, **options)


@dataclasses.dataclass
class Unhashable:
    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "the backend's create returned None, which is not a Sandbox"),
        ("a slot", "the backend's create returned str, which is not a Sandbox"),
        (Unhashable(), "returned a Unhashable, which cannot be hashed"),
    ],
)
async def test_what_is_no_slot_is_refused_once(made: Any, message: str):
    calls: list[SandboxSpec] = []

    async def create(spec: SandboxSpec) -> Any:
        calls.append(spec)
        return made

    async with asyncio.timeout(60), make_pool(create, warm=1) as pool:
        with pytest.raises(SandboxError, match=message):
            async with pool.lease(ONE):
                pass
        assert pool.metrics().failed == len(calls) == 1
