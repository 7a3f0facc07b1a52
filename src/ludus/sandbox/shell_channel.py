"""The driver's side of one shell: its four pipes, and the command that runs in it.

    driver ── command pipe ──> shell: eval, report, eval, report …
           <── status pipe ───
           <── stdout, stderr ── the output of the commands

Output and status have separate pipes. So there is no end marker that a command could forge by printing, or that could
be lost in binary output. Pipe writes are synchronous: once the status has arrived, everything that the foreground
processes wrote is in the pipes. Reading as much as the pipes hold at that moment returns all of it, even if a
background process still has them open. Output that arrives between two commands is dropped.

A channel serves one shell and is closed with it. Code of the agent in that shell can reach the shell's ends: it can
answer in the shell's place, fill the pipes, or make them non-blocking. That costs this shell and its channel, no more:
every wrong, missing or excessive record ends in `broken`, and the caller then replaces the shell.
"""

import array
import asyncio
import fcntl
import os
import termios
from collections import deque
from contextlib import suppress
from enum import Enum

from ludus.errors import SandboxError
from ludus.sandbox.shell_starter import ShellEnds

FLOOD_BYTES = 64 * 2**20
"""A command that writes more than this is killed, so that `yes` cannot exhaust the host."""
_QUICK_SECONDS = 0.001
"""Output is not watched at first: most commands end within this time, and then one wake-up is enough."""
_REST_SECONDS = 0.002
"""The pause after a small read: a command that writes line by line then fills the pipe and does not wake us often."""
_SMALL_BYTES = 16_384
_READ_BYTES = 65_536
_STATUS_BYTES = 32_768
"""What a shell may write to its status pipe for one command. A valid record is shorter than 4,200 characters."""


_EXIT_SECONDS = 1.0
"""How long a shell whose status pipe was closed may take to exit."""


class Stop(Enum):
    """Why a command ended without an exit code."""

    TIME = "time"
    FLOOD = "flood"
    BROKEN = "broken"
    """The shell does not read commands, or does not report."""
    DEAD = "dead"
    """The slot is gone."""


class OutputBuffer:
    """Keeps the first and the last part of a stream, up to a limit."""

    def __init__(self, limit: int) -> None:
        self._head_room = limit - limit // 2
        self._tail_room = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.size = 0
        """How many bytes were added, kept or not."""

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        room = self._head_room - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._tail.append(chunk)
            self._tail_size += len(chunk)
            while self._tail_size - len(self._tail[0]) >= self._tail_room:
                self._tail_size -= len(self._tail.popleft())

    @property
    def truncated(self) -> bool:
        return self.size > self._head_room + self._tail_room

    def to_bytes(self) -> bytes:
        """Return what is kept, with a line in place of the missing part."""
        tail = b"".join(self._tail)
        if not self.truncated:
            return bytes(self._head) + tail
        dropped = self.size - self._head_room - self._tail_room
        return b"%b\n[... %d bytes left out ...]\n%b" % (self._head, dropped, tail[len(tail) - self._tail_room :])


class ShellChannel:
    """The driver's ends of the pipes of one shell. Create it with `open`, in the event loop that uses it."""

    def __init__(self, command: int, status: int, stdout: int, stderr: int) -> None:
        self._command, self._status, self._stdout, self._stderr = command, status, stdout, stderr
        self._loop = asyncio.get_running_loop()
        self._expected = b"r"
        """How the record begins that ends what the shell does now."""
        self._outcome: asyncio.Future[int | Stop] = self._loop.create_future()
        self._idle = asyncio.Event()
        """Set while the shell waits for a command, and when it has exited."""
        self._buffer = b""
        self._received = 0
        self._reading = True
        self._watching = False
        self._watch = self._loop.call_soon(int)  # the timer that starts watching the output; this one does nothing
        self.limit = FLOOD_BYTES
        self.folder = b""
        """The shell's folder after its last command; empty if it has reported none."""
        self.broken = False
        """The shell cannot be used any more."""
        self._closed = False
        self.out, self.err = OutputBuffer(0), OutputBuffer(_READ_BYTES)  # a shell that cannot start says why on stderr
        self._loop.add_reader(status, self._on_status)

    @classmethod
    def open(cls) -> "tuple[ShellChannel, ShellEnds]":
        """Make the pipes. Returns the channel and the slot's ends, which the caller closes."""
        opened: list[int] = []
        try:
            for _ in range(4):
                opened += os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            for fd in opened:
                os.close(fd)
            raise SandboxError(f"the pipes of a shell cannot be made: {error}") from error
        slot_command, command, status, slot_status, stdout, slot_stdout, stderr, slot_stderr = opened
        for fd in (command, status, stdout, stderr):
            os.set_blocking(fd, False)
        return cls(command, status, stdout, stderr), ShellEnds(slot_command, slot_status, slot_stdout, slot_stderr)

    @property
    def idle(self) -> bool:
        return self._idle.is_set()

    async def wait_outcome(self) -> "int | Stop":
        """Wait for the start of the shell, or for the end of the command."""
        return await self._outcome

    async def is_idle_within(self, seconds: float) -> bool:
        """Wait until the shell has ended its command or has exited. Returns whether it has."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        return self._idle.is_set()

    def send(self, sequence: int, record: bytes, keep: int) -> bool:
        """Send a command, of which `wait_outcome` then waits for the end. Returns false if the shell cannot read it:
        it has certainly not run then."""
        self._discard_output()
        self.out, self.err = OutputBuffer(keep), OutputBuffer(keep)
        self.limit = max(FLOOD_BYTES, 2 * keep)
        self._received = 0
        self._expected = b"d %d " % sequence
        self._outcome = self._loop.create_future()
        self._idle.clear()
        try:
            written = os.write(self._command, record)
        except BrokenPipeError:
            self._break()
            return False
        except OSError:  # the pipe is full of commands that nobody reads
            written = 0
        if written != len(record):
            self._break()
        self._watch = self._loop.call_later(_QUICK_SECONDS, self._watch_output)
        return True

    def stop(self, reason: Stop) -> None:
        """End the wait for the outcome. The command itself is not affected."""
        if not self._outcome.done():
            self._outcome.set_result(reason)

    def on_exit(self, code: int) -> None:
        """Take note that the shell has exited. If a command was running, the shell's code is the command's."""
        if self._closed:
            return
        if self._reading:
            self._on_status()  # it may have reported the end of its command before
        self.broken = True
        self._finish(code)

    def close(self) -> None:
        """Close the driver's ends. Processes that hold the other ends can reach nobody any more."""
        if not self._closed:
            self._closed = self.broken = True
            self._stop_reading()
            self.unwatch_output()
            for fd in (self._command, self._status, self._stdout, self._stderr):
                os.close(fd)
            self._idle.set()
            self.stop(Stop.DEAD)

    # ---- status ---------------------------------------------------------------------------------------------------

    def _on_status(self) -> None:
        try:
            data = os.read(self._status, _READ_BYTES)
        except BlockingIOError:
            return
        self._received += len(data)
        *records, self._buffer = (self._buffer + data).split(b"\0")
        for record in records:
            self._handle_record(record)
        if not data:  # the shell has exited, and its code is about to come; or it has closed its end
            self.broken = True
            self._stop_reading()
            self._loop.call_later(_EXIT_SECONDS, self.stop, Stop.BROKEN)
        elif self._received > _STATUS_BYTES:
            self._break()

    def _handle_record(self, record: bytes) -> None:
        """Handle a status record. Any other than the expected one is ignored; `_received` limits how many there are."""
        if not self._expected or not record.startswith(self._expected):
            return
        code, _, folder = record[len(self._expected) :].partition(b" ")
        with suppress(ValueError):
            number = int(code or b"0")
            self._expected, self.folder = b"", folder or self.folder
            self._finish(number)

    def _finish(self, code: int) -> None:
        self._drain_output()
        self._idle.set()
        if not self._outcome.done():
            self._outcome.set_result(code)

    def _break(self) -> None:
        """The shell does not read, or has reported nonsense."""
        self.broken = True
        self._stop_reading()
        self.stop(Stop.BROKEN)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._status)

    # ---- output ---------------------------------------------------------------------------------------------------

    def _watch_output(self) -> None:
        self._loop.add_reader(self._stdout, self._on_output, self._stdout)
        self._loop.add_reader(self._stderr, self._on_output, self._stderr)
        self._watching = True

    def unwatch_output(self) -> None:
        self._watch.cancel()
        if self._watching:
            self._watching = False
            self._loop.remove_reader(self._stdout)
            self._loop.remove_reader(self._stderr)

    def _on_output(self, fd: int) -> None:
        buffer = self.out if fd == self._stdout else self.err
        try:
            chunk = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        if not chunk:  # every writer is gone; the exit of the shell is reported otherwise
            self.unwatch_output()
            return
        buffer.add(chunk)
        if self.out.size + self.err.size > self.limit:
            self.stop(Stop.FLOOD)
        elif len(chunk) < _SMALL_BYTES:
            self.unwatch_output()
            self._watch = self._loop.call_later(_REST_SECONDS, self._watch_output)

    def _drain_output(self) -> None:
        for fd, buffer in ((self._stdout, self.out), (self._stderr, self.err)):
            size = _count_bytes(fd)
            while size > 0:
                chunk = _read_available(fd, size)
                if not chunk:
                    break
                size -= len(chunk)
                buffer.add(chunk)

    def _discard_output(self) -> None:
        for fd in (self._stdout, self._stderr):
            size = _count_bytes(fd)
            if size:
                _read_available(fd, size)


def _count_bytes(fd: int) -> int:
    """Return how many bytes a pipe holds."""
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]


def _read_available(fd: int, size: int) -> bytes:
    try:
        return os.read(fd, size)
    except BlockingIOError:
        return b""
