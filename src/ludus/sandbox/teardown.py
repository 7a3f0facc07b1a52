"""Teardown that a cancellation cannot interrupt."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def run_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end, even if the caller is cancelled meanwhile. The cancellation is raised afterwards.

    `work` must be bounded in time: until it ends, nothing can stop the caller.
    """
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the caller gets the cancellation instead
        raise cancelled
    return task.result()
