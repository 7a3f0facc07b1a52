"""Backports of what the shared modules use and Python before 3.11 lacks. Used in the bundle only."""

from __future__ import annotations

import asyncio
import builtins
import sys
from typing import Any

from ludus.sandbox import shell


class _Timeout:
    """A backport of `asyncio.timeout`, without rescheduling."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._fired = False

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._fire)

    def _fire(self) -> None:
        assert self._task is not None
        self._fired = True
        self._task.cancel()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._timer.cancel()
        if self._fired and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError


def _zip(*columns: Any, strict: bool = False) -> Any:
    return builtins.zip(*columns)  # noqa: B905 - older Pythons have no `strict`


def fill_gaps() -> None:
    """Install the backports that this Python needs. Call it before the shared modules are used."""
    if sys.version_info < (3, 11):  # noqa: UP036
        setattr(asyncio, "timeout", _Timeout)  # noqa: B010
    if sys.version_info < (3, 10):  # noqa: UP036
        setattr(shell, "zip", _zip)  # noqa: B010
