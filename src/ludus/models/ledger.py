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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Literal, NamedTuple

from msgspec import Struct

from ludus.activity import Activity, enter_phase
from ludus.errors import BudgetExhausted, ModelUnusable
from ludus.models import Model, ModelWrapper, find_capability
from ludus.models.reply_pieces import PieceStream, StreamingModel
from ludus.models.server import Price, PricedModel
from ludus.models.server_pool import ServerPool
from ludus.models.token_estimate import estimate_prompt, estimate_reply
from ludus.settings import Settings
from ludus.types import Completion, Count, Message, Positive, Sampling, ToolSpec, Usage


class Budget(Settings, frozen=True):
    """Where to stop. A run that reaches one of these ends cleanly and can be resumed with a larger one."""

    tokens: Count | None = None
    """Prompt and completion tokens together; null for no limit."""
    dollars: Positive | None = None
    """By the prices of the models, which must be known (`model.price`); null for no limit."""
    calls: Count | None = None
    """Model calls; null for no limit."""

    def get_role(self, role: str) -> "Budget":
        """The limits of one role alone."""
        return _NO_LIMITS

    def find_dollars(self, role: str) -> str:
        """The setting that limits what a role may cost; empty if none does."""
        own = "" if self.get_role(role).dollars is None else f"budget.{role}.dollars"
        return own if self.dollars is None else "budget.dollars"

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
        self.activity = Activity()
        """Where calls say what they wait for, also those that belong to no rollout."""
        self._unlimited = not budget.is_limited
        self._held = Amount()
        self._reserved_by: dict[str, Amount] = {}
        self._roles = dict(spent or {})
        self._total = sum(self._roles.values(), Totals())
        self._reserved = Amount()
        self._queue: deque[_Waiter] = deque()
        self._on_booked: Callable[[str], None] = lambda role: None
        self._on_waiting: Callable[[], None] = lambda: None

    def watch(self, on_booked: Callable[[str], None]) -> None:
        """Call `on_booked` with the role of each call when it has been booked."""
        self._on_booked = on_booked

    def watch_waiting(self, on_waiting: Callable[[], None]) -> None:
        """Call `on_waiting` when a call has to wait for the reservations of others."""
        self._on_waiting = on_waiting

    @property
    def is_unlimited(self) -> bool:
        return self._unlimited

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

    def book_call(self, role: str, charge: Charge, estimate: Usage, seconds: float) -> None:
        """Book one call."""
        usage = charge.usage
        self.book(
            role,
            Totals(
                calls=int(usage is not None),
                failed=int(usage is None),
                retries=charge.retries,
                seconds=seconds,
                usage=Usage() if usage is None else usage if usage.tokens or usage.dollars else estimate,
            ),
        )

    def book(self, role: str, entry: Totals) -> None:
        """Add what calls of a role took."""
        self._roles[role] = self._roles.get(role, Totals()) + entry
        self._total += entry
        self._on_booked(role)

    # ---- reservations ---------------------------------------------------------------------------------------------

    async def claim(self, role: str, amount: Amount) -> None:
        """Reserve, in order of arrival. Wait while running calls may still leave enough. `release` must follow.

        Raises:
            BudgetExhausted: the amount is more than what is left.
        """
        if self.has_room(role, amount):
            self._add_reserved(role, amount)
            return
        waiter = _Waiter(role, amount)
        self._queue.append(waiter)
        self._advance()
        if not waiter.turn.done():
            self._on_waiting()
        try:
            with enter_phase("ledger", self.activity, role):
                await waiter.turn
        except asyncio.CancelledError:
            if not waiter.turn.cancelled() and waiter.turn.exception() is None:  # the turn was given at the same moment
                self.release(role, amount)
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

    def has_room(self, role: str, amount: Amount) -> bool:
        """Whether an amount could be reserved now, beside all others."""
        return self._unlimited or (not self._queue and self._find_limit(role, amount, self._reserved_by) is None)

    def _add_reserved(self, role: str, amount: Amount) -> None:
        self._reserved = self._reserved.add(amount)
        self._reserved_by[role] = self._reserved_by.get(role, Amount()).add(amount)

    def release(self, role: str, amount: Amount) -> None:
        """End a reservation, or a part of it."""
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

    __slots__ = ("_amount", "_charge", "_estimate", "_ledger", "_phase", "_role", "_started")

    def __init__(self, ledger: Ledger, role: str, estimate: Usage) -> None:
        self._ledger = ledger
        self._role = role
        self._estimate = estimate
        self._amount = Amount(1, estimate.tokens, estimate.dollars)
        self._charge = Charge()
        self._phase = enter_phase("model", ledger.activity, role)
        self._started = 0.0

    async def __aenter__(self) -> Charge:
        await self._ledger.claim(self._role, self._amount)
        self._started = time.monotonic()
        self._phase.__enter__()
        return self._charge

    async def __aexit__(self, *_: object) -> None:
        self._phase.__exit__()
        took = time.monotonic() - self._started
        self._ledger.book_call(self._role, self._charge, self._estimate, took)
        self._ledger.release(self._role, self._amount)


class MeteredModel(ModelWrapper):
    """A model whose calls are booked under a role. Without a `price`, estimates use the model's own. Call the inner
    model directly only inside `reserve`."""

    def __init__(self, model: Model, ledger: Ledger, role: str, price: Price | None = None) -> None:
        super().__init__(model)
        self._ledger = ledger
        self._role = role
        self._price = find_price(model) if price is None else price
        self._streaming = find_capability(model, StreamingModel)

    @property
    def name(self) -> str:
        return self.inner.name

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        async with self.reserve(messages, tools, sampling) as charge:
            if isinstance(self.inner, ServerPool):
                completion = await self.inner.complete(messages, tools, sampling, on_retry=charge.count_retry)
            else:
                completion = await self.inner.complete(messages, tools, sampling)
            self._settle(charge, completion.usage)
        return completion

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling, reply_stream: PieceStream
    ) -> Completion:
        """`complete`, and pass the reply on while it is sampled, if the model can do that."""
        async with self.reserve(messages, tools, sampling) as charge:
            if isinstance(self.inner, ServerPool):
                completion = await self.inner.stream(
                    messages, tools, sampling, reply_stream, on_retry=charge.count_retry
                )
            elif self._streaming is not None:
                completion = await self._streaming.stream(messages, tools, sampling, reply_stream)
            else:
                completion = await self.inner.complete(messages, tools, sampling)
            self._settle(charge, completion.usage)
        return completion

    def _settle(self, charge: Charge, usage: Usage) -> None:
        """Book what a reply took. A server that should report its cost and does not would never reach the budget."""
        charge.settle(usage)
        limit = self._ledger.budget.find_dollars(self._role)
        if limit and self._price.reported and usage.tokens and not usage.dollars:
            raise ModelUnusable(
                f"{self.name} reported no cost for a reply, which {limit} needs: set price.prompt and price.completion "
                "of the model in place of price.reported"
            )

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
        await self.inner.close()


def find_price(model: Model) -> Price:
    """The price of a model; nothing, if it names none."""
    priced = find_capability(model, PricedModel)
    return Price() if priced is None else priced.price


def estimate_usage(
    budget: Budget, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling, price: Price
) -> Usage:
    """The estimated usage of a call; zero if the budget limits neither tokens nor dollars."""
    if not budget.needs_usage:
        return Usage()
    prompt, reply = estimate_prompt(messages, tools), estimate_reply(sampling)
    return Usage(prompt, reply, dollars=price.compute_cost(prompt, reply))
