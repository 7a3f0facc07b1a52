"""What the journal of a run counts: sums do not depend on what ended first."""

import pytest

from ludus.reflact.journal import Clock, Journal, StageProgress, open_task_group
from ludus.reflact.records import StageCost, UnusableReply
from ludus.types import Usage


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


async def test_tasks_that_fail_together_raise_one_error():
    async def fall(error: Exception) -> None:
        raise error

    with pytest.raises(KeyError, match="first"):
        async with open_task_group() as group:
            group.create_task(fall(KeyError("first")))
            group.create_task(fall(KeyError("second")))


def test_progress_is_reported_with_the_place_in_the_run():
    seen: list[StageProgress] = []
    journal = Journal(seen.append)
    Clock(journal, epoch=2, step=7)
    journal.report_progress("rollout", 3, 8)
    journal.book("optimizer", "merge", Usage(1, 1))
    assert seen == [StageProgress(2, 7, "rollout", 3, 8), StageProgress(2, 7, "merge", 1, 0)]


def test_a_clock_has_the_seconds_of_each_stage():
    clock = Clock(Journal(), 1, 1)
    clock.lap("rollout")
    clock.lap("reflect")
    assert list(clock.seconds) == ["rollout", "reflect"]
    assert all(seconds >= 0 for seconds in clock.seconds.values())
