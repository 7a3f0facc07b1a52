"""Processes on this host: finding children and descendants, and killing trees.

Only `/proc` is read, so this also works for slots in a pid namespace of their own, whose processes have other pids on
the host. A process may exit between two reads: the result is then empty, never an error.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
_TICKS = os.sysconf("SC_CLK_TCK")
_SEARCH_SECONDS = 1.0
_PAUSE_SECONDS = 0.001


def find_children(pid: int) -> list[int]:
    """Find the processes that `pid` has started or adopted, zombies included."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(*_GONE):
                found += map(int, (task / "children").read_bytes().split())
    except _GONE:
        return found
    return found


def find_descendants(pids: Iterable[int]) -> set[int]:
    """Find `pids`, their children, the children of those, and so on."""
    found: set[int] = set()
    queue = list(pids)
    while queue:
        pid = queue.pop()
        if pid not in found:
            found.add(pid)
            queue += find_children(pid)
    return found


def is_started_after(pid: int, moment: float) -> bool:
    """Whether a process started at or after `moment` of the boot clock, with a precision of one tick (10 ms)."""
    fields = _read_stat(pid)
    return bool(fields) and int(fields[19]) >= int(moment * _TICKS)


def is_dead(pid: int) -> bool:
    """Whether a process is gone, or dead and not yet reaped."""
    fields = _read_stat(pid)
    return not fields or fields[0] in (b"Z", b"X")


def _read_stat(pid: int) -> list[bytes]:
    """Read the fields of /proc/PID/stat, from the state on; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except _GONE:
        return []


def read_boot_clock() -> float:
    """Read the clock that `is_started_after` uses."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def signal_each(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal processes that may have exited. Pid 0 means "not found" and is skipped: to the kernel it is a group."""
    for pid in pids:
        if pid > 1:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def kill_trees(find_roots: Callable[[], Iterable[int]]) -> bool:
    """Kill processes and all their descendants. All are stopped before any is killed, so that none escapes by forking.

    The time is bounded, since processes may fork faster than they are stopped. Returns whether all were found. Does not
    wait for their end. What it costs depends on their number: call it in a thread.
    """
    stopped: set[int] = set()
    deadline = time.monotonic() + _SEARCH_SECONDS
    while True:
        new = find_descendants(find_roots()) - stopped
        signal_each(new, signal.SIGSTOP)
        stopped |= new
        found_all = not new and not any(_is_running(pid) for pid in stopped)
        if found_all or time.monotonic() > deadline:
            break
        if not new:
            time.sleep(_PAUSE_SECONDS)  # on a busy machine it takes a moment until a process stops
    signal_each(stopped, signal.SIGKILL)
    return found_all


def _is_running(pid: int) -> bool:
    return _read_stat(pid)[:1] in ([b"R"], [b"S"], [b"D"])  # D: in the kernel, where it may be forking
