"""When a silence is told, and when it ends a run."""

import asyncio

import pytest

from ludus.activity import ActivityReport, PhaseCount
from ludus.watchdog import FIRST_NOTICE, decide_step, describe_wait, list_activity_values, watch_activity

WAITING = (PhaseCount("model", 3, 70.0, "a#0"), PhaseCount("slot", 2, 300.0, "b#1", "n7"))


def make_report(quiet: float, *, idle: bool = False) -> ActivityReport:
    return ActivityReport(() if idle else WAITING, quiet=quiet)


@pytest.mark.parametrize(
    ("quiet", "next_notice", "stall", "step"),
    [
        # nothing long enough yet
        (0.0, 0.0, 0.0, (False, False, 60.0, 60.0)),
        (59.0, 60.0, 0.0, (False, False, 1.0, 60.0)),
        # the first notice, then after twice the time
        (60.0, 60.0, 0.0, (True, False, 60.0, 120.0)),
        (119.0, 120.0, 0.0, (False, False, 1.0, 120.0)),
        (120.0, 120.0, 0.0, (True, False, 120.0, 240.0)),
        # the machine slept: one notice, not several
        (1000.0, 60.0, 0.0, (True, False, 920.0, 1920.0)),
        # something moved after the last notice
        (5.0, 240.0, 0.0, (False, False, 55.0, 60.0)),
        # the run ends
        (99.0, 120.0, 100.0, (False, False, 1.0, 120.0)),
        (100.0, 120.0, 100.0, (False, True, 0.0, 120.0)),
        # with a short limit, the notice comes before the end
        (0.0, 0.0, 10.0, (False, False, 5.0, 5.0)),
        (5.0, 5.0, 10.0, (True, False, 5.0, 10.0)),
    ],
)
def test_what_a_silence_asks_for(quiet: float, next_notice: float, stall: float, step: tuple[object, ...]):
    assert tuple(decide_step(make_report(quiet), next_notice, stall)) == step


def test_a_run_in_which_nothing_is_under_way_is_not_stalled():
    assert tuple(decide_step(make_report(1e6, idle=True), 120.0, 10.0)) == (False, False, 5.0, 5.0)
    assert decide_step(make_report(1e6, idle=True), 120.0, 0.0).sleep == FIRST_NOTICE


def test_a_wait_in_words_and_as_metrics():
    assert describe_wait(make_report(130.0)) == (
        "nothing has moved for 2 min. It waits for: model 3 (longest 70 s: a#0); slot 2 on n7 (longest 5 min: b#1)"
    )
    assert describe_wait(make_report(1.0, idle=True)).endswith("nothing is under way")
    more = ActivityReport((*WAITING, PhaseCount("model", 1, 90.0, "c", "n7")), quiet=4.0)
    assert list_activity_values(more) == {
        "activity/quiet_seconds": 4.0,
        "activity/model": 4.0,
        "activity/slot": 2.0,
        "activity/model_oldest_seconds": 90.0,
        "activity/slot_oldest_seconds": 300.0,
    }


async def test_a_watch_tells_and_returns_what_the_run_waits_for():
    told: list[ActivityReport] = []
    loop = asyncio.get_running_loop()
    began = loop.time()
    ended = await watch_activity(lambda: make_report(loop.time() - began), told.append, 0.05)
    assert [each.quiet >= 0.025 for each in told] == [True]
    assert ended.quiet >= 0.05 and ended.phases == WAITING
