"""Processes as the kernel shows them: who descends from whom, and waiting for one to end.

Reads `/proc` only, so it works for slots in their own pid namespace too, whose processes the host sees under other
numbers. A process may vanish between two reads: that is an empty answer here, never an error.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
_TICKS = os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """The processes that `pid` started or adopted, zombies included."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(*_GONE):
                found += map(int, (task / "children").read_bytes().split())
    except _GONE:
        return found
    return found


def descendants(pids: Iterable[int]) -> set[int]:
    """`pids`, their children, their children's children, and so on."""
    found: set[int] = set()
    queue = list(pids)
    while queue:
        pid = queue.pop()
        if pid not in found:
            found.add(pid)
            queue += children(pid)
    return found


def started_after(pid: int, moment: float) -> bool:
    """Whether a process began at or after `moment` of the boot clock, to the tick (10 ms)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except _GONE:
        return False
    return int(fields[19]) >= int(moment * _TICKS)


def boot_clock() -> float:
    """The clock that `started_after` compares with."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def number_within(pid: int) -> int:
    """The number a process has in its own innermost pid namespace; 0 if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except _GONE:
        return 0
    for line in status.splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid


def signal_each(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


class Child:
    """A child process whose end can be awaited without a thread."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self._pidfd = os.pidfd_open(popen.pid)
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_reader(self._pidfd, self._reap)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._ended.set_result(self._popen.wait())

    def kill(self) -> None:
        if not self._ended.done():
            self._popen.kill()

    async def wait(self) -> int:
        """Its exit code. May be awaited by several, and again after the end."""
        return await asyncio.shield(self._ended)
