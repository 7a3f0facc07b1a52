"""The pool: it hands out slots, decides who gets the next one, and limits how many there are.

    async with open_pool("bwrap", PoolSettings(max_slots=32, warm=4)) as pool:  # from ludus.sandbox.profiles
        async with pool.lease(spec) as box:
            await box.exec("echo hi")

At most `max_slots` slots exist at a time, including those that start and those that end. Requests are served in the
order in which they come, whatever their specs, so requests for one kind of slot cannot starve a request for another. A
slot is used once: at the end of its lease it is closed in the background and never handed out again. With `warm` > 0,
that many slots of each requested spec are kept ready. Warm slots never take room that a waiting request needs, and they
may be closed for a request with another spec. If a slot cannot be made, one waiting request gets a `SandboxError` and
the others go on. After several failures in a row of one profile the pool stops trying that profile for a while, longer
each time; other profiles are not affected. Nothing polls: every event calls `_pump`, which decides what happens next.

Callers that cannot keep a block open hold slots by name: `acquire(trajectory)`, `heartbeat`, `release`. Such a hold
ends when `lease_seconds` pass without a heartbeat. A slot released with `reset=True` is reset and used again; if it
cannot be reset, it is closed and counted. `idle_seconds` closes warm slots that nobody asks for. `lifetime_seconds`
closes any slot that was held too long. A slot that takes longer than `patience_seconds` to reset or close is given up
and counted, so that it cannot keep its room for ever. All times are those of the event loop's clock, which does not
jump.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Self

from msgspec import Struct

from ludus.errors import ConfigError, SandboxError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.pace import Pace, compute_wait, record_failure, record_start, record_success
from ludus.sandbox.teardown import run_shielded
from ludus.settings import Settings
from ludus.types import Count, Positive, Whole

Create = Callable[[SandboxSpec], Awaitable[Sandbox]]
Snapshot = Callable[[Sandbox], Awaitable[SandboxSpec]]

DEFAULT_SLOTS = 64
"""The number of slots of a pool whose `max_slots` is not set."""


class PoolSettings(Settings, frozen=True, kw_only=True):
    """How many slots a pool has, how fast it makes them and how long it keeps them."""

    max_slots: Count | None = None
    """Slots that may exist at once; null: as many as rollouts run at once."""
    warm: Whole = 0
    """Slots kept ready ahead of time."""
    acquire_seconds: Positive = 600.0
    """How long a rollout waits for a slot before it fails."""
    idle_seconds: Positive | None = None
    """Close slots that were kept ready this long without being used; null: keep them."""
    lifetime_seconds: Positive | None = None
    """Take a slot back from a rollout that has held it this long, which fails the rollout; null: never. Make it longer
    than `limits.rollout_seconds`: an agent that can wait for it gets no score instead of a bad one."""
    starts_per_second: Positive | None = None
    """Make slots no faster than this; null for no limit."""
    starting: Count | None = 32
    """Slots that may be starting at once, on one machine; null for no limit. Backends fail from many slots that start,
    before they fail from many that run."""

    may_change: ClassVar[tuple[str, ...]] = (
        "max_slots",
        "warm",
        "acquire_seconds",
        "idle_seconds",
        "starts_per_second",
        "starting",
    )
    added_later: ClassVar[tuple[str, ...]] = ("starting",)


class PoolMetrics(Struct, frozen=True):
    """The state of a pool at one moment, and counts of what it has done so far."""

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
    """Slots whose close failed or timed out."""
    reused: int = 0
    """Slots that were reset to be used again."""
    broken: int = 0
    """Slots that died while they were warm, or could not be reset. They were closed and not handed out."""
    expired: int = 0
    """Slots taken back from callers that sent no heartbeat or held them too long."""
    paused: float = 0.0
    """Seconds until the pool makes slots of every profile again, after failures. 0 if no profile is paused."""


@dataclass(frozen=True, eq=False)
class _Request:
    spec: SandboxSpec
    box: "asyncio.Future[Sandbox]"


class Pool:
    """Hands out slots. Enter it (`async with pool:`) before leasing; leaving ends every slot."""

    def __init__(
        self,
        create: Create,
        settings: PoolSettings = PoolSettings(),
        *,
        lease_seconds: float | None = None,
        patience_seconds: float = 180.0,
        snapshot: Snapshot | None = None,
    ) -> None:
        """`create` makes a slot and `snapshot` saves one. `lease_seconds`: a slot that is held by name is taken back
        after this time without a heartbeat; None: never. `patience_seconds`: the time a slot gets to reset or close.

        Raises:
            ConfigError: `max_slots` or `warm` is too small.
        """
        self._max_slots = DEFAULT_SLOTS if settings.max_slots is None else settings.max_slots
        if self._max_slots < 1:
            raise ConfigError(f"sandbox.max_slots is {settings.max_slots}; a pool needs at least 1")
        if settings.warm < 0:
            raise ConfigError(f"sandbox.warm is {settings.warm}; it cannot be negative")
        self._create = create
        self._settings = settings
        self._lease_seconds = lease_seconds
        self._patience_seconds = patience_seconds
        self._snapshot = snapshot
        self._open = False
        self._held: dict[str, Sandbox] = {}
        """Slots held by name."""
        self._timers: dict[Sandbox | str, asyncio.TimerHandle] = {}
        """Timers that end warm slots, leases and names."""
        self._paces: dict[str, Pace] = {}
        """Recent starts and failures, by profile."""
        self._wake: asyncio.TimerHandle | None = None
        self._reused = 0
        self._broken = 0
        self._expired = 0
        self._requests: deque[_Request] = deque()
        self._warm: dict[SandboxSpec, deque[Sandbox]] = {}
        """Warm slots by spec. The spec that was requested longest ago is first."""
        self._starting: Counter[SandboxSpec] = Counter()
        self._doors = asyncio.Semaphore(settings.starting) if settings.starting else nullcontext()
        self._leased: set[Sandbox] = set()
        self._closing = 0
        self._created = 0
        self._failed = 0
        self._lost = 0
        self._unrefilled: set[SandboxSpec] = set()
        """Specs that get no warm slots until they are requested again: their last slot failed or was idle too long."""
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
        box = await self._acquire(spec, timeout)
        try:
            yield box
        finally:
            self._give_back(box)

    @asynccontextmanager
    async def exchange(self, box: Sandbox, *, timeout: float | None = None) -> AsyncGenerator[Sandbox, None]:
        """A fresh slot in place of a leased one, which ends now. This request is served before all waiting ones: the
        caller already has room in the pool, so a full pool cannot lock up.

        Raises:
            SandboxError: as `lease` does.
        """
        fresh = await self._acquire(box.spec, timeout, instead_of=box)
        try:
            yield fresh
        finally:
            self._give_back(fresh)

    async def snapshot(self, box: Sandbox) -> SandboxSpec:
        """The spec of slots that start with the present content of /workspace in `box`. Lease it to fork the slot.

        Raises:
            SandboxError: the slot is gone, or its files are more than can be copied.
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
        """The slot that a trajectory holds, or a fresh one. Raises as `lease` does."""
        if trajectory not in self._held:
            box = await self._acquire(spec, timeout)
            if trajectory in self._held:  # another call with the same name was first
                self._give_back(box)
            else:
                self._held[trajectory] = box
        self.heartbeat(trajectory)
        return self._held[trajectory]

    def heartbeat(self, trajectory: str) -> None:
        """Extend a trajectory's hold by `lease_seconds`. Raises SandboxError if the trajectory holds no slot."""
        if trajectory not in self._held:
            raise SandboxError(f"'{trajectory}' holds no slot: it was released, or taken back after no heartbeat")
        self._set_timer(trajectory, self._lease_seconds, self._expire_name)

    def release(self, trajectory: str, *, reset: bool = False) -> None:
        """Give a trajectory's slot back. It is closed or, with `reset`, used again. Does nothing if there is none."""
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
        except Exception:  # a backend may raise anything; a slot that cannot be reset is never handed out again
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
            self._unrefilled.add(spec)  # not replaced until it is requested again
            self._close(box)

    def _expire_lease(self, box: Sandbox | str) -> None:
        assert not isinstance(box, str)
        self._expired += 1
        for trajectory in [name for name, held in self._held.items() if held is box]:
            self.release(trajectory)
        self._give_back(box)

    # ---- requests -------------------------------------------------------------------------------------------------

    async def _acquire(self, spec: SandboxSpec, timeout: float | None, instead_of: Sandbox | None = None) -> Sandbox:
        if not self._open:
            raise SandboxError("the pool is not open", retryable=False)
        seconds = self._settings.acquire_seconds if timeout is None else timeout
        self._unrefilled.discard(spec)
        self._warm[spec] = self._warm.pop(spec, deque())  # now the last: the most recently requested
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
        """Forget a request whose caller has gone. A slot that it got in the same moment is given back."""
        if request in self._requests:
            self._requests.remove(request)
        box = request.box
        if box.done() and not box.cancelled() and box.exception() is None:
            self._give_back(box.result())
        self._pump()

    def _give_back(self, box: Sandbox) -> None:
        if box in self._leased:  # else the pool was closed meanwhile, and the slot with it
            self._leased.remove(box)
            self._close(box)

    def _keep_ready(self, box: Sandbox, spec: SandboxSpec) -> None:
        self._warm.setdefault(spec, deque()).append(box)
        self._set_timer(box, self._settings.idle_seconds, self._close_idle)

    def _hand_out(self, request: _Request, box: Sandbox) -> None:
        self._requests.remove(request)
        self._leased.add(box)
        self._set_timer(box, self._settings.lifetime_seconds, self._expire_lease)
        request.box.set_result(box)

    # ---- deciding -------------------------------------------------------------------------------------------------

    def _count_live(self) -> int:
        return len(self._leased) + sum(map(len, self._warm.values())) + self._starting.total() + self._closing

    def _pump(self) -> None:
        """Serve requests, start slots that are needed and close warm ones that take their room. Called after every
        event."""
        if self._open:
            self._serve()
            if not self._requests:
                self._refill()

    def _serve(self) -> None:
        """Give each request, oldest first, a warm slot, or reserve for it one that is starting, or the room for one.

        If there is no room, a warm slot of another spec is closed for it before any later request can take that slot.
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
                continue  # later requests do not wait for it: room is for slots that can be made now
            elif room > 0:
                room -= 1
                self._start(spec, now)
            elif leaving > 0:
                leaving -= 1  # this request gets the room of a slot that is ending
            elif not self._evict():
                return

    def _take_ready(self, spec: SandboxSpec) -> Sandbox | None:
        ready = self._warm.get(spec, deque())
        while ready and not is_alive(ready[0]):
            self._broken += 1
            self._close(ready.popleft())
        return ready.popleft() if ready else None

    def _evict(self) -> bool:
        """Close one warm slot, of the spec that was requested longest ago."""
        for ready in self._warm.values():
            if ready:
                self._close(ready.popleft())
                return True
        return False

    def _refill(self) -> None:
        now = asyncio.get_running_loop().time()
        for spec, ready in reversed(list(self._warm.items())):
            if spec in self._unrefilled or not self._settings.warm:
                if not ready:  # forgotten until it is requested again: a run may use thousands of specs, each once
                    del self._warm[spec]
                    self._unrefilled.discard(spec)
                continue
            missing = self._settings.warm - len(ready) - self._starting[spec]
            room = self._max_slots - self._count_live()
            for _ in range(min(missing, room)):
                if not self._may_start(spec, now):
                    break
                self._start(spec, now)

    def _get_pace(self, spec: SandboxSpec) -> Pace:
        return self._paces.get(spec.profile, Pace())

    def _may_start(self, spec: SandboxSpec, now: float) -> bool:
        """Whether a slot of this spec may be started now. If not, a timer calls `_pump` when it may."""
        seconds = compute_wait(self._get_pace(spec), now, self._settings.starts_per_second)
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
            async with self._doors:
                box = await self._create(spec)
            require_slot(box)
        except SandboxError as error:
            self._record_failure(spec, began, error)
        except ConfigError as error:
            self._record_failure(spec, began, SandboxError(str(error), retryable=False))
        except Exception as error:  # a backend may raise anything; it means that there is no slot
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
        """Whether a new slot has a use: the caller that requested it may have gone."""
        requested = any(request.spec == spec and not request.box.done() for request in self._requests)
        return requested or len(self._warm.get(spec, ())) < self._settings.warm

    def _record_failure(self, spec: SandboxSpec, began: float, error: SandboxError) -> None:
        self._failed += 1
        if error.retryable:  # else the spec itself is wrong, which says nothing about other specs
            self._paces[spec.profile] = record_failure(self._get_pace(spec), began, asyncio.get_running_loop().time())
        self._unrefilled.add(spec)
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
        except Exception:  # a backend may raise anything; the pool goes on, and the slot may still exist
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


def is_alive(box: Sandbox) -> bool:
    """Whether a warm slot can still be used, as far as its backend knows without trying."""
    return bool(getattr(box, "alive", True))


def require_slot(box: object, methods: Iterable[str] = ("close",), maker: str = "the backend's create") -> None:
    """Raise SandboxError if what a backend has returned cannot be used as a slot. `maker` is named in the message."""
    kind = "None" if box is None else type(box).__name__
    if not all(callable(getattr(box, name, None)) for name in methods):
        raise SandboxError(f"{maker} returned {kind}, which is not a Sandbox", retryable=False)
    if type(box).__hash__ is None:  # pyright: ignore[reportUnnecessaryComparison]  # as of a dataclass with `eq`
        fix = "it needs a __hash__; for a dataclass, write @dataclass(eq=False)"
        raise SandboxError(f"{maker} returned a {kind}, which cannot be hashed: {fix}", retryable=False)


def _spawn_task(owner: set[asyncio.Task[None]], work: Coroutine[None, None, None]) -> None:
    task = asyncio.create_task(work)
    owner.add(task)
    task.add_done_callback(owner.discard)
