"""The pool's rules, with a fake clock: order, deadlines, pauses and limits, and random sequences of events.

Time passes only when nothing else can happen: a test takes none, and does not depend on how fast the machine is.
"""

import asyncio
import functools
import selectors
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sandbox_kit import make_pool

from ludus.errors import ConfigError, SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.pool import Pool

A, B, C = SandboxSpec(memory_mb=1), SandboxSpec(memory_mb=2), SandboxSpec(memory_mb=3)
BAD = SandboxSpec(profile="bad")


class Skipping(selectors.DefaultSelector):
    """Never waits: it moves the clock forward instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing will ever happen again"
            self.now += max(0.0, timeout)
        return ready


def timeless(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in a loop whose clock is moved and never waited for."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        selector = Skipping()
        loop = asyncio.SelectorEventLoop(selector)
        loop.time = lambda: selector.now
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(test(*arguments, **named))  # type: ignore[arg-type]

    return run


class Slot:
    def __init__(self, maker: "Maker", spec: SandboxSpec) -> None:
        self.maker, self.spec, self.alive, self.closed, self.stubborn = maker, spec, True, False, False

    async def reset(self) -> None:
        await asyncio.sleep(0.5)
        if self.stubborn:
            raise SandboxError("will not reset")

    async def close(self) -> None:
        await asyncio.sleep(0.5)
        assert not self.closed, "closed twice"
        self.closed = True
        self.maker.live -= 1


class Maker:
    """Makes slots in one second each, unless it has an error to raise."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.tries: list[tuple[float, str]] = []
        self.live = self.most = 0
        self.broken: dict[str, Callable[[], Exception]] = {}
        self.seconds = 1.0

    async def __call__(self, spec: SandboxSpec) -> Any:
        self.tries.append((asyncio.get_running_loop().time(), spec.profile))
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            await asyncio.sleep(self.seconds)
            if spec.profile in self.broken:
                raise self.broken[spec.profile]()
        except BaseException:
            self.live -= 1
            raise
        self.slots.append(Slot(self, spec))
        return self.slots[-1]


@asynccontextmanager
async def pooled(**options: Any) -> AsyncGenerator[tuple[Pool, Maker]]:
    maker = Maker()
    async with make_pool(maker, **options) as pool:
        yield pool, maker
    assert maker.live == 0
    assert all(slot.closed for slot in maker.slots)


def down() -> Exception:
    return SandboxError("down")


def now() -> float:
    return asyncio.get_running_loop().time()


# ---- order --------------------------------------------------------------------------------------------------------


@timeless
async def test_requests_for_one_spec_do_not_starve_another():
    """A slot that was reset goes to a request for its spec, but not before an older request."""
    async with pooled(max_slots=1) as (pool, maker):
        served: list[str] = []

        async def hold(name: str, spec: SandboxSpec) -> None:
            await pool.acquire(name, spec)
            served.append(name)
            await asyncio.sleep(10)
            pool.release(name, reset=True)

        async with asyncio.TaskGroup() as group:
            for name, spec in (("a1", A), ("b", B), ("a2", A), ("a3", A), ("c", C), ("a4", A)):
                group.create_task(hold(name, spec))
                await asyncio.sleep(0.01)
        assert served == ["a1", "b", "a2", "a3", "c", "a4"]
    assert maker.most == 1


@timeless
async def test_a_spec_with_a_warm_slot_is_served_while_another_waits():
    async with pooled(max_slots=4, warm=1) as (pool, _):
        async with pool.lease(A):
            pass
        await asyncio.sleep(30)
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(pool.acquire("slow", B))
            await asyncio.sleep(0)
            before = now()
            await pool.acquire("quick", A)
            assert now() == before
            assert not slow.done()


@timeless
async def test_deadlines_are_exact_and_a_withdrawn_request_is_not_served():
    async with pooled(max_slots=1) as (pool, maker):
        await pool.acquire("holder", A)
        started = now()
        waiting = [asyncio.create_task(pool.acquire(str(n), A, timeout=5 + n)) for n in range(1000)]
        await asyncio.sleep(499.2)
        assert sum(task.done() for task in waiting) == 495
        assert all("no slot within" in str(task.exception()) for task in waiting if task.done())
        assert pool.metrics().waiting == 505
        pool.release("holder")
        first = await waiting[496]
        assert now() - started == pytest.approx(500.7)  # half a second to close the old slot, one to make another
        assert first is maker.slots[1]
        for task in waiting[497:]:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert pool.metrics().waiting == 0


# ---- failures -----------------------------------------------------------------------------------------------------


@timeless
async def test_a_profile_that_is_down_does_not_delay_others():
    async with pooled(max_slots=8) as (pool, maker):
        maker.broken["bad"] = down
        bad = [asyncio.create_task(pool.acquire(f"bad{n}", BAD, timeout=1000)) for n in range(20)]
        await asyncio.sleep(1.1)
        assert pool.metrics().paused > 0
        assert pool.metrics().waiting == 12
        for number in range(20):
            before = now()
            await pool.acquire(f"good{number}", A)
            assert now() - before == pytest.approx(1)
            pool.release(f"good{number}")
        told = await asyncio.gather(*bad, return_exceptions=True)
        assert all(str(error) == "down" for error in told)


@timeless
async def test_a_backend_that_is_down_is_tried_less_often_and_comes_back():
    async with pooled() as (pool, maker):
        maker.broken[""] = down
        for number in range(12):
            with pytest.raises(SandboxError, match="down"):
                await pool.acquire(str(number), A, timeout=1000)
        moments = [when for when, _ in maker.tries]
        pauses = [later - sooner - maker.seconds for sooner, later in pairwise(moments)]
        assert pauses == pytest.approx([0, 0, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 60])
        maker.broken.clear()
        await pool.acquire("next", A)
        before = now()
        await pool.acquire("another", A)
        assert now() - before == pytest.approx(1)
        assert pool.metrics().paused == 0


@pytest.mark.parametrize(
    "error", [lambda: SandboxError("no such folder", retryable=False), lambda: ConfigError("no profile 'bad'")]
)
@timeless
async def test_an_error_of_one_spec_is_reported_at_once_and_pauses_nothing(error):
    async with pooled() as (pool, maker):
        maker.broken["bad"] = error
        words = str(error())
        for number in range(10):
            before = now()
            with pytest.raises(SandboxError) as told:
                await pool.acquire(str(number), BAD)
            assert now() - before == pytest.approx(1)
            assert (str(told.value), told.value.retryable) == (words, False)
        assert pool.metrics().paused == 0


@timeless
async def test_slots_are_made_at_the_rate_that_was_set():
    async with pooled(starts_per_second=4) as (pool, maker):
        await asyncio.gather(*(pool.acquire(str(n), A) for n in range(6)))
        assert [when for when, _ in maker.tries] == pytest.approx([n / 4 for n in range(6)])


# ---- holds, reuse, limits -----------------------------------------------------------------------------------------


@timeless
async def test_a_name_that_held_its_slot_too_long_loses_it():
    async with pooled(lifetime_seconds=50, lease_seconds=500) as (pool, maker):
        box = await pool.acquire("a", A)
        await asyncio.sleep(60)
        assert maker.slots[0].closed
        with pytest.raises(SandboxError, match="holds no slot"):
            pool.heartbeat("a")
        assert await pool.acquire("a", A) is not box
        assert pool.metrics().expired == 1


@timeless
async def test_a_name_keeps_its_slot_while_heartbeats_come():
    async with pooled(lease_seconds=10) as (pool, maker):
        await pool.acquire("a", A)
        for _ in range(20):
            await asyncio.sleep(9.9)
            pool.heartbeat("a")
        assert not maker.slots[0].closed
        await asyncio.sleep(10.1)
        with pytest.raises(SandboxError, match="heartbeat"):
            pool.heartbeat("a")
        await asyncio.sleep(1)
        assert maker.slots[0].closed


@timeless
async def test_a_slot_that_was_reset_is_kept_warm_and_closed_when_idle():
    async with pooled(idle_seconds=50) as (pool, maker):
        box = await pool.acquire("a", A)
        pool.release("a", reset=True)
        await asyncio.sleep(10)
        before = now()
        assert await pool.acquire("b", A) is box
        assert now() == before
        pool.release("b", reset=True)
        await asyncio.sleep(100)
        assert maker.slots[0].closed
        assert pool.metrics().live == 0


@timeless
async def test_a_slot_that_no_request_waits_for_is_not_kept():
    async with pooled() as (pool, maker):
        with pytest.raises(SandboxError, match=r"no slot within 0\.5 s"):
            await pool.acquire("a", A, timeout=0.5)
        await asyncio.sleep(10)
        assert (len(maker.slots), pool.metrics().live) == (1, 0)


@timeless
async def test_specs_that_are_requested_once_are_forgotten():
    async with pooled() as (pool, _):
        for number in range(200):
            async with pool.lease(SandboxSpec(disk_mb=number + 1)):
                pass
        await asyncio.sleep(10)
        assert pool.metrics().live == 0
        assert len(pool._warm) == 0


# ---- anything -----------------------------------------------------------------------------------------------------

SPECS = (A, B, BAD)
EVENTS = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 2), st.sampled_from([0.3, 3.0, 30.0])),
    st.tuples(st.just("release"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("leave"), st.integers(0, 9), st.none()),
    st.tuples(st.just("die"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("outage"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.1, 1.0, 7.0, 70.0]), st.none()),
)


class Crowd:
    """Requests and releases slots, cancels requests and breaks slots by a list of events, and checks the invariants."""

    def __init__(self, pool: Pool, maker: Maker, most: int) -> None:
        self.pool, self.maker, self.most = pool, maker, most
        self.asked = 0
        self.waiting: dict[str, asyncio.Task[None]] = {}
        self.holding: dict[str, Any] = {}
        self.served: dict[SandboxSpec, list[int]] = {}

    async def ask(self, number: int, spec: SandboxSpec, seconds: float) -> None:
        name, started = str(number), now()
        try:
            box: Any = await self.pool.acquire(name, spec, timeout=seconds)
        except SandboxError:
            assert now() - started <= seconds + 1e-6, "kept waiting past the deadline"
        else:
            assert now() - started <= seconds + 1e-6
            assert box.spec == spec
            assert not box.closed
            assert all(box is not other for other in self.holding.values()), "one slot for two"
            self.holding[name] = box
            self.served.setdefault(spec, []).append(number)
        finally:
            del self.waiting[name]

    async def act(self, kind: str, which: Any, how: Any) -> None:
        if kind == "ask":
            self.asked += 1
            self.waiting[str(self.asked)] = asyncio.create_task(self.ask(self.asked, SPECS[which], how))
        elif kind == "release" and self.holding:
            name = list(self.holding)[which % len(self.holding)]
            del self.holding[name]
            self.pool.release(name, reset=how)
        elif kind == "leave" and self.waiting:
            list(self.waiting.values())[which % len(self.waiting)].cancel()
        elif kind == "die" and self.maker.slots:
            slot = self.maker.slots[which % len(self.maker.slots)]
            slot.alive, slot.stubborn = False, how
        elif kind == "outage":
            self.maker.broken = {SPECS[which].profile: down} if how else {}
        await asyncio.sleep(which if kind == "wait" else 0)
        self.check()

    def check(self) -> None:
        told = self.pool.metrics()
        assert self.maker.most <= self.most
        assert told.live <= self.most
        assert told.leased + told.warm <= told.live
        for numbers in self.served.values():
            assert numbers == sorted(numbers), "not first come, first served"


@settings(max_examples=100, deadline=None)
@given(st.lists(EVENTS, max_size=40), st.integers(1, 4), st.integers(0, 2), st.booleans())
@timeless
async def test_invariants_hold_after_any_sequence_of_events(events, most, warm, limited):
    limits = {"idle_seconds": 20.0, "lifetime_seconds": 60.0, "lease_seconds": 40.0} if limited else {}
    async with pooled(max_slots=most, warm=warm, **limits) as (pool, maker):
        crowd = Crowd(pool, maker, most)
        for event in events:
            await crowd.act(*event)
        maker.broken = {}
        await asyncio.sleep(100)
        assert crowd.waiting == {}
        for name in list(crowd.holding):
            pool.release(name)
        await asyncio.sleep(200)
        assert pool.metrics().leased == pool.metrics().waiting == 0
        before = now()
        async with pool.lease(A, timeout=30):  # it works, whatever has happened
            assert now() - before <= 30
        await asyncio.sleep(200)
        assert pool.metrics().live == pool.metrics().warm
