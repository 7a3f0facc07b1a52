"""What a run keeps and counts: the two stores alike, and sums that do not depend on what ended first."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ludus.errors import StoreError, raise_first
from ludus.reflact.journal import Journal, open_task_group
from ludus.reflact.records import StageCost, UnusableReply, add_costs
from ludus.store import MemoryStore, RunDir
from ludus.types import Usage


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MemoryStore | RunDir]:
    if request.param == "memory":
        yield MemoryStore()
        return
    with RunDir.open(tmp_path / "run", {}) as run:
        yield run


def test_a_record_is_found_again_and_the_first_one_stays(store: MemoryStore | RunDir):
    assert store.get_record("k") is None
    assert store.put_record("k", "call", b"one") == b"one"
    assert store.put_record("k", "call", b"two") == b"one"
    store.put_record("a", "call", b"three")
    store.put_record("b", "record", b"four")
    assert store.get_record("k") == b"one"
    assert list(store.read_records("call")) == [("k", b"one"), ("a", b"three")]


def test_records_outlive_their_process_and_are_masked(tmp_path: Path):
    with RunDir.open(tmp_path / "run", {}, secrets=["sesame-sesame"]) as run:
        assert run.put_record("k", "call", b"open sesame-sesame") == b"open [redacted]"
    with RunDir.read(tmp_path / "run") as run:
        assert run.get_record("k") == b"open [redacted]"
        with pytest.raises(StoreError, match="reading only"):
            run.put_record("l", "call", b"")


def test_sums_are_the_same_in_any_order():
    usages = [Usage(1, 2, 0, dollars) for dollars in (0.1, 0.2, 0.3, 1e-17, 7.7)]
    sums: set[tuple[StageCost, ...]] = set()
    for order in (usages, usages[::-1]):
        journal = Journal()
        for usage in order:
            journal.book("agent", "rollout", usage)
        sums.add(journal.sum_costs())
    (only,) = sums
    assert only[0].calls == 5


def test_an_outcome_is_counted_once_also_if_it_was_counted_in_an_earlier_record():
    journal = Journal()
    journal.mark_counted(["old"])
    for key in ("old", "new", "new"):
        journal.book_outcome(key, "rollout", Usage(1, 1))
    assert journal.sum_costs() == (StageCost("agent", "rollout", 1, Usage(1, 1)),)
    assert journal.close() == ("new",)
    assert journal.sum_costs() == ()


def test_events_are_in_order_of_their_place():
    journal = Journal()
    events = [
        UnusableReply("merge", "1", "", 1),
        UnusableReply("analyst", "2", "", 1),
        UnusableReply("analyst", "1", "", 1),
    ]
    for event in events:
        journal.note(event)
    assert journal.list_events() == (events[2], events[1], events[0])


def test_totals_add_up_by_role_and_stage():
    one, two = StageCost("agent", "test", 1, Usage(1, 1)), StageCost("agent", "slow", 2, Usage(2, 2))
    assert add_costs([one], [two, one]) == (two, StageCost("agent", "test", 2, Usage(2, 2)))


def test_tasks_that_fall_together_raise_raise_first():
    async def fall(error: Exception) -> None:
        raise error

    async def together() -> None:
        async with open_task_group() as group:
            group.create_task(fall(KeyError("first")))
            group.create_task(fall(KeyError("second")))

    with pytest.raises(KeyError, match="first"):
        asyncio.run(together())
    with pytest.raises(KeyError), raise_first():
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [KeyError("deep")])])
