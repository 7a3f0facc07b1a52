"""Threads that know which run they work for.

Files call tools in executors (`loop.run_in_executor(None, …)`). A thread does not inherit the context variables that
say which run and which group it belongs to, so these threads get those of their caller.
"""

import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class ContextThreads(ThreadPoolExecutor):
    """Threads that run each piece of work in the context of its caller."""

    def __init__(self, most: int, name: str) -> None:
        super().__init__(most, thread_name_prefix=name)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        return super().submit(contextvars.copy_context().run, fn, *args, **kwargs)
