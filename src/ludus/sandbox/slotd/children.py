"""The processes that slotd has started or adopted, and work that runs in a forked process.

A forked process does what slotd itself must not do: change its user or its namespaces, or work whose length depends on
what an agent has left, such as the removal of its files. It reports over a socket, with descriptors if needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import traceback
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, NoReturn

_UNCLAIMED = 1000
"""How many exit codes of adopted processes are kept until somebody asks for them."""
_MOST_DESCRIPTORS = 8
_REPORT_BYTES = 16_384
_FAILED = b"!"
_DEFAULT_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)


class Report(NamedTuple):
    """What a forked process has sent."""

    text: bytes
    descriptors: tuple[int, ...] = ()


class Children:
    """Waits for child processes. All of them are reaped here, so no pid is reused before its exit code is known."""

    def __init__(self) -> None:
        self._exited: dict[int, asyncio.Future[int]] = {}
        self._unclaimed: OrderedDict[int, int] = OrderedDict()

    def watch(self, pid: int, *, adopted: bool = False) -> asyncio.Future[int]:
        """The exit code of a child, 128 + n after signal n. An adopted child may have ended before this call."""
        exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        code = self._unclaimed.pop(pid, None)
        if adopted and code is not None:
            exited.set_result(code)
        else:
            self._exited[pid] = exited
        return exited

    @property
    def watched(self) -> frozenset[int]:
        """The children that are known to run."""
        return frozenset(self._exited)

    def reap(self) -> None:
        """Reap processes that have ended, adopted ones included. Call it on SIGCHLD."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            exited = self._exited.pop(pid, None)
            if exited is None:
                self._unclaimed[pid] = code
                if len(self._unclaimed) > _UNCLAIMED:
                    self._unclaimed.popitem(last=False)
            elif not exited.done():
                exited.set_result(code)

    def fork(self, work: Callable[[], None]) -> tuple[int, asyncio.Future[int]]:
        """Run `work` in a forked process. Returns its pid and its exit code: 0 if `work` returned, else 125."""
        pid = os.fork()
        if pid == 0:
            run_to_exit(work)
        return pid, self.watch(pid)

    async def run(self, work: Callable[[], None]) -> bool:
        """Run `work` in a forked process and wait for its end. Returns whether it succeeded."""
        return await self.fork(work)[1] == 0

    async def ask(self, work: Callable[[socket.socket], None]) -> Report:
        """Run `work` in a forked process and return what it sends with `send_report`. Raises OSError if it fails."""
        receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with receiver:
            with sender:
                _, exited = self.fork(lambda: _send_failure(sender, lambda: work(sender)))
            receiver.setblocking(False)
            await _wait_readable(receiver)
            report = _receive_report(receiver)
            await exited  # its children are adopted when it has ended
        if not report.text or report.text.startswith(_FAILED):
            raise OSError(report.text[1:].decode(errors="replace") or "the process ended without a report")
        return report


def run_to_exit(work: Callable[[], None]) -> NoReturn:
    """Run `work` in this process, which was just forked, and exit. It must never return to its parent's code."""
    code = 125
    try:
        signal.set_wakeup_fd(-1)
        for number in _DEFAULT_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        work()
        code = 0
    except BaseException:
        with contextlib.suppress(OSError):
            os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def send_report(sender: socket.socket, text: bytes, descriptors: tuple[int, ...] = ()) -> None:
    packed = struct.pack(f"{len(descriptors)}i", *descriptors)
    sender.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)] if descriptors else [])


def _send_failure(sender: socket.socket, work: Callable[[], None]) -> None:
    try:
        work()
    except OSError as error:
        send_report(sender, _FAILED + str(error).encode(errors="replace")[:_REPORT_BYTES])
    except Exception:
        send_report(sender, _FAILED + traceback.format_exc().encode(errors="replace")[-_REPORT_BYTES:])


def _receive_report(receiver: socket.socket) -> Report:
    # CLOEXEC: programs that slotd starts must not inherit them.
    space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * struct.calcsize("i"))
    text, rights, _, _ = receiver.recvmsg(_REPORT_BYTES + 1, space, socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for _, _, data in rights:
        descriptors += struct.unpack(f"{len(data) // 4}i", data)
    return Report(text, tuple(descriptors))


async def _wait_readable(source: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(source.fileno(), lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(source.fileno())
