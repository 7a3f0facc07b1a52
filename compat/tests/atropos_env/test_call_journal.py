"""Replies of models are remembered by group, request and how often it was sent."""

import contextvars

import pytest

from ludus.compat.atropos_env.call_journal import CallJournal, CallScope, get_scope
from ludus.store import MemoryStore


async def ask_all(store: MemoryStore, scope: CallScope, requests: list[str]) -> tuple[list[str], list[int]]:
    asked: list[int] = []

    async def run() -> list[str]:
        async def ask(number: int) -> str:
            asked.append(number)
            return f"reply {len(asked)}"

        journal = CallJournal(store)
        return [await journal.remember(scope, request, str, ask) for request in requests]

    return await run(), asked


async def test_a_file_that_runs_again_gets_the_same_replies_in_the_same_order():
    store = MemoryStore()
    first, asked = await ask_all(store, CallScope("group"), ["a", "a", "b"])
    assert (first, asked) == (["reply 1", "reply 2", "reply 3"], [0, 1, 0])
    again, more = await ask_all(store, CallScope("group"), ["a", "a", "b", "b"])
    assert again[:3] == first and more == [1]  # only what is missing is asked for
    _, other = await ask_all(store, CallScope("another group"), ["a"])
    assert other == [0]


async def test_a_call_that_fails_is_asked_again():
    store = MemoryStore()

    async def fail(number: int) -> str:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await CallJournal(store).remember(CallScope("group"), "a", str, fail)
    assert (await ask_all(store, CallScope("group"), ["a"]))[1] == [0]


def test_calls_outside_of_a_group_have_a_scope_too():
    assert contextvars.Context().run(get_scope).name == "other"
