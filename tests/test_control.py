"""What can be changed in a run while it runs, and the engine that follows."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.control import RunControl
from ludus.engine import fan_out
from ludus.runner import RunOptions


class Gate:
    """Work that waits until it is let through, and counts what runs."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self._open = asyncio.Semaphore(0)

    async def work(self, unit: int) -> None:
        self.begun.append(unit)
        await self._open.acquire()
        self.ended.append(unit)

    @property
    def running(self) -> int:
        return len(self.begun) - len(self.ended)

    async def let(self, count: int) -> None:
        """Let some end, and see what begins after it."""
        for _ in range(count):
            self._open.release()
        await settle()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_change_is_told_to_those_who_watch_and_to_nobody_after():
    control, told = RunControl(), list[str]()
    with control.watch(lambda: told.append(f"{control.concurrency} {control.paused} {control.is_stopping}")):
        control.set_concurrency(4)
        control.pause()
        control.resume()
        control.stop("why")
        control.requeue(["a"])
    control.set_concurrency(5)
    assert told == ["4 False False", "4 True False", "4 False False", "4 False True", "4 False True"]


def test_a_stop_keeps_its_first_reason_and_ends_a_pause():
    control = RunControl()
    control.pause()
    control.stop("first")
    control.stop("second")
    control.pause()
    assert (control.reason, control.paused, control.is_stopping) == ("first", False, True)


def test_no_rollouts_at_a_time_is_refused():
    with pytest.raises(ValueError, match="use 1 or more, or pause"):
        RunControl().set_concurrency(0)


def test_what_is_asked_for_again_is_taken_once_by_those_who_have_it():
    control = RunControl()
    control.requeue(["a", "b", "a"])
    assert control.requeued == ("a", "b")
    assert control.take_requeued({"b", "c"}) == ["b"]
    assert (control.take_requeued({"b"}), control.requeued) == ([], ("a",))


# ---- the engine follows -------------------------------------------------------------------------------------------


def start(gate: Gate, control: RunControl) -> "asyncio.Task[None]":
    return asyncio.create_task(fan_out(range(1000), gate.work, RunOptions(4, control=control)))


async def test_the_number_at_a_time_goes_up_and_down_while_it_runs():
    gate, control = Gate(), RunControl()
    running = start(gate, control)
    await settle()
    seen = [gate.running]
    for number in (9, 2, 3):
        control.set_concurrency(number)
        await settle()
        seen.append(gate.running)
        await gate.let(8)
        seen.append(gate.running)
    assert seen == [4, 9, 9, 9, 2, 3, 3]
    control.stop()
    await gate.let(3)
    await running
    assert gate.begun == gate.ended == list(range(len(gate.begun)))


async def test_a_pause_starts_nothing_and_what_runs_goes_on():
    gate, control = Gate(), RunControl()
    running = start(gate, control)
    await settle()
    control.pause()
    await gate.let(3)
    assert (gate.begun, len(gate.ended)) == ([0, 1, 2, 3], 3)
    await gate.let(1)
    assert (gate.begun, gate.running, running.done()) == ([0, 1, 2, 3], 0, False)
    control.resume()
    await settle()
    assert gate.begun == list(range(8))
    control.stop()
    await gate.let(4)
    await running


async def test_a_stop_drains_also_while_paused():
    gate, control = Gate(), RunControl()
    running = start(gate, control)
    await settle()
    control.pause()
    control.stop()
    await gate.let(4)
    await running
    assert gate.ended == [0, 1, 2, 3]


async def test_units_that_are_wider_count_as_so_many():
    gate, control = Gate(), RunControl()
    options = RunOptions(7, control=control)
    running = asyncio.create_task(fan_out(range(9), gate.work, options, width=3))
    await settle()
    assert gate.running == 2
    control.set_concurrency(1)
    await gate.let(2)
    assert gate.running == 1  # one always runs
    await gate.let(7)
    await running
    assert gate.ended == list(range(9))


async def test_what_is_finished_as_a_whole_does_not_mind_a_stop():
    gate, control = Gate(), RunControl()
    control.stop()
    running = asyncio.create_task(fan_out(range(5), gate.work, RunOptions(2, control=control, drains=False)))
    await gate.let(5)
    await running
    assert gate.ended == [0, 1, 2, 3, 4]


# ---- any order of changes -----------------------------------------------------------------------------------------


CHANGES = st.one_of(
    st.tuples(st.just("set"), st.integers(1, 9)),
    st.tuples(st.sampled_from(["pause", "resume", "let"]), st.integers(1, 6)),
)


@given(st.lists(CHANGES, max_size=25), st.integers(1, 4))
def test_whatever_is_changed_the_bounds_hold_and_nothing_is_lost(changes: list[tuple[str, int]], width: int):
    async def check() -> None:
        gate, control = Gate(), RunControl()
        options = RunOptions(4, control=control)
        running = asyncio.create_task(fan_out(range(60), gate.work, options, width=width))
        await settle()
        for name, number in changes:
            before, begun = gate.running, len(gate.begun)
            if name == "set":
                control.set_concurrency(number)
            elif name == "let":
                await gate.let(min(number, gate.running))
            else:
                getattr(control, name)()
            await settle()
            assert gate.running <= max(before, 1, options.at_once // width)
            assert not (control.paused and name != "resume" and len(gate.begun) > begun)
        control.resume()
        while not running.done():
            await gate.let(gate.running)
        await running
        assert sorted(gate.ended) == gate.begun == list(range(60))

    asyncio.run(check())
