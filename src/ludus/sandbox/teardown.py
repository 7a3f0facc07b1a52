"""Teardown that a cancellation cannot cut short."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` although the caller may be cancelled meanwhile; the cancellation is raised after it.

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
            task.exception()  # seen; the cancellation is what the caller has to hear about
        raise cancelled
    return task.result()
