"""The board of what rollouts wait for."""

import asyncio

import pytest

from ludus import activity as module
from ludus.activity import Activity, ActivityReport, PhaseCount, enter_phase
from ludus.agent import take_turns
from ludus.models.ledger import Budget, Ledger, MeteredModel
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.types import Message, Sampling, Usage


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 5000.0 + self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def list_phases(board: Activity) -> list[tuple[str, int, float, str]]:
    return [(each.phase, each.count, each.oldest, each.who) for each in board.report().phases]


def test_a_rollout_is_in_its_innermost_phase_since_it_entered_it(clock: Clock):
    board = Activity()
    with board.follow("a#0"):
        clock.now += 1
        with enter_phase("verify"):
            clock.now += 2
            with enter_phase("slot"):
                clock.now += 3
                assert list_phases(board) == [("slot", 1, 3.0, "a#0")]
            assert list_phases(board) == [("verify", 1, 5.0, "a#0")]
        assert list_phases(board) == [("other", 1, 6.0, "a#0")]
    assert board.report() == ActivityReport()


def test_every_moment_of_a_rollout_counts_for_its_innermost_phase(clock: Clock):
    with Activity().follow("a#0") as mark:
        clock.now += 1
        with enter_phase("slot"):
            clock.now += 2
        with enter_phase("verify"):
            clock.now += 4
            with enter_phase("slot"):
                clock.now += 8
            clock.now += 16
        times = mark.make_times()
    assert times.began == 5100.0
    assert times.phases == {"other": 1.0, "slot": 10.0, "verify": 20.0}


async def test_rollouts_of_other_tasks_are_counted_by_phase_and_the_longest_comes_first(clock: Clock):
    board, gate = Activity(), asyncio.Event()

    async def wait(name: str, phase: str) -> None:
        with board.follow(name), enter_phase(phase):
            await gate.wait()

    async with asyncio.TaskGroup() as group:
        for name, phase in (("a", "model"), ("b", "slot"), ("c", "model")):
            group.create_task(wait(name, phase))
            await asyncio.sleep(0)
            clock.now += 10
        assert list_phases(board) == [("model", 2, 30.0, "a"), ("slot", 1, 20.0, "b")]
        assert (board.report().running, board.report().quiet, board.report().since_end) == (3, 10.0, 30.0)
        gate.set()
    assert (board.report().running, board.report().quiet, board.report().since_end) == (0, 0.0, 0.0)


async def test_steps_of_one_rollout_that_overlap_leave_no_phase_behind():
    board = Activity()

    async def call(turns: int) -> None:
        with enter_phase("model"):
            for _ in range(turns):
                await asyncio.sleep(0)

    with board.follow("a"), enter_phase("verify"):
        await asyncio.gather(call(1), call(5), call(3))
        assert [each[0] for each in list_phases(board)] == ["verify"]


def test_a_phase_outside_of_a_rollout_is_on_no_board_unless_one_is_named():
    board = Activity()
    with enter_phase("model"):
        assert board.report().running == 0
    with enter_phase("model", board, "optimizer"):
        assert [(each.phase, each.who) for each in board.report().phases] == [("model", "optimizer")]
    assert board.report().running == 0


def test_the_boards_of_nodes_are_merged_and_forgotten(clock: Clock):
    board = Activity()
    clock.now += 50
    board.merge("n1", ActivityReport((PhaseCount("slot", 2, 7.0, "x"),), quiet=4.0, since_end=9.0))
    clock.now += 3
    assert board.report().phases == (PhaseCount("slot", 2, 10.0, "x", "n1"),)
    assert (board.report().quiet, board.report().since_end) == (7.0, 12.0)
    board.merge("n1", None)
    assert (board.report().running, board.report().quiet) == (0, 53.0)


async def test_a_call_that_waits_for_the_budget_says_so():
    ledger = Ledger(Budget(calls=1))
    asked, answer = asyncio.Event(), asyncio.Event()

    async def reply(*_: object) -> str:
        asked.set()
        await answer.wait()
        return "yes"

    model = MeteredModel(ScriptedModel(reply), ledger, "optimizer")
    async with asyncio.TaskGroup() as group:
        first = group.create_task(model.complete([Message("user", "?")], (), Sampling()))
        await asked.wait()
        second = group.create_task(_expect_spent(ledger))
        await asyncio.sleep(0)
        assert sorted((each.phase, each.who) for each in ledger.activity.report().phases) == [
            ("ledger", "agent"),
            ("model", "optimizer"),
        ]
        answer.set()
    assert first.result().message.content == "yes" and second.done()
    assert ledger.activity.report().running == 0


async def _expect_spent(ledger: Ledger) -> None:
    with pytest.raises(Exception, match="budget of 1 calls is spent"):
        async with ledger.reserve("agent", Usage()):
            pass


async def test_the_loop_says_that_it_waits_for_its_model():
    board, seen = Activity(), list[str]()

    def reply(*_: object) -> str:
        seen.extend(each.phase for each in board.report().phases)
        return "done"

    with board.follow("a"):
        async for _ in take_turns(Policy(ScriptedModel(reply)), [Message("user", "?")], ()):
            pass
    assert seen == ["model"]


def test_outcomes_are_counted_by_what_failed_and_are_a_movement(clock: Clock):
    board = Activity()
    clock.now += 9
    for boundary in ("", "model", "", "model", "sandbox"):
        board.count_outcome(boundary)
    clock.now += 1
    report = board.report()
    assert (report.ended, report.lost) == (5, {"model": 2, "sandbox": 1})
    assert (report.quiet, report.since_end) == (1.0, 1.0)
