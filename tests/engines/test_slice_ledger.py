"""A budget in slices: what workers hold is reserved, the total holds, and what is not used comes back."""

import asyncio

import pytest

from ludus.engines.slice_ledger import AHEAD, GrantBook, SliceLedger, choose_slice
from ludus.engines.wire import GrantRequest
from ludus.errors import BudgetExhausted
from ludus.models.ledger import Amount, Budget, Ledger
from ludus.types import Usage


def connect(driver: Ledger, worker: str, book: GrantBook) -> SliceLedger:
    async def ask(role: str, amount: Amount) -> Amount:
        return await book.grant(worker, GrantRequest(0, role, amount), 2)

    return SliceLedger(driver.budget, ask)


def report(driver: Ledger, worker: str, book: GrantBook, ledger: SliceLedger) -> None:
    spent, released = ledger.take_changes()
    for role, totals in spent.items():
        driver.book(role, totals)
    for role, amount in released.items():
        book.settle(worker, role, amount)


async def call(ledger: SliceLedger) -> None:
    async with ledger.reserve("agent", Usage()) as charge:
        charge.settle(Usage(10, 5))


def test_a_slice_is_more_than_a_call_only_while_there_is_plenty():
    request = GrantRequest(1, "agent", Amount(1, 0, 0.0))
    assert choose_slice(Ledger(Budget(calls=10_000)), request, 2).calls == 1 + AHEAD
    assert choose_slice(Ledger(Budget(calls=20)), request, 2).calls == 1


async def test_two_workers_never_take_more_than_the_budget():
    driver = Ledger(Budget(calls=7))
    book = GrantBook(driver)
    workers = {name: connect(driver, name, book) for name in ("one", "two")}
    done = 0
    with pytest.raises(BudgetExhausted, match="the budget of 7 calls is spent"):
        for _ in range(10):
            for name, ledger in workers.items():
                await call(ledger)
                report(driver, name, book, ledger)
                done += 1
    assert done == 7 == driver.total.calls and driver.total.usage.tokens == 7 * 15


async def test_a_call_waits_for_what_another_worker_holds_and_gets_it_when_it_is_returned():
    driver = Ledger(Budget(calls=500))
    book, recalled = GrantBook(driver), asyncio.Event()
    driver.watch_waiting(recalled.set)
    one = connect(driver, "one", book)
    await call(one)
    report(driver, "one", book, one)
    assert driver.reserved.calls == AHEAD
    waiting = asyncio.create_task(driver.claim("agent", Amount(499, 0, 0.0)))
    await recalled.wait()
    one.return_unused()
    report(driver, "one", book, one)
    await waiting
    assert driver.reserved.calls == 499


async def test_what_a_lost_worker_held_is_free_again():
    driver = Ledger(Budget(calls=500))
    book = GrantBook(driver)
    await call(connect(driver, "one", book))
    book.lose("one")
    assert driver.reserved == Amount()
