"""Several servers behind one `Model`, and the one place that decides about trying again.

    complete ──> lease the least loaded healthy server ──> pace ──> one attempt ──> Completion
                     ^                                                   │ ServerFault, may be retried
                     └──────────────── back off ─────────────────────────┘

Retried are 408, 429, 5xx, connection errors, time-outs and replies that make no sense, with exponential backoff, full
jitter and the server's own `Retry-After`. Everything else is the request's fault and raised at once. A server that
fails several times in a row is set aside for a growing time and then tried by one request alone. When no server has
answered for `patience`, whoever waits for one is told so instead of queueing for an attempt of its own. Servers that
have never answered at all get only `first_patience`: most likely an address is wrong, which only the user can mend.

Nothing polls: a request waits for a turn that another one gives up, or sleeps until a known time. Turns are given in
order of arrival. Every wait can be cancelled, and gives back what it held.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ludus.errors import ModelError
from ludus.models.server import ModelServer, Price, Retry, ServerFault
from ludus.models.token_estimate import prompt_tokens, reply_tokens
from ludus.types import Completion, Message, Sampling, ToolSpec

T = TypeVar("T")
OnRetry = Callable[[ServerFault], None]
"""Told of every failed attempt that is followed by another."""


@dataclass(frozen=True)
class Waits:
    """Time and chance, so that tests need not wait."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    draw: Callable[[], float] = random.random
    """Uniform in [0, 1)."""


class Bucket:
    """Paces what flows at `per_minute`, with bursts of one second's worth and at least one unit.

    It is a pot that fills at that rate. Who takes more than the pot can hold waits until it is full and leaves a
    debt, which those who come later wait for.
    """

    def __init__(self, per_minute: float, now: float) -> None:
        self._rate = per_minute / 60
        self._burst = max(1.0, self._rate)
        self._level = self._burst
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take `amount`; returns the seconds to wait before using it."""
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        wait = (min(amount, self._burst) - self._level) / self._rate
        self._level -= amount
        return max(0.0, wait)

    def give_back(self, amount: float) -> None:
        """Undo a part of what was taken; a negative amount takes more after the fact."""
        self._level += amount


class Lane:
    """A server, and how it is doing."""

    def __init__(self, server: ModelServer, now: float) -> None:
        self.server = server
        self.active = 0
        self.turn = 0
        """When it was last given out, as a number that grows."""
        self.failures = 0
        """In a row."""
        self.trips = 0
        """Times set aside in a row."""
        self.closed_until = 0.0
        limits = server.settings
        self.requests = Bucket(limits.requests_per_minute, now) if limits.requests_per_minute else None
        self.tokens = Bucket(limits.tokens_per_minute, now) if limits.tokens_per_minute else None

    @property
    def load(self) -> float:
        return self.active / self.server.settings.concurrency

    def takes_another(self, now: float, retry: Retry) -> bool:
        """A doubtful server is tried by one request alone."""
        if now < self.closed_until or self.active >= self.server.settings.concurrency:
            return False
        return self.failures < retry.failures or self.active == 0

    def answered(self) -> None:
        """It is up, whatever it said."""
        if self.trips:
            self.closed_until = 0.0
        self.failures = self.trips = 0

    def failed(self, fault: ServerFault, now: float, retry: Retry) -> None:
        """Note a fault. Requests that were under way together and fail together set the server aside once."""
        if fault.down:
            self.failures += 1
            if self.failures >= retry.failures and now >= self.closed_until:
                self.trips += 1
                self.closed_until = now + min(retry.longest, retry.first * 2 ** (self.trips - 1))
        else:
            self.answered()
        if fault.retry_after is not None:
            self.closed_until = max(self.closed_until, now + min(fault.retry_after, retry.longest_asked))


def choose(lanes: Sequence[Lane], now: float, retry: Retry, avoid: Lane | None = None) -> Lane | None:
    """The lane for the next request, or None if it must wait for another one to end.

    When all are set aside and nothing is under way, somebody has to wait for the first one to reopen: it is given to
    this request, ahead of time.
    """
    ready = [lane for lane in lanes if lane.takes_another(now, retry)]
    if ready:
        return min(ready, key=lambda lane: (lane is avoid, lane.load, lane.turn))
    if any(lane.active for lane in lanes):
        return None
    return min(lanes, key=lambda lane: lane.closed_until)


def backoff(attempt: int, asked: float | None, retry: Retry, draw: float) -> float:
    """Seconds to wait after the failed `attempt` (from 1). `draw` is uniform in [0, 1)."""
    if asked is not None:
        return min(asked, retry.longest_asked) + draw * retry.first
    return draw * min(retry.longest, retry.first * 2.0 ** (attempt - 1))


class _Waiter:
    __slots__ = ("avoid", "turn")

    def __init__(self, avoid: Lane | None) -> None:
        self.avoid = avoid
        self.turn: asyncio.Future[Lane] = asyncio.get_running_loop().create_future()


class ServerPool:
    """A `Model` served by one or several servers that are taken to be equal."""

    def __init__(
        self,
        servers: Sequence[ModelServer],
        retry: Retry = Retry(),
        waits: Waits = Waits(),
    ) -> None:
        if not servers:
            raise ValueError("a model needs at least one server")
        self._retry = retry
        self._clock = waits.clock
        self._sleep = waits.sleep
        self._draw = waits.draw
        now = waits.clock()
        self._lanes = tuple(Lane(server, now) for server in servers)
        self._queue: deque[_Waiter] = deque()
        self._turns = 0
        self._down_since: float | None = None
        self._answered = False
        """Whether any server ever did, be it with an error."""
        self._hopeless: ModelError | None = None
        self._name = "|".join(dict.fromkeys(server.settings.name for server in servers))

    @property
    def name(self) -> str:
        return self._name

    @property
    def price(self) -> Price:
        """What to expect a call to cost: the dearest server's prices."""
        return max((lane.server.settings.price for lane in self._lanes), key=lambda p: (p.completion, p.prompt))

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        *,
        on_retry: OnRetry | None = None,
    ) -> Completion:
        expected = 0
        if any(lane.tokens is not None for lane in self._lanes):
            expected = prompt_tokens(messages, tools) + reply_tokens(sampling)

        async def attempt(lane: Lane) -> Completion:
            completion = await lane.server.attempt(messages, tools, sampling)
            if lane.tokens is not None and completion.usage.tokens:
                lane.tokens.give_back(expected - completion.usage.tokens)
            return completion

        return await self.retrying(attempt, expected_tokens=expected, on_retry=on_retry)

    async def retrying(
        self, once: Callable[[Lane], Awaitable[T]], *, expected_tokens: int = 0, on_retry: OnRetry | None = None
    ) -> T:
        """Do something once with the best server; again, perhaps with another, as long as that may help."""
        attempt, avoid = 1, None
        while True:
            if self._hopeless is not None:
                raise self._hopeless
            lane = await self._lease(avoid)
            try:
                await self._pace(lane, expected_tokens)
                result = await once(lane)
            except ServerFault as error:
                fault = error
                self._note_failure(lane, fault)
            else:
                lane.answered()
                self._note_answer()
                return result
            finally:
                self._release(lane)
            if not fault.retryable:
                raise fault
            if attempt > self._retry.retries:
                raise ModelError(f"no usable reply after {attempt} attempts; the last: {fault}") from fault
            if on_retry is not None:
                on_retry(fault)
            await self._back_off(attempt, fault, lane)
            attempt, avoid = attempt + 1, lane

    async def close(self) -> None:
        for lane in self._lanes:
            lane.server.abort()  # all of them, before anything that could be cancelled
        for lane in self._lanes:
            await lane.server.close()

    # ---- one attempt ----------------------------------------------------------------------------------------------

    async def _pace(self, lane: Lane, tokens: int) -> None:
        """Wait until the server is open and within its rates."""
        now = self._clock()
        wait = max(0.0, lane.closed_until - now)
        if lane.requests is not None:
            wait = max(wait, lane.requests.take(1, now))
        if lane.tokens is not None:
            wait = max(wait, lane.tokens.take(tokens, now))
        if not wait:
            return
        try:
            await self._sleep(wait)
        except asyncio.CancelledError:
            if lane.requests is not None:
                lane.requests.give_back(1)
            if lane.tokens is not None:
                lane.tokens.give_back(tokens)
            raise

    async def _back_off(self, attempt: int, fault: ServerFault, lane: Lane) -> None:
        """Wait before the next attempt; not at all if there is another server that was not tried yet."""
        now = self._clock()
        others = (other for other in self._lanes if other is not lane)
        if attempt < len(self._lanes) and any(other.takes_another(now, self._retry) for other in others):
            return
        await self._sleep(backoff(attempt, fault.retry_after, self._retry, self._draw()))

    # ---- turns ----------------------------------------------------------------------------------------------------

    async def _lease(self, avoid: Lane | None) -> Lane:
        if not self._queue:
            lane = choose(self._lanes, self._clock(), self._retry, avoid)
            if lane is not None:
                return self._give(lane)
        waiter = _Waiter(avoid)
        self._queue.append(waiter)
        self._give_turns()
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            if not waiter.turn.cancelled() and waiter.turn.exception() is None:  # the turn came at the same moment
                self._release(waiter.turn.result())
            raise

    def _give(self, lane: Lane) -> Lane:
        self._turns += 1
        lane.turn = self._turns
        lane.active += 1
        return lane

    def _release(self, lane: Lane) -> None:
        lane.active -= 1
        self._give_turns()

    def _give_turns(self) -> None:
        while self._queue:
            waiter = self._queue[0]
            if not waiter.turn.done():
                lane = choose(self._lanes, self._clock(), self._retry, waiter.avoid)
                if lane is None:
                    return
                waiter.turn.set_result(self._give(lane))
            self._queue.popleft()

    def _note_failure(self, lane: Lane, fault: ServerFault) -> None:
        now = self._clock()
        lane.failed(fault, now, self._retry)
        if not fault.down:
            self._note_answer()
            return
        if self._down_since is None:
            self._down_since = now
        down = now - self._down_since
        patience = self._retry.patience if self._answered else self._retry.first_patience
        if down > patience and all(lane.trips for lane in self._lanes):
            self._give_up(ModelError(f"no server has answered for {down:.0f} s; the last fault: {fault}"))

    def _note_answer(self) -> None:
        self._answered = True
        self._down_since = self._hopeless = None

    def _give_up(self, error: ModelError) -> None:
        """Tell everyone who waits that no server answers; and, if none ever did, everyone who is still to come."""
        if not self._answered:
            error.retryable = False
            self._hopeless = error
        while self._queue:
            turn = self._queue.popleft().turn
            if not turn.done():
                turn.set_exception(error)
