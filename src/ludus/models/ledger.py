"""What models may spend and what they spent: one `Ledger` for a run, every model `Metered` into it under its role.

Before a call its size is estimated and reserved; after it, what it really took is booked and the reservation returned,
also when the call fails or is cancelled. A call that does not fit what is left raises `BudgetExhausted`; one that would
fit but for the reservations of others waits until they are settled, so that a run is not stopped by estimates.

Guarantees. The number of calls never passes its budget. Tokens and dollars pass theirs at most by what estimates fell
short of (four characters are taken for a token). A reply whose server counted nothing is booked as estimated, where a
budget depends on it. Retries inside a call are counted, but a call is one call and is charged once, for the reply that
came: what servers charge for replies that got lost is not known to us.
"""

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, NamedTuple

from msgspec import Struct

from ludus.errors import BudgetExhausted
from ludus.models import Model
from ludus.models.server import Price
from ludus.models.server_pool import ServerPool
from ludus.models.token_estimate import prompt_tokens, reply_tokens
from ludus.settings import Settings
from ludus.types import Completion, Count, Message, Positive, Sampling, ToolSpec, Usage


class Budget(Settings, frozen=True):
    """Where to stop. A run that reaches one of these ends cleanly and can be resumed with a larger one."""

    tokens: Count | None = None
    """Prompt and completion tokens together; null for no limit."""
    dollars: Positive | None = None
    """By `model.price`; null for no limit."""
    calls: Count | None = None
    """Model calls; null for no limit."""


class Totals(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the calls of a role added up to."""

    calls: int = 0
    failed: int = 0
    """Calls that ended without a reply, cancelled ones included; they cost nothing here."""
    retries: int = 0
    seconds: float = 0.0
    usage: Usage = Usage()

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(
            calls=self.calls + other.calls,
            failed=self.failed + other.failed,
            retries=self.retries + other.retries,
            seconds=self.seconds + other.seconds,
            usage=self.usage + other.usage,
        )


class Amount(NamedTuple):
    """What budgets are counted in."""

    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0

    def plus(self, other: "Amount", sign: int = 1) -> "Amount":
        return Amount(
            self.calls + sign * other.calls,
            self.tokens + sign * other.tokens,
            self.dollars + sign * other.dollars,
        )


def passed(budget: Budget, amount: Amount) -> Literal["calls", "tokens", "dollars"] | None:
    """The first budget that the amount would pass."""
    if budget.calls is not None and amount.calls > budget.calls:
        return "calls"
    if budget.tokens is not None and amount.tokens > budget.tokens:
        return "tokens"
    if budget.dollars is not None and amount.dollars > budget.dollars:
        return "dollars"
    return None


class Charge:
    """One call's entry while it is under way."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.retries = 0

    def settle(self, usage: Usage) -> None:
        """The call gave a reply, which took this."""
        self.usage = usage

    def retried(self, _: object = None) -> None:
        self.retries += 1


class _Waiter:
    __slots__ = ("amount", "turn")

    def __init__(self, amount: Amount) -> None:
        self.amount = amount
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Ledger:
    """Books calls against a budget. `spent` carries on from an earlier part of the run."""

    def __init__(self, budget: Budget = Budget(), spent: Mapping[str, Totals] | None = None) -> None:
        self.budget = budget
        self._roles = dict(spent or {})
        self._total = sum(self._roles.values(), Totals())
        self._reserved = Amount()
        self._queue: deque[_Waiter] = deque()

    @property
    def roles(self) -> dict[str, Totals]:
        """What each role spent so far."""
        return dict(self._roles)

    @property
    def total(self) -> Totals:
        return self._total

    @property
    def _used(self) -> Amount:
        return Amount(self._total.calls, self._total.usage.tokens, self._total.usage.dollars)

    @property
    def reserved(self) -> Amount:
        """What calls under way were estimated to take."""
        return self._reserved

    def reserve(self, role: str, estimate: Usage) -> AbstractAsyncContextManager[Charge]:
        """Hold an estimate for the length of one call; `settle` the charge inside.

        Raises:
            BudgetExhausted: what is left is less than the estimate.
        """
        return _Reservation(self, role, estimate)

    def _book(self, role: str, charge: Charge, estimate: Usage, seconds: float) -> None:
        usage = charge.usage
        entry = Totals(
            calls=int(usage is not None),
            failed=int(usage is None),
            retries=charge.retries,
            seconds=seconds,
            usage=Usage() if usage is None else usage if usage.tokens or usage.dollars else estimate,
        )
        self._roles[role] = self._roles.get(role, Totals()) + entry
        self._total += entry

    # ---- reservations ---------------------------------------------------------------------------------------------

    async def _claim(self, amount: Amount) -> None:
        """Reserve, in order of arrival; wait while other calls might still leave enough."""
        if not self._queue and passed(self.budget, self._used.plus(amount).plus(self._reserved)) is None:
            self._reserved = self._reserved.plus(amount)
            return
        waiter = _Waiter(amount)
        self._queue.append(waiter)
        self._advance()
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if not waiter.turn.cancelled() and waiter.turn.exception() is None:  # the turn came at the same moment
                self._release(amount)
            raise

    def _advance(self) -> None:
        while self._queue:
            waiter = self._queue[0]
            if not waiter.turn.done():
                used = self._used.plus(waiter.amount)
                if kind := passed(self.budget, used):
                    waiter.turn.set_exception(self._exhausted(kind, waiter.amount))
                elif passed(self.budget, used.plus(self._reserved)):
                    return
                else:
                    self._reserved = self._reserved.plus(waiter.amount)
                    waiter.turn.set_result(None)
            self._queue.popleft()

    def _release(self, amount: Amount) -> None:
        left = self._reserved.plus(amount, -1)
        self._reserved = left if left.calls else Amount()  # sums of floats do not come back to exactly 0
        self._advance()

    def _exhausted(self, kind: Literal["calls", "tokens", "dollars"], amount: Amount) -> BudgetExhausted:
        limit, spent, needed = getattr(self.budget, kind), getattr(self._used, kind), getattr(amount, kind)
        return BudgetExhausted(
            f"the budget of {limit:,} {kind} is spent: {_said(spent)} used, and the next call needs about "
            f"{_said(needed)}. Raise budget.{kind} to go on."
        )


def _said(amount: float) -> str:
    return f"{amount:,}" if isinstance(amount, int) else f"{amount:,.4g}"


class _Reservation(AbstractAsyncContextManager[Charge]):
    """What `Ledger.reserve` gives. A class, because every call of a model goes through one."""

    __slots__ = ("_amount", "_charge", "_estimate", "_ledger", "_role", "_started")

    def __init__(self, ledger: Ledger, role: str, estimate: Usage) -> None:
        self._ledger = ledger
        self._role = role
        self._estimate = estimate
        self._amount = Amount(1, estimate.tokens, estimate.dollars)
        self._charge = Charge()
        self._started = 0.0

    async def __aenter__(self) -> Charge:
        await self._ledger._claim(self._amount)  # pyright: ignore[reportPrivateUsage]  # a part of the ledger
        self._started = time.monotonic()
        return self._charge

    async def __aexit__(self, *_: object) -> None:
        took = time.monotonic() - self._started
        self._ledger._book(self._role, self._charge, self._estimate, took)  # pyright: ignore[reportPrivateUsage]
        self._ledger._release(self._amount)  # pyright: ignore[reportPrivateUsage]


class Metered:
    """A model whose calls are booked under a role. Without a `price`, the wrapped servers' prices are expected."""

    def __init__(self, model: Model, ledger: Ledger, role: str, price: Price | None = None) -> None:
        self._model = model
        self._ledger = ledger
        self._role = role
        own: Price = getattr(model, "price", Price())
        self._price = own if price is None else price

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def model(self) -> Model:
        """The model itself. Whoever asks it directly does so inside of `reserve`."""
        return self._model

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        async with self.reserve(messages, tools, sampling) as charge:
            if isinstance(self._model, ServerPool):
                completion = await self._model.complete(messages, tools, sampling, on_retry=charge.retried)
            else:
                completion = await self._model.complete(messages, tools, sampling)
            charge.settle(completion.usage)
        return completion

    def reserve(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> AbstractAsyncContextManager[Charge]:
        """Hold what a reply may take; `settle` the charge inside.

        Raises:
            BudgetExhausted: there is not enough left.
        """
        expected = estimated(self._ledger.budget, messages, tools, sampling, self._price)
        return self._ledger.reserve(self._role, expected)

    async def close(self) -> None:
        await self._model.close()


def estimated(
    budget: Budget, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling, price: Price
) -> Usage:
    """What a call may take, as far as the budget cares."""
    if budget.tokens is None and budget.dollars is None:
        return Usage()
    prompt, reply = prompt_tokens(messages, tools), reply_tokens(sampling)
    return Usage(prompt, reply, dollars=price.of(prompt, reply))
