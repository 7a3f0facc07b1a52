"""Processes that check posted groups, so that checking uses more than one core.

    server: body ──> slot in shared memory ──> packet (slot, length) ──> checker
    checker: check_group ──> JSON into the same slot ──> packet (what the group is, or why it is refused) ──> server

The server's process keeps the whole state; checkers know nothing but the body. A body goes to a checker if one has
room, and its size is worth the way. Otherwise the server checks it itself, so nothing waits for a checker; a large one
is checked in a process of its own (`large_bodies`). If a checker dies, the bodies that it had are checked by the
server.
"""

import asyncio
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable

import msgspec
from msgspec import Struct

from ludus.rl.api.large_bodies import LARGE
from ludus.rl.api.posted_groups import BadGroup, CheckedGroup, check_group

SLOT_BYTES = 8 * 1024 * 1024
"""Of a body and the JSON that is made of it, each."""
SMALLEST = 16 * 1024
"""A shorter body is checked faster than it is handed over."""
PER_CHECKER = 3
"""How many bodies may wait for one checker or be under way."""
PACKET_BYTES = 64 * 1024
SHOWN_MESSAGE = 2000
"""A reason is cut to this many characters: it must fit into a packet."""

_TASK = struct.Struct("<II")
"""Slot and length of a body."""


class _Verdict(Struct, array_like=True):
    """A checker's answer."""

    slot: int
    length: int = 0
    """Of the JSON. It is in the slot if it fits."""
    size: int = 0
    env_id: int | None = None
    version: int | None = None
    crc: int = 0
    place: tuple[str | int, ...] = ()
    message: str = ""
    """Why it is refused; empty: it is good."""
    kind: str = ""


_decode = msgspec.msgpack.Decoder(_Verdict).decode
_encode = msgspec.msgpack.Encoder().encode


class _Checker(Struct, eq=False):
    process: subprocess.Popen[bytes]
    link: socket.socket
    waiting: dict[int, tuple[asyncio.Future[CheckedGroup], bytes]]
    """The bodies that it has, by their slots."""
    ready: bool = False
    """It has started: its first packet came."""


class CheckPool:
    """The checkers of a server. With none, every body is checked at once by the caller."""

    def __init__(self, count: int, tell: Callable[[str], None]) -> None:
        self._count = count
        self._tell = tell
        self._checkers: list[_Checker] = []
        self._free = list(range(count * PER_CHECKER))
        self._memory: mmap.mmap | None = None

    async def __aenter__(self) -> "CheckPool":
        if self._count:
            with tempfile.TemporaryFile() as file:
                file.truncate(len(self._free) * SLOT_BYTES * 2)
                self._memory = mmap.mmap(file.fileno(), 0)
                for _ in range(self._count):
                    self._start(file.fileno())
        return self

    def _start(self, memory: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "ludus.rl.api.check_pool", str(theirs.fileno()), str(memory)]
            process = subprocess.Popen(command, pass_fds=(theirs.fileno(), memory), stdin=subprocess.DEVNULL)
        ours.setblocking(False)
        checker = _Checker(process, ours, {})
        self._checkers.append(checker)
        asyncio.get_running_loop().add_reader(ours, self._read, checker)

    async def __aexit__(self, *_: object) -> None:
        for checker in tuple(self._checkers):
            self._end(checker)
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def check(self, body: bytes) -> "CheckedGroup | asyncio.Future[CheckedGroup] | None":
        """Check a group: here, or in a checker that has room. None: it is too large for either.

        Raises:
            BadGroup: it was checked here and is refused. A future raises it too.
        """
        checker = min((each for each in self._checkers if each.ready), key=_count_waiting, default=None)
        worth = SMALLEST <= len(body) <= SLOT_BYTES
        if not worth or checker is None or len(checker.waiting) >= PER_CHECKER or self._memory is None:
            return check_group(body) if len(body) < LARGE else None
        slot = self._free.pop()
        start = slot * SLOT_BYTES * 2
        self._memory[start : start + len(body)] = body
        future: asyncio.Future[CheckedGroup] = asyncio.get_running_loop().create_future()
        checker.waiting[slot] = (future, body)
        try:
            checker.link.send(_TASK.pack(slot, len(body)))
        except OSError:
            self._lose(checker)
        return future

    def _read(self, checker: _Checker) -> None:
        """Take the answers that are there."""
        while True:
            try:
                packet = checker.link.recv(PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._lose(checker)
                return
            if checker.ready:
                self._settle(checker, _decode(packet))
            checker.ready = True

    def _settle(self, checker: _Checker, verdict: _Verdict) -> None:
        future, given = checker.waiting.pop(verdict.slot)
        self._free.append(verdict.slot)
        if future.done() or self._memory is None:
            return
        if verdict.message:
            future.set_exception(BadGroup(verdict.place, verdict.message, verdict.kind))
            return
        if verdict.length > SLOT_BYTES:
            _check_here(future, given)
            return
        start = verdict.slot * SLOT_BYTES * 2 + SLOT_BYTES
        body = self._memory[start : start + verdict.length]
        future.set_result(CheckedGroup(body, verdict.size, verdict.env_id, verdict.version, verdict.crc))

    def _lose(self, checker: _Checker) -> None:
        self._tell("a process that checks groups has ended; the server checks what it had")
        self._end(checker)

    def _end(self, checker: _Checker) -> None:
        """End a checker. The server checks the bodies that it had."""
        self._checkers.remove(checker)
        asyncio.get_running_loop().remove_reader(checker.link)
        checker.link.close()
        checker.process.kill()
        checker.process.wait()
        waiting, checker.waiting = checker.waiting, {}
        for slot, (future, body) in waiting.items():
            self._free.append(slot)
            if not future.done():
                _check_here(future, body)


def _check_here(future: asyncio.Future[CheckedGroup], body: bytes) -> None:
    try:
        future.set_result(check_group(body))
    except BadGroup as error:
        future.set_exception(error)


def _count_waiting(checker: _Checker) -> int:
    return len(checker.waiting)


# ---- in a checker -------------------------------------------------------------------------------------------------


def run_checker(link: socket.socket, memory: mmap.mmap) -> None:
    """Check bodies until the server has closed the connection, which it also has when it was killed."""
    link.send(b"ready")
    while packet := link.recv(_TASK.size):
        link.send(_encode(_check_slot(memory, *_TASK.unpack(packet))))


def _check_slot(memory: mmap.mmap, slot: int, length: int) -> _Verdict:
    start = slot * SLOT_BYTES * 2
    try:
        group = check_group(memory[start : start + length])
    except BadGroup as error:
        return _Verdict(slot, place=error.place, message=error.message[:SHOWN_MESSAGE] or "refused", kind=error.kind)
    if len(group.body) <= SLOT_BYTES:
        memory[start + SLOT_BYTES : start + SLOT_BYTES + len(group.body)] = group.body
    return _Verdict(slot, len(group.body), group.size, group.env_id, group.version, group.crc)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which closes the connection
    link = socket.socket(fileno=int(sys.argv[1]))
    with mmap.mmap(int(sys.argv[2]), 0) as memory:
        os.close(int(sys.argv[2]))
        run_checker(link, memory)


if __name__ == "__main__":
    main()
