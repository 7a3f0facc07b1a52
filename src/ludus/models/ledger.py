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
from typing import ClassVar, Literal, NamedTuple

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
    """By the price of the model; null for no limit."""
    calls: Count | None = None
    """Model calls; null for no limit."""

    def get_role(self, role: str) -> "Budget":
        """The limits of one role alone."""
        return _NO_LIMITS

    @property
    def is_limited(self) -> bool:
        return any(limit is not None for limit in (self.tokens, self.dollars, self.calls))

    @property
    def needs_usage(self) -> bool:
        """Whether tokens or dollars are limited."""
        return self.tokens is not None or self.dollars is not None


_NO_LIMITS = Budget()


class RunBudget(Budget, frozen=True):
    """Where to stop. A run that reaches one of these ends cleanly and can be resumed with a larger one. `ludus train`
    keeps back what shipping and test take."""

    rollouts: Count | None = None
    """For `ludus train`: rollouts, with shipping and test; null for no limit."""
    agent: Budget = Budget()
    """Limits of the agent alone."""
    optimizer: Budget = Budget()
    """Limits of the optimizer alone. When they are reached, training ends, and the skill is shipped and tested."""

    added_later: ClassVar[tuple[str, ...]] = ("rollouts", "agent", "optimizer")

    def get_role(self, role: str) -> Budget:
        return {"agent": self.agent, "optimizer": self.optimizer}.get(role, _NO_LIMITS)

    @property
    def is_limited(self) -> bool:
        limits = (self.tokens, self.dollars, self.calls)
        return self.agent.is_limited or self.optimizer.is_limited or any(limit is not None for limit in limits)

    @property
    def needs_usage(self) -> bool:
        return any(part.tokens is not None or part.dollars is not None for part in (self, self.agent, self.optimizer))


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
    __slots__ = ("amount", "role", "turn")

    def __init__(self, role: str, amount: Amount) -> None:
        self.role = role
        self.amount = amount
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Ledger:
    """Books calls against a budget. `spent`: the totals of an earlier part of the run."""

    def __init__(self, budget: Budget = Budget(), spent: Mapping[str, Totals] | None = None) -> None:
        self.budget = budget
        self._unlimited = not budget.is_limited
        self._held = Amount()
        self._reserved_by: dict[str, Amount] = {}
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
        return _to_amount(self._total)

    @property
    def reserved(self) -> Amount:
        """The estimates of all running calls."""
        return self._reserved

    def hold(self, amount: Amount) -> None:
        """Keep an amount back: calls that need it are refused until it is released with `hold(Amount())`."""
        self._held = amount
        self._advance()

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

    async def _claim(self, role: str, amount: Amount) -> None:
        """Reserve, in order of arrival. Wait while running calls may still leave enough."""
        if self._unlimited or (not self._queue and self._find_limit(role, amount, self._reserved_by) is None):
            self._add_reserved(role, amount)
            return
        waiter = _Waiter(role, amount)
        self._queue.append(waiter)
        self._advance()
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if not waiter.turn.cancelled() and waiter.turn.exception() is None:  # the turn was given at the same moment
                self._release(role, amount)
            raise

    def _advance(self) -> None:
        while self._queue:
            waiter = self._queue[0]
            if not waiter.turn.done():
                if limit := self._find_limit(waiter.role, waiter.amount, {}):
                    waiter.turn.set_exception(self._make_error(limit, waiter))
                elif self._find_limit(waiter.role, waiter.amount, self._reserved_by):
                    return
                else:
                    self._add_reserved(waiter.role, waiter.amount)
                    waiter.turn.set_result(None)
            self._queue.popleft()

    def _find_limit(self, role: str, amount: Amount, reserved: Mapping[str, Amount]) -> "_Limit | None":
        """The first limit that a call of a role would exceed, beside these reservations."""
        total = self._used.add(amount).add(self._reserved if reserved else Amount()).add(self._held)
        if kind := find_exceeded(self.budget, total):
            return _Limit("", kind)
        own = _to_amount(self._roles.get(role, Totals())).add(amount).add(reserved.get(role, Amount()))
        if kind := find_exceeded(self.budget.get_role(role), own):
            return _Limit(role, kind)
        return None

    def _add_reserved(self, role: str, amount: Amount) -> None:
        self._reserved = self._reserved.add(amount)
        self._reserved_by[role] = self._reserved_by.get(role, Amount()).add(amount)

    def _release(self, role: str, amount: Amount) -> None:
        left = self._reserved.add(amount, -1)
        self._reserved = left if left.calls else Amount()  # float sums do not return to exactly 0
        own = self._reserved_by[role].add(amount, -1)
        self._reserved_by[role] = own if own.calls else Amount()
        self._advance()

    def _make_error(self, limit: "_Limit", waiter: _Waiter) -> BudgetExhausted:
        role, kind = limit
        budget = self.budget.get_role(role) if role else self.budget
        used = _to_amount(self._roles.get(role, Totals())) if role else self._used
        held = 0 if role else getattr(self._held, kind)
        kept = f", {_format_amount(held)} kept back for shipping and test" if held else ""
        spent, needed = _format_amount(getattr(used, kind)), _format_amount(getattr(waiter.amount, kind))
        return BudgetExhausted(
            f"the budget of {getattr(budget, kind):,} {kind} is spent: {spent} used{kept}, and the next call needs "
            f"about {needed}. Raise budget.{f'{role}.{kind}' if role else kind} to go on."
        )


class _Limit(NamedTuple):
    """A limit that a call would exceed."""

    role: str
    """Empty for a limit of the whole run."""
    kind: Literal["calls", "tokens", "dollars"]


def _to_amount(totals: Totals) -> Amount:
    return Amount(totals.calls, totals.usage.tokens, totals.usage.dollars)


class LedgerReserve:
    """Keeps back what rollouts at the end of a run will take, by what the rollouts so far have taken on average."""

    def __init__(self, ledger: Ledger, role: str = "agent") -> None:
        self._ledger = ledger
        self._role = role

    def hold(self, rollouts: int, done: int) -> None:
        """Keep back what this many rollouts will take; `done` rollouts have been paid so far."""
        spent = _to_amount(self._ledger.roles.get(self._role, Totals()))
        each = rollouts / done if done else 0.0
        self._ledger.hold(Amount(round(spent.calls * each), round(spent.tokens * each), spent.dollars * each))

    def release(self) -> None:
        """Everything may be spent from now on."""
        self._ledger.hold(Amount())


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
        await self._ledger._claim(self._role, self._amount)  # pyright: ignore[reportPrivateUsage]  # a part of it
        self._started = time.monotonic()
        return self._charge

    async def __aexit__(self, *_: object) -> None:
        took = time.monotonic() - self._started
        self._ledger._book(self._role, self._charge, self._estimate, took)  # pyright: ignore[reportPrivateUsage]
        self._ledger._release(self._role, self._amount)  # pyright: ignore[reportPrivateUsage]


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
    if not budget.needs_usage:
        return Usage()
    prompt, reply = estimate_prompt(messages, tools), estimate_reply(sampling)
    return Usage(prompt, reply, dollars=price.compute_cost(prompt, reply))
