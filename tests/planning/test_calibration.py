"""The calibration of a plan: which tasks, how many at once, and what this machine gave."""

import asyncio
import subprocess
import sys

import pytest
from tests.build import make_task

from ludus.activity import Activity
from ludus.planning import calibration
from ludus.planning.calibration import Meter, choose_first, choose_tasks


@pytest.mark.parametrize(
    ("tasks", "rollouts", "group_size", "expected"),
    [
        (100, 10, 1, (list(range(0, 100, 10)), 1)),
        (100, 10, 4, ([0, 33, 66], 4)),
        (4, 50, 1, ([0, 1, 2, 3], 13)),
        (3, 2, 8, ([0], 8)),
    ],
)
def test_tasks_are_from_all_parts_of_a_split(
    tasks: int, rollouts: int, group_size: int, expected: tuple[list[int], int]
):
    chosen, size = choose_tasks([make_task(str(n)) for n in range(tasks)], rollouts, group_size)
    assert ([int(task.id) for task in chosen], size) == expected


@pytest.mark.parametrize(("tasks", "at_once", "expected"), [(12, 16, (3, 4)), (12, 4, (0, 4)), (3, 16, (0, 16))])
def test_a_quarter_runs_first_with_a_quarter_at_once(tasks: int, at_once: int, expected: tuple[int, int]):
    first, few = choose_first([make_task(str(n)) for n in range(tasks)], at_once)
    assert (len(first), few) == expected


async def test_a_meter_sees_the_cores_and_the_memory_of_processes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calibration, "LOOK_SECONDS", 0.01)
    meter, board = Meter(), Activity()
    meter.reset_cores()
    code = "data = b'x' * 40_000_000; n = sum(range(3_000_000)); input()"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=subprocess.PIPE)
    try:
        async with asyncio.timeout(60), meter.watch(board):
            with board.follow("a"), board.follow("b"):
                while (meter.slot_mb or 0.0) < 18.0:  # noqa: ASYNC110  # the process has to get there
                    await asyncio.sleep(0.01)
    finally:
        await process.communicate(b"\n")
    assert meter.core_seconds > 0.01
