"""The pool: who gets a slot, when, and how many there are.

    async with open_pool("bwrap", max_slots=32, warm=4) as pool:
        async with pool.lease(spec) as box:
            await box.exec("echo hi")

At most `max_slots` slots live at a time, counting those that start and those that end. Requests are served first come,
first served, whatever their specs: no stream of requests for one kind of slot can keep a request for another waiting. A
slot is used once: at the end of its lease it is closed, in the background, and never handed out again. With `warm` > 0,
that many slots of each spec that was asked for are kept ready; making them never takes room that a waiting request
needs, and a request for another spec may have them closed. If a slot cannot be made, one waiting request is told
(`SandboxError`) and the others go on; after several failures in a row of one profile, its slots are not tried for a
while, longer each time, and those of the others are made as before. Nothing polls: every event calls `_pump`, which
decides what happens next.

Callers that cannot keep a block open hold slots by name instead: `acquire(trajectory)`, `heartbeat`, `release`. Such a
hold ends by itself when `lease_seconds` pass without a sign of life. A slot released with `reset=True` is used again,
or waits for it; if it cannot be reset, it is closed and counted. `idle_seconds` closes slots that wait and that nobody
asks for, `lifetime_seconds` any slot that was held for too long. A slot that takes longer than `patience_seconds` to be
reset or closed is given up and counted, so that it cannot keep its room for ever. All clocks are the event loop's,
which does not jump.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from msgspec import Struct

from ludus.errors import ConfigError, SandboxError, suggest
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.local.bwrap import Bwrap
from ludus.sandbox.local.unisolated import Local
from ludus.sandbox.pace import Pace, compute_wait, record_failure, record_start, record_success
from ludus.sandbox.teardown import run_shielded

Create = Callable[[SandboxSpec], Awaitable[Sandbox]]
Snapshot = Callable[[Sandbox], Awaitable[SandboxSpec]]

BACKENDS = ("bwrap", "local")


class PoolMetrics(Struct, frozen=True):
    """A pool at one moment, and what it has done so far."""

    live: int
    """Slots that exist: leased, warm, starting or ending."""
    leased: int
    warm: int
    waiting: int
    """Requests without a slot yet."""
    created: int
    failed: int
    """Slots that could not be made."""
    lost: int
    """Slots that could not be ended as they should."""
    reused: int = 0
    """Slots that were reset and are or were used again."""
    broken: int = 0
    """Slots that died while they were ready, or could not be reset: closed, and never handed out."""
    expired: int = 0
    """Slots taken back from holders that gave no sign of life or held on for too long."""
    paused: float = 0.0
    """Seconds until the pool makes slots of every profile again, after failures."""


@dataclass(frozen=True, eq=False)
class _Request:
    spec: SandboxSpec
    box: "asyncio.Future[Sandbox]"


class Pool:
    """Hands out slots. Enter it (`async with pool:`) before leasing; leaving ends every slot."""

    def __init__(
        self,
        create: Create,
        *,
        max_slots: int = 64,
        warm: int = 0,
        acquire_seconds: float = 600.0,
        idle_seconds: float | None = None,
        lifetime_seconds: float | None = None,
        lease_seconds: float | None = None,
        starts_per_second: float | None = None,
        patience_seconds: float = 180.0,
        snapshot: Snapshot | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        if max_slots < 1:
            raise ConfigError(f"sandbox.max_slots is {max_slots}; a pool needs at least 1")
        if warm < 0:
            raise ConfigError(f"sandbox.warm is {warm}; it cannot be negative")
        self._create = create
        self._max_slots = max_slots
        self._warm_target = warm
        self._acquire_seconds = acquire_seconds
        self._idle_seconds = idle_seconds
        self._lifetime_seconds = lifetime_seconds
        self._lease_seconds = lease_seconds
        self._starts_per_second = starts_per_second
        self._patience_seconds = patience_seconds
        self._snapshot = snapshot
        self._on_close = on_close
        self._open = False
        self._held: dict[str, Sandbox] = {}
        """Slots held by name."""
        self._timers: dict[Sandbox | str, asyncio.TimerHandle] = {}
        """When a warm slot is too idle, a leased one too old, or a name too silent."""
        self._paces: dict[str, Pace] = {}
        """How the making of slots goes, by profile."""
        self._wake: asyncio.TimerHandle | None = None
        self._reused = 0
        self._broken = 0
        self._expired = 0
        self._requests: deque[_Request] = deque()
        self._warm: dict[SandboxSpec, deque[Sandbox]] = {}
        """Ready slots of every spec that was asked for, longest ago first."""
        self._starting: Counter[SandboxSpec] = Counter()
        self._leased: set[Sandbox] = set()
        self._closing = 0
        self._created = 0
        self._failed = 0
        self._lost = 0
        self._unwilling: set[SandboxSpec] = set()
        """Specs whose last slot could not be made: not refilled until somebody asks again."""
        self._makers: set[asyncio.Task[None]] = set()
        self._closers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await run_shielded(self._shut_down())

    def metrics(self) -> PoolMetrics:
        warm = sum(map(len, self._warm.values()))
        now = asyncio.get_running_loop().time() if self._open else math.inf
        return PoolMetrics(
            live=self._count_live(),
            leased=len(self._leased),
            warm=warm,
            waiting=len(self._requests),
            created=self._created,
            failed=self._failed,
            lost=self._lost,
            reused=self._reused,
            broken=self._broken,
            expired=self._expired,
            paused=max((compute_wait(pace, now, None) for pace in self._paces.values()), default=0.0),
        )

    @asynccontextmanager
    async def lease(self, spec: SandboxSpec, *, timeout: float | None = None) -> AsyncGenerator[Sandbox, None]:
        """A fresh slot for as long as the block runs.

        Raises:
            SandboxError: no slot became free within `timeout` (by default the pool's), or none could be made.
        """
        box = await self._acquire(spec, self._acquire_seconds if timeout is None else timeout)
        try:
            yield box
        finally:
            self._give_back(box)

    @asynccontextmanager
    async def exchange(self, box: Sandbox, *, timeout: float | None = None) -> AsyncGenerator[Sandbox, None]:
        """A fresh slot in the place of a leased one, which ends now. It goes before everyone who waits: whoever
        exchanges has the room already, so a full pool cannot lock up.

        Raises:
            SandboxError: as `lease` does.
        """
        fresh = await self._acquire(box.spec, self._acquire_seconds if timeout is None else timeout, instead_of=box)
        try:
            yield fresh
        finally:
            self._give_back(fresh)

    async def snapshot(self, box: Sandbox) -> SandboxSpec:
        """The spec of slots that start with what /workspace is in `box` now: lease it to fork.

        Raises:
            SandboxError: the slot is gone, or holds more than can be copied.
        """
        if self._snapshot is None:
            raise SandboxError("slots of this kind have no snapshots", retryable=False)
        try:
            return await self._snapshot(box)
        except OSError as error:
            raise SandboxError(f"no snapshot could be made: {error}") from error

    # ---- slots held by name ---------------------------------------------------------------------------------------

    async def acquire(
        self, trajectory: str, spec: SandboxSpec = SandboxSpec(), *, timeout: float | None = None
    ) -> Sandbox:
        """The slot of a trajectory: the one that it holds, or a fresh one. Raises as `lease` does."""
        if trajectory not in self._held:
            box = await self._acquire(spec, self._acquire_seconds if timeout is None else timeout)
            if trajectory in self._held:  # somebody else asked under the same name and was first
                self._give_back(box)
            else:
                self._held[trajectory] = box
        self.heartbeat(trajectory)
        return self._held[trajectory]

    def heartbeat(self, trajectory: str) -> None:
        """A sign of life. Raises SandboxError when the trajectory holds no slot (any more)."""
        if trajectory not in self._held:
            raise SandboxError(f"'{trajectory}' holds no slot: it was released, or taken back for want of a heartbeat")
        self._set_timer(trajectory, self._lease_seconds, self._expire_name)

    def release(self, trajectory: str, *, reset: bool = False) -> None:
        """Give a trajectory's slot back, to be closed or, with `reset`, used again. Does nothing if it holds none."""
        box = self._held.pop(trajectory, None)
        self._cancel_timer(trajectory)
        if box is None or box not in self._leased:
            return
        if reset:
            self._leased.remove(box)
            self._cancel_timer(box)
            self._closing += 1
            _spawn_task(self._closers, self._recycle(box))
        else:
            self._give_back(box)

    def _expire_name(self, trajectory: Sandbox | str) -> None:
        assert isinstance(trajectory, str)
        self._expired += 1
        self.release(trajectory)

    async def _recycle(self, box: Sandbox) -> None:
        try:
            async with asyncio.timeout(self._patience_seconds):
                await box.reset()
        except Exception:  # a backend is foreign code; a slot that cannot be reset is never handed out again
            self._broken += 1
            self._close(box)
        else:
            if self._open:
                self._reused += 1
                self._keep_ready(box, box.spec)
            else:
                self._close(box)
        finally:
            self._closing -= 1
            self._pump()

    # ---- timers ---------------------------------------------------------------------------------------------------

    def _set_timer(self, key: Sandbox | str, seconds: float | None, act: Callable[[Sandbox | str], None]) -> None:
        self._cancel_timer(key)
        if seconds is not None:
            self._timers[key] = asyncio.get_running_loop().call_later(seconds, act, key)

    def _cancel_timer(self, key: Sandbox | str) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()

    def _close_idle(self, box: Sandbox | str) -> None:
        assert not isinstance(box, str)
        spec = next((spec for spec, ready in self._warm.items() if box in ready), None)
        if spec is not None:
            self._warm[spec].remove(box)
            self._unwilling.add(spec)  # not replaced until somebody asks
            self._close(box)

    def _expire_lease(self, box: Sandbox | str) -> None:
        assert not isinstance(box, str)
        self._expired += 1
        for trajectory in [name for name, held in self._held.items() if held is box]:
            self.release(trajectory)
        self._give_back(box)

    # ---- requests -------------------------------------------------------------------------------------------------

    async def _acquire(self, spec: SandboxSpec, seconds: float, instead_of: Sandbox | None = None) -> Sandbox:
        if not self._open:
            raise SandboxError("the pool is not open", retryable=False)
        self._unwilling.discard(spec)
        self._warm[spec] = self._warm.pop(spec, deque())  # now the last in order: the most recently asked for
        request = _Request(spec, asyncio.get_running_loop().create_future())
        if instead_of is None:
            self._requests.append(request)
        else:
            self._requests.appendleft(request)
            self._give_back(instead_of)
        self._pump()
        try:
            async with asyncio.timeout(seconds):
                return await request.box
        except TimeoutError:
            self._withdraw(request)
            state = f"{len(self._leased)} of {self._max_slots} slots are leased, {len(self._requests)} requests wait"
            raise SandboxError(f"no slot within {seconds:g} s: {state}") from None
        except BaseException:
            self._withdraw(request)
            raise

    def _withdraw(self, request: _Request) -> None:
        """Forget a request whose owner has gone; a slot that reached it in the same moment is given back."""
        if request in self._requests:
            self._requests.remove(request)
        box = request.box
        if box.done() and not box.cancelled() and box.exception() is None:
            self._give_back(box.result())
        self._pump()

    def _give_back(self, box: Sandbox) -> None:
        if box in self._leased:  # else the pool has closed meanwhile, and the slot with it
            self._leased.remove(box)
            self._close(box)

    def _keep_ready(self, box: Sandbox, spec: SandboxSpec) -> None:
        self._warm.setdefault(spec, deque()).append(box)
        self._set_timer(box, self._idle_seconds, self._close_idle)

    def _hand_out(self, request: _Request, box: Sandbox) -> None:
        self._requests.remove(request)
        self._leased.add(box)
        self._set_timer(box, self._lifetime_seconds, self._expire_lease)
        request.box.set_result(box)

    # ---- deciding -------------------------------------------------------------------------------------------------

    def _count_live(self) -> int:
        return len(self._leased) + sum(map(len, self._warm.values())) + self._starting.total() + self._closing

    def _pump(self) -> None:
        """Serve whom we can, start what is needed, and close what is in the way. Called after every event."""
        if self._open:
            self._serve()
            if not self._requests:
                self._refill()

    def _serve(self) -> None:
        """Give each request, oldest first, a slot that is ready, or claim for it one that starts, or the room for one.

        One that finds neither has a ready slot of another spec closed, before anyone who came later can take it.
        """
        room, leaving, starting = self._max_slots - self._count_live(), self._closing, Counter(self._starting)
        now = asyncio.get_running_loop().time()
        for request in [request for request in self._requests if not request.box.done()]:
            spec = request.spec
            if (box := self._take_ready(spec)) is not None:
                self._hand_out(request, box)
            elif starting[spec]:
                starting[spec] -= 1
            elif not self._may_start(spec, now):
                continue  # nobody waits for its turn: room is for slots that can be made
            elif room > 0:
                room -= 1
                self._start(spec, now)
            elif leaving > 0:
                leaving -= 1  # this one gets the room of a slot that is ending
            elif not self._evict():
                return

    def _take_ready(self, spec: SandboxSpec) -> Sandbox | None:
        ready = self._warm.get(spec, deque())
        while ready and not is_alive(ready[0]):
            self._broken += 1
            self._close(ready.popleft())
        return ready.popleft() if ready else None

    def _evict(self) -> bool:
        """Close one warm slot, of the spec asked for longest ago."""
        for ready in self._warm.values():
            if ready:
                self._close(ready.popleft())
                return True
        return False

    def _refill(self) -> None:
        now = asyncio.get_running_loop().time()
        for spec, ready in reversed(list(self._warm.items())):
            if spec in self._unwilling or not self._warm_target:
                if not ready:  # forgotten until somebody asks: a run may ask for thousands of specs, each only once
                    del self._warm[spec]
                    self._unwilling.discard(spec)
                continue
            missing = self._warm_target - len(ready) - self._starting[spec]
            room = self._max_slots - self._count_live()
            for _ in range(min(missing, room)):
                if not self._may_start(spec, now):
                    break
                self._start(spec, now)

    def _get_pace(self, spec: SandboxSpec) -> Pace:
        return self._paces.get(spec.profile, Pace())

    def _may_start(self, spec: SandboxSpec, now: float) -> bool:
        """Whether such a slot may be made now; if not, the pool looks again when it may."""
        seconds = compute_wait(self._get_pace(spec), now, self._starts_per_second)
        if seconds <= 0:
            return True
        if self._wake is None or self._wake.when() > now + seconds:
            if self._wake is not None:
                self._wake.cancel()
            self._wake = asyncio.get_running_loop().call_at(now + seconds, self._wake_up)
        return False

    def _wake_up(self) -> None:
        self._wake = None
        self._pump()

    # ---- doing ----------------------------------------------------------------------------------------------------

    def _start(self, spec: SandboxSpec, now: float) -> None:
        self._starting[spec] += 1
        self._paces[spec.profile] = record_start(self._get_pace(spec), now)
        _spawn_task(self._makers, self._make(spec, now))

    async def _make(self, spec: SandboxSpec, began: float) -> None:
        try:
            box = await self._create(spec)
        except SandboxError as error:
            self._record_failure(spec, began, error)
        except ConfigError as error:
            self._record_failure(spec, began, SandboxError(str(error), retryable=False))
        except Exception as error:  # a backend is foreign code; whatever it raises means that there is no slot
            failure = SandboxError(f"no slot could be made: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._record_failure(spec, began, failure)
        else:
            self._created += 1
            self._paces[spec.profile] = record_success(self._get_pace(spec))
            if self._open and self._is_wanted(spec):
                self._keep_ready(box, spec)
            else:
                self._close(box)
        finally:
            self._starting[spec] -= 1
            self._pump()

    def _is_wanted(self, spec: SandboxSpec) -> bool:
        """Whether a new slot has a use: whoever asked for it may have gone."""
        asked = any(request.spec == spec and not request.box.done() for request in self._requests)
        return asked or len(self._warm.get(spec, ())) < self._warm_target

    def _record_failure(self, spec: SandboxSpec, began: float, error: SandboxError) -> None:
        self._failed += 1
        if error.retryable:  # else it is this spec that is wrong, and says nothing about the others
            self._paces[spec.profile] = record_failure(self._get_pace(spec), began, asyncio.get_running_loop().time())
        self._unwilling.add(spec)
        request = next((r for r in self._requests if r.spec == spec and not r.box.done()), None)
        if request is not None:
            self._requests.remove(request)
            request.box.set_exception(error)

    def _close(self, box: Sandbox) -> None:
        self._cancel_timer(box)
        self._closing += 1
        _spawn_task(self._closers, self._end(box))

    async def _end(self, box: Sandbox) -> None:
        try:
            async with asyncio.timeout(self._patience_seconds):
                await box.close()
        except Exception:  # a backend is foreign code; the pool goes on without knowing that the slot is gone
            self._lost += 1
        finally:
            self._closing -= 1
            self._pump()

    async def _shut_down(self) -> None:
        self._open = False
        for request in self._requests:
            if not request.box.done():
                request.box.set_exception(SandboxError("the pool was closed", retryable=False))
        self._requests.clear()
        for box in (*self._leased, *(box for ready in self._warm.values() for box in ready)):
            self._close(box)
        self._leased.clear()
        self._warm.clear()
        self._held.clear()
        for timer in (*self._timers.values(), *((self._wake,) if self._wake else ())):
            timer.cancel()
        self._timers.clear()
        for maker in self._makers:
            maker.cancel()
        while tasks := self._makers | self._closers:
            await asyncio.wait(tasks)
        self._on_close()


def is_alive(box: Sandbox) -> bool:
    """Whether a slot that waits can still be used, as far as its kind can tell without trying."""
    return bool(getattr(box, "alive", True))


def _spawn_task(owner: set[asyncio.Task[None]], work: Coroutine[None, None, None]) -> None:
    task = asyncio.create_task(work)
    owner.add(task)
    task.add_done_callback(owner.discard)


def open_pool(
    backend: str = "bwrap",
    *,
    require_sandbox: bool = False,
    max_slots: int = 64,
    warm: int = 0,
    acquire_seconds: float = 600.0,
    idle_seconds: float | None = None,
    lifetime_seconds: float | None = None,
    lease_seconds: float | None = None,
    starts_per_second: float | None = None,
) -> Pool:
    """A pool of one kind of slots, after a check that they work here. There is no falling back to another kind.

    Raises:
        ConfigError: `backend` is unknown or does not work here, or it isolates nothing and `require_sandbox` is set.
    """
    if backend == "bwrap":
        bwrap = Bwrap()
        try:
            bwrap.check()
        finally:
            bwrap.close()
        create, snapshot, on_close = bwrap.create, bwrap.snapshot, bwrap.close
    elif backend == "local":
        if require_sandbox:
            raise ConfigError(
                "sandbox.backend is 'local', which isolates nothing, but require_sandbox is set: use 'bwrap'"
            )
        local = Local()
        create, snapshot, on_close = local.create, local.snapshot, local.close
    else:
        raise ConfigError(f"sandbox.backend '{backend}' is unknown; {suggest(backend, list(BACKENDS))}")
    return Pool(
        create,
        max_slots=max_slots,
        warm=warm,
        acquire_seconds=acquire_seconds,
        idle_seconds=idle_seconds,
        lifetime_seconds=lifetime_seconds,
        lease_seconds=lease_seconds,
        starts_per_second=starts_per_second,
        snapshot=snapshot,
        on_close=on_close,
    )
