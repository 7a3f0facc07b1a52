"""Which server a slot goes to, and when servers end. The servers are fakes, so no slots are needed."""

import asyncio

import pytest

from ludus.errors import SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.remote.fleet import Fleet, NoServerLeft, Once

SMALL, LARGE = SandboxSpec(memory_mb=100), SandboxSpec(memory_mb=900)


class FakeSlot:
    def __init__(self, server, leave):
        self.server = server
        self._leave = leave

    async def close(self):
        await self._leave()


class FakeServer:
    def __init__(self, spec, capacity, reusable):
        self.spec, self.capacity, self.reusable = spec, capacity, reusable
        self.alive, self.closed, self.opened = True, False, 0

    async def open(self, spec, leave):
        await asyncio.sleep(0)
        if not self.alive:
            raise SandboxError("gone")
        self.opened += 1
        return FakeSlot(self, leave)

    async def close(self):
        await asyncio.sleep(0.01)
        self.closed = True


class FakeBackend:
    def __init__(self, capacity=2, reusable=True, seconds=0.01):
        self.servers, self.capacity, self.reusable, self.seconds = [], capacity, reusable, seconds
        self.fail = 0
        self.closed = False

    def get_kind(self, spec):
        return spec.memory_mb

    async def launch(self, spec):
        await asyncio.sleep(self.seconds)
        if self.fail:
            self.fail -= 1
            raise SandboxError("no room")
        self.servers.append(FakeServer(spec, self.capacity, self.reusable))
        return self.servers[-1]

    async def close(self):
        self.closed = True


def fleet(backend, idle=60.0):
    return Fleet(backend, slots=backend.capacity, idle_seconds=idle)


async def test_a_storm_of_slots_fills_servers_and_starts_no_more_than_needed():
    backend = FakeBackend(capacity=4)
    slots = fleet(backend)
    boxes = await asyncio.gather(*(slots.create(SMALL) for _ in range(10)), slots.create(LARGE))
    assert sorted(server.opened for server in backend.servers) == [1, 2, 4, 4]
    assert len(slots.list_servers()) == 4
    await asyncio.gather(*(box.close() for box in boxes))
    again = await slots.create(SMALL)
    assert len(backend.servers) == 4
    await again.close()
    await again.close()
    await slots.close()
    assert all(server.closed for server in backend.servers)
    assert backend.closed


async def test_a_server_that_is_not_reusable_is_used_once():
    backend = FakeBackend(capacity=1, reusable=False)
    slots = fleet(backend)
    for number in range(3):
        box = await slots.create(SMALL)
        await box.close()
        assert [server.closed for server in backend.servers] == [True] * (number + 1)
    await slots.close()


async def test_an_idle_server_is_ended():
    backend = FakeBackend()
    slots = fleet(backend, idle=0.05)
    box = await slots.create(SMALL)
    await asyncio.sleep(0.1)
    assert not backend.servers[0].closed
    await box.close()
    async with asyncio.timeout(60):
        while not backend.servers[0].closed:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await slots.close()


async def test_a_dead_server_gets_no_more_slots_and_is_ended():
    backend = FakeBackend(capacity=4)
    slots = fleet(backend)
    one, two = await slots.create(SMALL), await slots.create(SMALL)
    backend.servers[0].alive = False
    three = await slots.create(SMALL)
    assert len(backend.servers) == 2
    await one.close()
    assert not backend.servers[0].closed
    await two.close()
    assert backend.servers[0].closed
    await three.close()
    await slots.close()


async def test_a_server_that_does_not_start_fails_only_the_slots_that_waited_for_it():
    backend = FakeBackend(capacity=2)
    backend.fail = 1
    slots = fleet(backend)
    results = await asyncio.gather(*(slots.create(SMALL) for _ in range(4)), return_exceptions=True)
    assert [isinstance(result, SandboxError) for result in results] == [True, True, False, False]
    box = await slots.create(LARGE)
    await asyncio.gather(box.close(), *(r.close() for r in results[2:]))
    await slots.close()
    assert all(server.closed for server in backend.servers)


async def test_a_start_that_no_slot_waits_for_is_cancelled():
    backend = FakeBackend(seconds=30)
    slots = fleet(backend)
    waiting = asyncio.create_task(slots.create(SMALL))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await slots.close()
    assert backend.servers == []


async def test_closing_while_servers_start_leaves_nothing():
    backend = FakeBackend(seconds=30)
    slots = fleet(backend)
    tasks = [asyncio.create_task(slots.create(SMALL)) for _ in range(5)]
    await asyncio.sleep(0.01)
    await slots.close()
    assert all(isinstance(r, BaseException) for r in await asyncio.gather(*tasks, return_exceptions=True))
    assert all(server.closed for server in backend.servers)


async def test_room_limits_the_slots_and_the_next_one_waits():
    backend = FakeBackend(capacity=4)
    slots = Fleet(backend, slots=4, room=2)
    one, two = await slots.create(SMALL), await slots.create(SMALL)
    waiting = asyncio.create_task(slots.create(SMALL))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await one.close()
    three = await waiting
    assert len(backend.servers) == 1
    await two.close()
    await three.close()
    await slots.close()


async def test_work_is_done_once_and_again_after_a_failure():
    calls = 0

    async def work() -> int:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        if calls == 1:
            raise SandboxError("not yet")
        return calls

    once = Once(work)
    with pytest.raises(SandboxError, match="not yet"):
        await once.run()
    assert await asyncio.gather(once.run(), once.run()) == [2, 2]
    assert await once.run() == 2
    await once.stop()


class OneHost(FakeBackend):
    """Only one server at a time can be started."""

    taken = False

    async def launch(self, spec):
        if self.taken:
            raise NoServerLeft("the other host is gone")
        self.taken = True
        return await super().launch(spec)


async def test_slots_wait_for_the_servers_that_run_when_no_other_can_be_started():
    backend = OneHost(capacity=2)
    slots = fleet(backend)
    finished = []

    async def work(number):
        box = await slots.create(SMALL)
        await asyncio.sleep(0.01)
        await box.close()
        finished.append(number)

    async with asyncio.timeout(20):
        await asyncio.gather(*(work(n) for n in range(12)))
    assert sorted(finished) == list(range(12))
    assert [server.opened for server in backend.servers] == [12]
    await slots.close()


async def test_slots_do_not_wait_where_no_server_runs():
    class NoHost(FakeBackend):
        async def launch(self, spec):
            await asyncio.sleep(self.seconds)
            raise NoServerLeft("no host answers")

    slots = fleet(NoHost(capacity=1))
    async with asyncio.timeout(20):
        results = await asyncio.gather(*(slots.create(SMALL) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(result, NoServerLeft) for result in results)
    await slots.close()
