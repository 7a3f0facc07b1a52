"""The budget on many nodes: the driver's ledger grants slices, and workers spend from them.

    worker: claim ──> slice ──(empty)──> request ──> driver: Ledger.claim ──> grant
    worker: release, book ──> report ──> driver: Ledger.book, Ledger.release

What a worker holds is reserved in the driver's ledger, so the total is never exceeded by more than what is under way. A
slice is more than one call only while there is plenty left. If a call has to wait for what other workers hold and do
not use, the driver recalls it. What a lost worker held is released: a call without a reply costs nothing here.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable

from ludus.activity import enter_phase
from ludus.engines.wire import GrantRequest
from ludus.models.ledger import Amount, Budget, Ledger, Totals

AHEAD = 15
"""Calls that a slice has beside the one that asked for it, while there is plenty left."""
PLENTY = 8
"""How many such slices must be left for each worker."""

Ask = Callable[[str, Amount], Awaitable[Amount]]
"""Asks the driver for an amount, and returns what it grants. Raises `BudgetExhausted`."""


class SliceLedger(Ledger):
    """The ledger of a worker. It books calls, and reserves them from what the driver grants."""

    def __init__(self, budget: Budget, ask: Ask) -> None:
        super().__init__(budget)
        self._ask = ask
        self._held_back: dict[str, Amount] = {}
        self._spent: dict[str, Totals] = {}
        self._freed: dict[str, Amount] = {}

    async def claim(self, role: str, amount: Amount) -> None:
        if self.is_unlimited:
            return
        while not _covers(self._held_back.get(role, Amount()), amount):
            with enter_phase("ledger", self.activity, role):
                granted = await self._ask(role, amount)
            self._held_back[role] = self._held_back.get(role, Amount()).add(granted)
        self._held_back[role] = self._held_back[role].add(amount, -1)

    def release(self, role: str, amount: Amount) -> None:
        if not self.is_unlimited:
            self._freed[role] = self._freed.get(role, Amount()).add(amount)

    def book(self, role: str, entry: Totals) -> None:
        super().book(role, entry)
        self._spent[role] = self._spent.get(role, Totals()) + entry

    def return_unused(self) -> None:
        """Give back what was granted and is not used."""
        for role, amount in self._held_back.items():
            self.release(role, amount)
        self._held_back.clear()

    def take_changes(self) -> tuple[dict[str, Totals], dict[str, Amount]]:
        """What was spent and what was released since the last call, by role."""
        changes = self._spent, {role: amount for role, amount in self._freed.items() if any(amount)}
        self._spent, self._freed = {}, {}
        return changes


def _covers(held: Amount, amount: Amount) -> bool:
    return held.calls >= amount.calls and held.tokens >= amount.tokens and held.dollars >= amount.dollars - 1e-12


def choose_slice(ledger: Ledger, request: GrantRequest, workers: int) -> Amount:
    """What a request is granted: the amount, and more while there is plenty left."""
    amount = request.amount
    wanted = _scale(amount, 1 + AHEAD)
    return wanted if ledger.has_room(request.role, _scale(wanted, PLENTY * max(1, workers))) else amount


def _scale(amount: Amount, times: int) -> Amount:
    return Amount(amount.calls * times, amount.tokens * times, amount.dollars * times)


class GrantBook:
    """The driver's side: what each worker holds of the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._granted: dict[Hashable, dict[str, Amount]] = defaultdict(dict)

    async def grant(self, worker: Hashable, request: GrantRequest, workers: int) -> Amount:
        """Reserve a slice for a worker. Raises `BudgetExhausted`."""
        amount = choose_slice(self._ledger, request, workers)
        await self._ledger.claim(request.role, amount)
        self._add(worker, request.role, amount)
        return amount

    def settle(self, worker: Hashable, role: str, amount: Amount) -> None:
        """A worker has used a part of what it holds, or does not need it."""
        self._add(worker, role, amount, -1)
        self._ledger.release(role, amount)

    def lose(self, worker: Hashable) -> None:
        """Release what a lost worker held."""
        for role, amount in self._granted.pop(worker, {}).items():
            if amount.calls > 0:
                self._ledger.release(role, amount)

    def _add(self, worker: Hashable, role: str, amount: Amount, sign: int = 1) -> None:
        held = self._granted[worker]
        held[role] = held.get(role, Amount()).add(amount, sign)
