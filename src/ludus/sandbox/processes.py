"""Processes as the kernel shows them: who descends from whom, and waiting for one to end.

Reads `/proc` only, so it works for slots in their own pid namespace too, whose processes the host sees under other
numbers. A process may vanish between two reads: that is an empty answer here, never an error.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
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
    fields = _stat(pid)
    return bool(fields) and int(fields[19]) >= int(moment * _TICKS)


def is_dead(pid: int) -> bool:
    """Gone, or dead and not yet reaped."""
    fields = _stat(pid)
    return not fields or fields[0] in (b"Z", b"X")


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on; nothing if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except _GONE:
        return []


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
    """Signal processes that may have ended. 0 stands for one that was not found; the kernel takes it for a group."""
    for pid in pids:
        if pid > 1:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def kill_trees(find_roots: Callable[[], Iterable[int]]) -> None:
    """Kill processes and all below them. They are stopped before any is killed, so that none forks and escapes.

    Bounded, and not waiting for their end: something may fork faster than it is stopped.
    """
    stopped: set[int] = set()
    for _ in range(50):
        new = descendants(find_roots()) - stopped
        signal_each(new, signal.SIGSTOP)
        stopped |= new
        if not new and not any(_is_running(pid) for pid in stopped):
            break
    signal_each(stopped, signal.SIGKILL)


def _is_running(pid: int) -> bool:
    return _stat(pid)[:1] in ([b"R"], [b"S"], [b"D"])  # the last is in the kernel, where it may just be forking


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
        """Its number, or 0 once it has ended and the number may be another's."""
        return 0 if self._ended.done() else self._popen.pid

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._ended.set_result(self._popen.wait())  # not before: until now the number is its own

    def stop(self) -> None:
        """Stop it, and wait until it has stopped or ended: a thread's work."""
        if not self._ended.done():
            self._popen.send_signal(signal.SIGSTOP)
            with suppress(ChildProcessError):  # reaped meanwhile
                os.waitid(os.P_PID, self._popen.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        if not self._ended.done():
            self._popen.kill()

    async def wait(self) -> int:
        """Its exit code. May be awaited by several, and again after the end."""
        return await asyncio.shield(self._ended)
