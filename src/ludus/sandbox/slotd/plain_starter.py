"""Starts and ends the processes of one slot without namespaces: the levels `user` and `none`.

`user`   Every process of the slot has the slot's user id, and nothing else has it. They end by one `kill(-1)` of a
         process with that effective user: the kernel signals all of them in one step, and a fork that is under way
         fails. They cannot signal that process, because its real user is another one. Then none of them can fork, and
         /proc is read until none is left.
`none`   The slot's processes have slotd's user. They are the descendants of its shells, those that carry its mark in
         their environment, and what slotd has adopted without the mark of another slot. They are killed until none is
         left. A process that wears the mark of another slot escapes: this level isolates nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable

from ludus.errors import SandboxError, SlotEvidence
from ludus.sandbox import syscalls
from ludus.sandbox.processes import find_children, find_descendants, is_dead, signal_each
from ludus.sandbox.shell_starter import ShellEnds, ShellProcess
from ludus.sandbox.slotd import isolation, shell_program
from ludus.sandbox.slotd.children import Children, run_to_exit
from ludus.sandbox.slotd.shell_program import ShellProgram

MARK = "LUDUS_SLOT"
"""The environment variable that marks a slot's processes, at level `none`."""
END_SECONDS = 30.0
_PAUSE_SECONDS = 0.005


class PlainStarter:
    """The processes of one slot."""

    def __init__(
        self,
        libc: syscalls.Libc | None,
        children: Children,
        program: ShellProgram,
        *,
        user: int | None,
        mark: str,
        other_marks: Callable[[], Iterable[str]],
    ) -> None:
        """`user`: the slot's own user id; None at level `none`. `mark`: the slot's value of `MARK`. `other_marks`:
        those of the other slots."""
        self._libc = libc
        self._children = children
        self._program = program
        self._user = user
        self._mark = mark
        self._other_marks = other_marks
        self._shells: set[int] = set()

    @property
    def network_socket(self) -> None:
        return None

    async def open(self) -> None:
        pass

    async def start_shell(self, ends: ShellEnds, folder: bytes) -> ShellProcess:
        try:
            return await self.run_program(self._program.make_arguments(folder), ends)
        except OSError as error:
            raise SandboxError(f"no shell can be started in the slot: {error}") from error

    async def run_program(self, arguments: list[bytes], ends: ShellEnds) -> ShellProcess:
        pid = os.fork()
        if pid == 0:
            run_to_exit(lambda: shell_program.become_program(self._program, arguments, ends, self._confine))
        exited = self._children.watch(pid)
        self._shells.add(pid)
        exited.add_done_callback(lambda _: self._shells.discard(pid))
        return ShellProcess(pid, exited)

    async def end_processes(self) -> None:
        until = time.monotonic() + END_SECONDS
        while await self._kill():
            if time.monotonic() > until:
                raise SandboxError(
                    f"the slot's processes did not end within {END_SECONDS:g} s",
                    evidence=SlotEvidence(inside="its processes do not die"),
                )
            await asyncio.sleep(_PAUSE_SECONDS)

    async def close(self) -> None:
        with contextlib.suppress(SandboxError):
            await self.end_processes()

    async def _kill(self) -> bool:
        """Kill what there is of the slot. Returns whether something was left afterwards."""
        loop = asyncio.get_running_loop()
        if self._user is None:
            shells, watched, others = tuple(self._shells), self._children.watched, frozenset(self._other_marks())
            return await loop.run_in_executor(None, kill_marked, self._mark, shells, watched, others)
        user, stranger = self._user, isolation.sample_user()
        await self._children.run(lambda: kill_as_user(user, stranger))
        return await loop.run_in_executor(None, has_processes, user)

    # ---- in forked processes --------------------------------------------------------------------------------------

    def _confine(self) -> None:
        shell_program.raise_oom_score()
        if self._user is not None:
            syscalls.change_user(self._user)
        if self._libc is not None:
            self._libc.die_with_parent()
            if self._user is not None:
                self._libc.forbid_new_privileges()
                shell_program.install_filter(self._libc)


def kill_as_user(user: int, stranger: int) -> None:
    """Kill all processes of a user. `stranger`: a user id without processes."""
    os.setgroups([])
    os.setresuid(stranger, user, stranger)
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def has_processes(user: int) -> bool:
    """Whether a process of the user is alive. Its folder in /proc does not tell: root owns that of some processes."""
    for pid in _list_pids():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
            fields = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
            users = fields.get(b"Uid", b"").split()
            if b"%d" % user in users and fields.get(b"State", b"").split()[:1] not in ([b"Z"], [b"X"]):
                return True
    return False


def kill_marked(mark: str, shells: Iterable[int], watched: frozenset[int], other_marks: frozenset[str]) -> bool:
    """Stop, then kill the processes of a slot without a user of its own. Returns whether there were any."""
    own = f"{MARK}={mark}".encode()
    others = {f"{MARK}={other}".encode() for other in other_marks}
    adopted = [pid for pid in find_children(os.getpid()) if pid not in watched and not _read_environment(pid) & others]
    marked = [pid for pid in _list_pids() if own in _read_environment(pid)]
    found = {pid for pid in find_descendants([*shells, *adopted, *marked]) if pid != os.getpid() and not is_dead(pid)}
    signal_each(found, signal.SIGSTOP)  # first all, so that few escape by forking; the next round finds those
    signal_each(found, signal.SIGKILL)
    return bool(found)


def _read_environment(pid: int) -> set[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(file.read().split(b"\0"))
    except OSError:
        return set()


def _list_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
