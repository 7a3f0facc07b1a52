"""The program of a slot's shell, what starts it, and the last steps of a process that becomes it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import socket
from collections.abc import Callable
from typing import NamedTuple, NoReturn, Protocol

from ludus.sandbox import seccomp, syscalls
from ludus.sandbox.shell_starter import SHELL_FDS, ShellEnds, ShellProcess, ShellStarter

_HIGH_FD = 20
_AGENT_OOM_SCORE = "1000"
"""The kernel ends processes of agents first when memory runs out, and slotd last."""
_LOWEST_OOM_SCORES = ("-999", "0")
"""The first one needs CAP_SYS_RESOURCE."""


class ShellProgram(NamedTuple):
    """What a slot's shells run, with paths as the slot sees them."""

    bash: str
    inner: str
    """`slot_scripts/inner.sh` on one line."""
    io: str
    home: str
    """The folder in which a shell starts unless another is asked for."""
    environment: dict[str, str]
    limits: tuple[tuple[int, int], ...]
    """Resource limits and their values."""

    def make_arguments(self, folder: bytes) -> list[bytes]:
        """The arguments of bash for a shell in that folder."""
        words = ("bash", "--norc", "--noprofile", "-c", self.inner, "bash", self.io)
        return [*map(os.fsencode, words), folder, os.fsencode(self.home)]


class SlotStarter(ShellStarter, Protocol):
    """Starts and ends the processes of one slot."""

    @property
    def network_socket(self) -> socket.socket | None:
        """A new socket in the slot's network, not bound and not connected; None if it has no network of its own."""
        ...

    async def open(self) -> None:
        """Make what the slot's processes need. Raises OSError if that is not allowed."""
        ...

    async def run_program(self, arguments: list[bytes], ends: ShellEnds) -> ShellProcess:
        """Run bash in the slot. Raises OSError."""
        ...

    async def close(self) -> None:
        """End all processes and free what `open` has made."""
        ...


def become_program(
    program: ShellProgram, arguments: list[bytes], ends: ShellEnds, confine: Callable[[], None]
) -> NoReturn:
    """Turn this forked process into a slot's program. `confine` drops its privileges.

    If that fails, the reason is on the program's stderr, and the process exits with code 125.
    """
    os.setsid()
    os.umask(0o022)
    _place_descriptors(ends)
    try:
        confine()
        for kind, value in program.limits:
            resource.setrlimit(kind, (value, value))
        os.execve(program.bash, arguments, program.environment)
    except OSError as error:
        os.write(SHELL_FDS.stderr, f"{error}\n".encode(errors="replace"))
    finally:
        os._exit(125)


def _place_descriptors(ends: ShellEnds) -> None:
    """Put the pipes where `SHELL_FDS` says, and /dev/null on 0, 1 and 2. All other descriptors close on exec."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD) for fd in ends]
    null = fcntl.fcntl(os.open(os.devnull, os.O_RDWR), fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
    for target, fd in enumerate((null, null, null, *high)):  # 3 to 6 are SHELL_FDS
        os.dup2(fd, target)


def raise_oom_score() -> None:
    """Have the kernel end this process before others. Do this before a change of user."""
    with contextlib.suppress(OSError):
        syscalls.write_proc_file("/proc/self/oom_score_adj", _AGENT_OOM_SCORE)


def lower_oom_score() -> None:
    """Have the kernel end this process as late as it lets us choose."""
    for score in _LOWEST_OOM_SCORES:
        try:
            syscalls.write_proc_file("/proc/self/oom_score_adj", score)
        except OSError:
            continue
        return


def install_filter(libc: syscalls.Libc) -> None:
    """Install the system-call filter. A kernel without filters is left without one."""
    program = seccomp.build_filter()
    if program:
        with contextlib.suppress(OSError):
            libc.filter_calls(program)
