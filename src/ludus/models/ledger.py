"""Budgets and usage: one `Ledger` for a run. A `MeteredModel` books the calls of a model under a role.

Before a call, its estimated usage is reserved. After it, the real usage is booked and the reservation is released, also
when the call fails or is cancelled. A call that does not fit into what is left raises `BudgetExhausted`. A call that
would fit without the reservations of other calls waits until they end, so that estimates do not stop a run.

Guarantees. The number of calls never exceeds its budget. Tokens and dollars exceed theirs at most by the error of the
estimates (four characters count as one token). If a server reports no usage, the estimate is booked, as far as a budget
needs it. Retries inside a call are counted, but a call is charged once, for the reply that arrived: what servers charge
for lost replies is unknown.
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
from ludus.models.reply_pieces import Drawing, StreamingModel
from ludus.models.server import Price
from ludus.models.server_pool import ServerPool
from ludus.models.token_estimate import estimate_prompt, estimate_reply
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
    """The sum of the calls of a role."""

    calls: int = 0
    failed: int = 0
    """Calls without a reply, including cancelled ones. They cost nothing here."""
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
    """An amount in the units of budgets."""

    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0

    def add(self, other: "Amount", sign: int = 1) -> "Amount":
        return Amount(
            self.calls + sign * other.calls,
            self.tokens + sign * other.tokens,
            self.dollars + sign * other.dollars,
        )


def find_exceeded(budget: Budget, amount: Amount) -> Literal["calls", "tokens", "dollars"] | None:
    """The first limit of the budget that the amount exceeds."""
    if budget.calls is not None and amount.calls > budget.calls:
        return "calls"
    if budget.tokens is not None and amount.tokens > budget.tokens:
        return "tokens"
    if budget.dollars is not None and amount.dollars > budget.dollars:
        return "dollars"
    return None


class Charge:
    """The entry of a running call."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.retries = 0

    def settle(self, usage: Usage) -> None:
        """Set the usage of the call. Without it, the call counts as failed."""
        self.usage = usage

    def count_retry(self, _: object = None) -> None:
        self.retries += 1


class _Waiter:
    __slots__ = ("amount", "turn")

    def __init__(self, amount: Amount) -> None:
        self.amount = amount
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Ledger:
    """Books calls against a budget. `spent`: the totals of an earlier part of the run."""

    def __init__(self, budget: Budget = Budget(), spent: Mapping[str, Totals] | None = None) -> None:
        self.budget = budget
        self._unlimited = budget == Budget()
        self._roles = dict(spent or {})
        self._total = sum(self._roles.values(), Totals())
        self._reserved = Amount()
        self._queue: deque[_Waiter] = deque()

    @property
    def roles(self) -> dict[str, Totals]:
        """The totals of each role so far."""
        return dict(self._roles)

    @property
    def total(self) -> Totals:
        return self._total

    @property
    def _used(self) -> Amount:
        return Amount(self._total.calls, self._total.usage.tokens, self._total.usage.dollars)

    @property
    def reserved(self) -> Amount:
        """The estimates of all running calls."""
        return self._reserved

    def reserve(self, role: str, estimate: Usage) -> AbstractAsyncContextManager[Charge]:
        """Reserve an estimate during one call. Call `settle` on the charge inside.

        Raises:
            BudgetExhausted: the estimate is more than what is left.
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
        """Reserve, in order of arrival. Wait while running calls may still leave enough."""
        if self._unlimited or (
            not self._queue and find_exceeded(self.budget, self._used.add(amount).add(self._reserved)) is None
        ):
            self._reserved = self._reserved.add(amount)
            return
        waiter = _Waiter(amount)
        self._queue.append(waiter)
        self._advance()
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if not waiter.turn.cancelled() and waiter.turn.exception() is None:  # the turn was given at the same moment
                self._release(amount)
            raise

    def _advance(self) -> None:
        while self._queue:
            waiter = self._queue[0]
            if not waiter.turn.done():
                used = self._used.add(waiter.amount)
                if kind := find_exceeded(self.budget, used):
                    waiter.turn.set_exception(self._make_error(kind, waiter.amount))
                elif find_exceeded(self.budget, used.add(self._reserved)):
                    return
                else:
                    self._reserved = self._reserved.add(waiter.amount)
                    waiter.turn.set_result(None)
            self._queue.popleft()

    def _release(self, amount: Amount) -> None:
        left = self._reserved.add(amount, -1)
        self._reserved = left if left.calls else Amount()  # float sums do not return to exactly 0
        self._advance()

    def _make_error(self, kind: Literal["calls", "tokens", "dollars"], amount: Amount) -> BudgetExhausted:
        limit, spent, needed = getattr(self.budget, kind), getattr(self._used, kind), getattr(amount, kind)
        return BudgetExhausted(
            f"the budget of {limit:,} {kind} is spent: {_format_amount(spent)} used, and the next call needs about "
            f"{_format_amount(needed)}. Raise budget.{kind} to go on."
        )


def _format_amount(amount: float) -> str:
    return f"{amount:,}" if isinstance(amount, int) else f"{amount:,.4g}"


class _Reservation(AbstractAsyncContextManager[Charge]):
    """Returned by `Ledger.reserve`. A class is faster than a generator, and every model call uses one."""

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


class MeteredModel:
    """A model whose calls are booked under a role. Without a `price`, estimates use the model's own."""

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
        """The wrapped model. Call it directly only inside `reserve`."""
        return self._model

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        async with self.reserve(messages, tools, sampling) as charge:
            if isinstance(self._model, ServerPool):
                completion = await self._model.complete(messages, tools, sampling, on_retry=charge.count_retry)
            else:
                completion = await self._model.complete(messages, tools, sampling)
            charge.settle(completion.usage)
        return completion

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling, drawing: Drawing
    ) -> Completion:
        """`complete`, and pass the reply on while it is drawn, if the model can do that."""
        async with self.reserve(messages, tools, sampling) as charge:
            if isinstance(self._model, ServerPool):
                completion = await self._model.stream(messages, tools, sampling, drawing, on_retry=charge.count_retry)
            elif isinstance(self._model, StreamingModel):
                completion = await self._model.stream(messages, tools, sampling, drawing)
            else:
                completion = await self._model.complete(messages, tools, sampling)
            charge.settle(completion.usage)
        return completion

    def reserve(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> AbstractAsyncContextManager[Charge]:
        """Reserve the estimated usage of a call. Call `settle` on the charge inside.

        Raises:
            BudgetExhausted: there is not enough left.
        """
        expected = estimate_usage(self._ledger.budget, messages, tools, sampling, self._price)
        return self._ledger.reserve(self._role, expected)

    async def close(self) -> None:
        await self._model.close()


def estimate_usage(
    budget: Budget, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling, price: Price
) -> Usage:
    """The estimated usage of a call; zero if the budget limits neither tokens nor dollars."""
    if budget.tokens is None and budget.dollars is None:
        return Usage()
    prompt, reply = estimate_prompt(messages, tools), estimate_reply(sampling)
    return Usage(prompt, reply, dollars=price.compute_cost(prompt, reply))
