"""The choice of how slots are isolated."""

import os

import pytest

from ludus.sandbox.slotd.isolation import Isolation, find_isolation, sample_user


async def find(failing: int, *, as_root: bool = False) -> tuple[list[Isolation], Isolation]:
    """What was tried, and what was chosen, if the first so many attempts fail."""
    tried: list[Isolation] = []

    async def probe(isolation: Isolation) -> str:
        tried.append(isolation)
        return "" if len(tried) > failing else f"problem {len(tried)}"

    return tried, await find_isolation(as_root=as_root, probe=probe)


async def test_the_best_isolation_that_works_is_used_and_the_reason_names_what_failed(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    tried, found = await find(0)
    assert tried == [Isolation("namespaces", in_user_namespace=True, own_users=True)] == [found]
    tried, found = await find(3)
    assert [each.level for each in tried] == ["namespaces"] * 3 + ["user"]
    assert (found.level, found.reason) == (
        "user",
        "namespaces are not allowed here; problem 1; problem 2; problem 3",
    )
    _, found = await find(4)
    assert (found.level, found.reason.endswith("problem 4")) == ("none", True)


async def test_an_ordinary_user_has_no_users_for_slots(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert (await find(0))[1] == Isolation("namespaces", in_user_namespace=True)
    assert (await find(1))[1].level == "none"


async def test_slots_that_run_as_root_are_not_isolated():
    assert await find(0, as_root=True) == ([], Isolation("none", reason="slots run as root"))


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests do not run as root")
def test_users_are_drawn_at_random_from_a_range_of_their_own():
    users = {sample_user() for _ in range(20)}
    assert len(users) == 20
    assert min(users) >= 20_000
