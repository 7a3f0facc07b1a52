"""Teardown that a cancellation cannot interrupt."""

import asyncio

import pytest

from ludus.sandbox.teardown import run_shielded


async def test_the_result_and_the_error_are_those_of_the_work():
    async def give() -> int:
        return 7

    async def fail() -> None:
        raise KeyError("x")

    assert await run_shielded(give()) == 7
    with pytest.raises(KeyError):
        await run_shielded(fail())


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancelled_caller_waits_for_the_end_and_then_gets_the_cancellation(fails):
    release, steps = asyncio.Event(), list[str]()

    async def work() -> None:
        await release.wait()
        steps.append("worked")
        if fails:
            raise KeyError

    async def caller() -> None:
        try:
            await run_shielded(work())
        finally:
            steps.append("returned")

    task = asyncio.create_task(caller())
    for _ in range(2):  # more than one cancellation does not help either
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["worked", "returned"]
