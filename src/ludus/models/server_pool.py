"""Several servers behind one `Model`. Retries are decided here and nowhere else.

    complete ──> lease the least loaded healthy server ──> pace ──> one attempt ──> Completion
                     ^                                                   │ ServerFault, may be retried
                     └──────────────── back off ─────────────────────────┘

Statuses 408, 429 and 5xx, connection errors, time-outs and unreadable replies are retried, with exponential backoff,
full jitter and the server's own `Retry-After`. All other errors are raised at once. Some of them are caused by the
request. Others, such as a wrong key or model name, would meet every request: they are raised as `ModelUnusable`, which
stops the run. A server that fails several times in a row is set aside for a growing time and then tried by a single
request. When no server has answered for `patience` seconds, all requests that are under way fail with `ModelUnusable`,
which stops the run: it can be resumed when a server is back. Later requests try again, once each. Servers that have
never answered get only `first_patience`, and later requests fail at once: most likely an address is wrong. A wait of
more than a few seconds is reported through `tell`.

Nothing polls. A request waits for the turn of another request to end, or sleeps until a known time. Turns are given in
order of arrival. Every wait can be cancelled and then returns what it held.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ludus.errors import ModelError, ModelUnusable
from ludus.models.reply_pieces import PieceStream
from ludus.models.server import ModelServer, Price, Retry, ServerFault
from ludus.models.token_estimate import estimate_prompt, estimate_reply
from ludus.types import Completion, Message, Sampling, ToolSpec

T = TypeVar("T")
Tell = Callable[[str], None]
OnRetry = Callable[[ServerFault], None]
"""Called with the fault of every attempt that is retried."""

NOTICE_AFTER = 3.0
"""A wait for servers that fail is reported when it takes this many seconds."""
FIRST_NOTICE_AFTER = 15.0
"""A wait for the very first reply is reported after this many seconds."""
NOTICE_EVERY = 30.0
"""Seconds between two such reports."""


@dataclass(frozen=True)
class Timing:
    """Clock, sleep and random numbers. Tests replace them, so they need not wait."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    sample: Callable[[], float] = random.random
    """Uniform in [0, 1)."""


class RateBucket:
    """A token bucket: limits a rate to `per_minute`, with bursts of one second's worth and at least one unit.

    A caller that takes more than the bucket can hold waits until it is full and leaves a debt. Later callers wait for
    that debt.
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
        """Return a part of what was taken. A negative amount takes more afterwards."""
        self._level += amount


class Lane:
    """A server with its load and its health."""

    def __init__(self, server: ModelServer, now: float) -> None:
        self.server = server
        self.active = 0
        self.turn = 0
        """The number of its last request. It grows with every request to any server."""
        self.failures = 0
        """Failures in a row."""
        self.trips = 0
        """How many times in a row it was set aside."""
        self.closed_until = 0.0
        self.has_replied = False
        """Whether it has ever given a reply that was not an error."""
        limits = server.settings
        self.requests = RateBucket(limits.requests_per_minute, now) if limits.requests_per_minute else None
        self.tokens = RateBucket(limits.tokens_per_minute, now) if limits.tokens_per_minute else None

    @property
    def load(self) -> float:
        return self.active / self.server.settings.concurrency

    def has_room(self, now: float, retry: Retry) -> bool:
        """Whether it takes another request. A server that has failed takes one at a time."""
        if now < self.closed_until or self.active >= self.server.settings.concurrency:
            return False
        return self.failures < retry.failures or self.active == 0

    def note_answer(self) -> None:
        """The server is up, even if it answered with an error."""
        if self.trips:
            self.closed_until = 0.0
        self.failures = self.trips = 0

    def note_fault(self, fault: ServerFault, now: float, retry: Retry) -> None:
        """Record a fault. Requests that run and fail at the same time set the server aside once."""
        if fault.down:
            self.failures += 1
            if self.failures >= retry.failures and now >= self.closed_until:
                self.trips += 1
                self.closed_until = now + min(retry.longest, retry.first * 2 ** (self.trips - 1))
        else:
            self.note_answer()
        if fault.retry_after is not None:
            self.closed_until = max(self.closed_until, now + min(fault.retry_after, retry.longest_asked))


def choose_lane(lanes: Sequence[Lane], now: float, retry: Retry, avoid: Lane | None = None) -> Lane | None:
    """The lane for the next request; None if the request must wait for another one to end.

    When all lanes are set aside and no request is running, the lane that reopens first is returned. The request then
    waits for it.
    """
    if len(lanes) == 1 and lanes[0].has_room(now, retry):
        return lanes[0]
    ready = [lane for lane in lanes if lane.has_room(now, retry)]
    if ready:
        return min(ready, key=lambda lane: (lane is avoid, lane.load, lane.turn))
    if any(lane.active for lane in lanes):
        return None
    return min(lanes, key=lambda lane: lane.closed_until)


def compute_backoff(attempt: int, asked: float | None, retry: Retry, sample: float) -> float:
    """Seconds to wait after the failed `attempt` (from 1). `asked` comes from the server; `sample` is in [0, 1)."""
    if asked is not None:
        return min(asked, retry.longest_asked) + sample * retry.first
    return sample * min(retry.longest, retry.first * 2.0 ** (attempt - 1))


class _Waiter:
    __slots__ = ("avoid", "turn")

    def __init__(self, avoid: Lane | None) -> None:
        self.avoid = avoid
        self.turn: asyncio.Future[Lane] = asyncio.get_running_loop().create_future()


class ServerPool:
    """A `Model` on one or several servers. All servers are taken to be equal."""

    def __init__(
        self,
        servers: Sequence[ModelServer],
        retry: Retry = Retry(),
        timing: Timing = Timing(),
        tell: Tell | None = None,
    ) -> None:
        """`tell` is called with a message to the user when no server answers for a while."""
        if not servers:
            raise ValueError("a model needs at least one server")
        self._retry = retry
        self._clock = timing.clock
        self._sleep = timing.sleep
        self._sample = timing.sample
        now = timing.clock()
        self._lanes = tuple(Lane(server, now) for server in servers)
        self._queue: deque[_Waiter] = deque()
        self._turns = 0
        self._down_since: float | None = None
        self._answered = False
        """Whether any server has ever answered, even with an error."""
        self._final_error: ModelError | None = None
        self._given_up: tuple[float, ModelUnusable] | None = None
        """When, and with which error, the requests that were under way were given up."""
        self._tell = tell
        self._failing_since: float | None = None
        """When the first attempt began that failed after the last reply."""
        self._next_notice = 0.0
        self._name = "|".join(dict.fromkeys(server.settings.name for server in servers))

    @property
    def name(self) -> str:
        return self._name

    @property
    def price(self) -> Price:
        """The highest prices of all servers. Used to estimate the cost of a call."""
        prices = (lane.server.settings.price for lane in self._lanes)
        return max(prices, key=lambda price: (price.completion or 0.0, price.prompt or 0.0))

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        *,
        on_retry: OnRetry | None = None,
    ) -> Completion:
        return await self._complete(
            lambda server: server.attempt(messages, tools, sampling), messages, tools, sampling, on_retry
        )

    async def stream(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        reply_stream: PieceStream,
        *,
        on_retry: OnRetry | None = None,
    ) -> Completion:
        """`complete`, and pass the reply on while it is sampled. It is not retried once a part of it was passed on."""
        return await self._complete(
            lambda server: server.attempt_stream(messages, tools, sampling, reply_stream),
            messages,
            tools,
            sampling,
            on_retry,
        )

    async def _complete(
        self,
        ask: Callable[[ModelServer], Awaitable[Completion]],
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        on_retry: OnRetry | None,
    ) -> Completion:
        expected = 0
        if any(lane.tokens is not None for lane in self._lanes):
            expected = estimate_prompt(messages, tools) + estimate_reply(sampling)

        async def attempt(lane: Lane) -> Completion:
            completion = await ask(lane.server)
            if lane.tokens is not None and completion.usage.tokens:
                lane.tokens.give_back(expected - completion.usage.tokens)
            return completion

        return await self.run_with_retries(attempt, expected_tokens=expected, on_retry=on_retry)

    async def run_with_retries(
        self, once: Callable[[Lane], Awaitable[T]], *, expected_tokens: int = 0, on_retry: OnRetry | None = None
    ) -> T:
        """Run `once` with the best server. Retry, perhaps on another server, while that may help."""
        attempt, avoid, began = 1, None, self._clock()
        while True:
            self._raise_if_given_up(began)
            lane = await self._lease(avoid)
            watch = None if self._tell is None or lane.has_replied else self._watch_first_reply(lane)
            started = self._clock()
            try:
                await self._pace(lane, expected_tokens)
                result = await once(lane)
            except ServerFault as error:
                fault = error
                self._note_failure(lane, fault)
                self._raise_if_permanent(lane, fault)
            else:
                lane.note_answer()
                lane.has_replied = True
                self._failing_since = None
                self._note_answer()
                return result
            finally:
                if watch is not None:
                    watch.cancel()
                self._release(lane)
            if not fault.retryable or fault.seen:
                raise fault
            self._raise_if_given_up(began)
            if self._failing_since is None:
                self._failing_since = started
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
        """Wait before the next attempt. If another server was not tried yet, do not wait."""
        now = self._clock()
        others = (other for other in self._lanes if other is not lane)
        if attempt < len(self._lanes) and any(other.has_room(now, self._retry) for other in others):
            return
        wait = compute_backoff(attempt, fault.retry_after, self._retry, self._sample())
        since = now if self._failing_since is None else self._failing_since
        if now + wait - since >= NOTICE_AFTER:
            where, _, why = fault.brief.partition(": ")
            self._report_wait(f"waiting for {where} ({why}), {now - since:.0f} s; next attempt in {wait:.0f} s", now)
        await self._sleep(wait)

    # ---- reports --------------------------------------------------------------------------------------------------

    def _report_wait(self, text: str, now: float) -> None:
        if self._tell is not None and now >= self._next_notice:
            self._next_notice = now + NOTICE_EVERY
            self._tell(text)

    def _watch_first_reply(self, lane: Lane) -> asyncio.TimerHandle:
        """Report once if the server does not answer one of its first requests for a while."""

        def report() -> None:
            if not lane.has_replied:
                text = f"waiting for the first reply of {lane.server.display_url}, {FIRST_NOTICE_AFTER:.0f} s"
                self._report_wait(text, self._clock())

        return asyncio.get_running_loop().call_later(FIRST_NOTICE_AFTER, report)

    # ---- turns ----------------------------------------------------------------------------------------------------

    async def _lease(self, avoid: Lane | None) -> Lane:
        if not self._queue:
            lane = choose_lane(self._lanes, self._clock(), self._retry, avoid)
            if lane is not None:
                return self._assign(lane)
        waiter = _Waiter(avoid)
        self._queue.append(waiter)
        self._assign_turns()
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            if not waiter.turn.cancelled() and waiter.turn.exception() is None:  # the turn was given at the same moment
                self._release(waiter.turn.result())
            raise

    def _assign(self, lane: Lane) -> Lane:
        self._turns += 1
        lane.turn = self._turns
        lane.active += 1
        return lane

    def _release(self, lane: Lane) -> None:
        lane.active -= 1
        self._assign_turns()

    def _assign_turns(self) -> None:
        while self._queue:
            waiter = self._queue[0]
            if not waiter.turn.done():
                lane = choose_lane(self._lanes, self._clock(), self._retry, waiter.avoid)
                if lane is None:
                    return
                waiter.turn.set_result(self._assign(lane))
            self._queue.popleft()

    def _note_failure(self, lane: Lane, fault: ServerFault) -> None:
        now = self._clock()
        lane.note_fault(fault, now, self._retry)
        if not fault.down:
            self._note_answer()
            return
        if self._down_since is None:
            self._down_since = now
        down = now - self._down_since
        patience = self._retry.patience if self._answered else self._retry.first_patience
        if down > patience and all(lane.trips for lane in self._lanes):
            self._give_up(ModelUnusable(f"no server has answered for {down:.0f} s; the last fault: {fault}"), now)

    def _raise_if_given_up(self, began: float) -> None:
        """Raise the error of requests that were given up, if one that began then is among them."""
        if self._final_error is not None:
            raise self._final_error
        if self._given_up is not None and began <= self._given_up[0]:
            raise self._given_up[1]

    def _raise_if_permanent(self, lane: Lane, fault: ServerFault) -> None:
        """Raise `ModelUnusable` if all requests would fail as this one did. Those that wait for a turn fail too."""
        if fault.permanent == "yes" or (fault.permanent == "unless_answered" and not lane.has_replied):
            error = ModelUnusable(str(fault))
            self._fail_waiting(error)
            raise error from fault

    def _note_answer(self) -> None:
        self._answered = True
        self._down_since = self._final_error = self._given_up = None

    def _give_up(self, error: ModelUnusable, now: float) -> None:
        """Fail all requests that are under way. If no server has ever answered, all later requests fail too."""
        self._given_up = now, error
        if not self._answered:
            self._final_error = error
        self._fail_waiting(error)

    def _fail_waiting(self, error: ModelError) -> None:
        while self._queue:
            turn = self._queue.popleft().turn
            if not turn.done():
                turn.set_exception(error)
