"""The host's side of one persistent bash in a slot.

    host ── command pipe ──> supervisor ── starts ──> inner shell: eval, report, eval, report …
         <── status pipe ───      └─ starts the next one when the inner shell ends
         <── stdout, stderr ── whatever the commands write

Output has pipes of its own and the end of a command is told on another, so there is no marker to find, to forge by
printing or to lose in binary output. Pipe writes are synchronous: once the status has arrived, everything that the
foreground processes wrote is in the pipes, and reading as much as they hold at that moment gives all of it, even if
a background process still has them open. Output that comes between two commands is dropped.

Guarantees: one command at a time, in order of asking; a command that passes its time limit, floods its output or whose
caller is cancelled is killed with its children, and the shell is ready again when `run` returns; whatever a command
does to the shell (`exit`, `exec`, `set -e`, closing descriptors, defining `eval`) costs at most the shell's variables,
never the slot. Not guaranteed: that shell code of the agent tells the truth about its own exit code, for it runs in the
shell that reports. That ends with `fresh`: everyone who could write to the pipes is dead before a new shell is named,
and each shell is named by a number that only it and its supervisor know.
"""

import array
import asyncio
import fcntl
import os
import secrets
import signal
import termios
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ludus.errors import SandboxError
from ludus.sandbox import ExecResult
from ludus.sandbox.processes import boot_clock, children, kill_trees, number_within, signal_each, started_after
from ludus.sandbox.teardown import to_the_end

INLINE_BYTES = 512
"""Longer commands go through a file: bash reads a pipe byte by byte, and a file in blocks."""
FLOOD_BYTES = 64 * 2**20
"""A command that writes more than this is killed, so that `yes` cannot burn the host."""
_QUICK_SECONDS = 0.001
"""Output is not watched for the first moment: most commands end within it, and one wake-up tells everything."""
_REST_SECONDS = 0.002
"""Pause after a small read: a command that writes line by line then fills the pipe instead of waking us for each."""
_SMALL_BYTES = 16_384
_KILL_PAUSES = (0.02, 0.05, 0.1, 0.2, 1.0)
"""Waits after each round of killing a command's children, before its shell is killed as well."""
_STRAY_SECONDS = 2.0
"""How long a new shell may take before everything else in the slot is killed as well."""
_RESTART_SECONDS = 30.0
"""How long a new inner shell may take. bash itself retries a failing fork for 15 seconds."""
_STATUS_BYTES = 16_384
"""The longest believable status record."""
_READ_BYTES = 65_536
_JUNK_RECORDS = 100
"""After so many status records that mean nothing, everything in the slot that could write them is killed."""
_FAILED_STARTS = 5
"""After so many inner shells in a row that died at once, the slot is given up."""


class _Stop(Enum):
    """Why a command's run ended other than with an exit code."""

    TIME = "time"
    FLOOD = "flood"
    DEAD = "dead"


@dataclass(frozen=True)
class Pipes:
    """The host's ends of a slot's four pipes, and the slot's ends to be inherited by its first process."""

    command: int
    status: int
    stdout: int
    stderr: int
    slot_command: int
    slot_status: int
    slot_stdout: int
    slot_stderr: int

    @classmethod
    def open(cls) -> "Pipes":
        opened: list[int] = []
        try:
            for _ in range(4):
                opened += os.pipe2(os.O_CLOEXEC)
            (command_in, command), (status, status_out), (stdout, stdout_out), (stderr, stderr_out) = zip(
                opened[::2], opened[1::2], strict=True
            )
            for fd in (command, status, stdout, stderr):
                os.set_blocking(fd, False)
            # Clear of the numbers 3 to 6, which the supervisor gives to them itself.
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (command_in, status_out)]
        except OSError as error:
            for fd in opened:
                os.close(fd)
            raise SandboxError(f"no pipes for a slot: {error}") from error
        os.close(command_in)
        os.close(status_out)
        return cls(command, status, stdout, stderr, high[0], high[1], stdout_out, stderr_out)

    def close_slot_ends(self) -> None:
        for fd in (self.slot_command, self.slot_status, self.slot_stdout, self.slot_stderr):
            os.close(fd)

    def close_host_ends(self) -> None:
        for fd in (self.command, self.status, self.stdout, self.stderr):
            os.close(fd)


class Kept:
    """The first and the last half of a stream, within a limit."""

    def __init__(self, limit: int) -> None:
        self._head_room = limit - limit // 2
        self._tail_room = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.size = 0
        """How much was written, kept or not."""

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

    def result(self) -> bytes:
        """What is kept, with a line in place of the part that is missing."""
        tail = b"".join(self._tail)
        if not self.truncated:
            return bytes(self._head) + tail
        dropped = self.size - self._head_room - self._tail_room
        return b"%b\n[... %d bytes left out ...]\n%b" % (self._head, dropped, tail[len(tail) - self._tail_room :])


class Shell:
    """Drives the bash behind `pipes`. Create it in the event loop that uses it, then await `started`.

    `io` is a host folder that the slot sees as well: long commands and standard input are laid there. `sweep`, where
    the slot has no pid namespace of its own, kills its stray processes.
    """

    def __init__(self, pipes: Pipes, io: Path, home: str, *, sweep: Callable[[], None] | None = None) -> None:
        self._pipes = pipes
        self._pid = 0
        self._io = io
        self._home = self._cwd = home.encode()
        self._sweep_from_host = sweep
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._sequence = 0
        self._name = secrets.token_hex(8)
        """Of the current inner shell, or of the one that is to start."""
        self._inner = 0
        """The inner shell's process number within the slot; 0 while there is none."""
        self._junk = 0
        self._failed_starts = 0
        self._sweeping = False
        self._code = 0
        self._dead = ""
        self._closed = False
        self._outcome: asyncio.Future[int | _Stop] | None = None
        """How the running command ends, one way or another."""
        self._rest = asyncio.Event()
        """Set while the shell is ready, and when it is dead: it will not change by itself."""
        self._buffer = b""
        self._watching = False
        self._watch = self._loop.call_soon(int)  # the timer that will watch the output again; none yet
        self._out = Kept(0)
        self._err = Kept(_READ_BYTES)  # a slot that cannot start says why on stderr
        self._limit = FLOOD_BYTES
        self._boot = 0.0
        self._loop.add_reader(pipes.status, self._on_status)

    # ---- for the backend ------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return not self._dead

    @property
    def pid(self) -> int:
        """The slot's first process, as the host numbers it; 0 before it has started."""
        return self._pid

    def supervisor_arguments(self, lib: str, io: str, doors: Sequence[int], ulimits: Sequence[str]) -> list[str]:
        """The arguments of `slot_scripts/supervisor.sh`. It must inherit the slot's ends of the pipes, and the doors."""
        channels = (str(self._pipes.slot_command), str(self._pipes.slot_status))
        return [lib, io, self._home.decode(), self._name, *channels, " ".join(map(str, doors)), *ulimits]

    async def started(self, seconds: float, supervisor: Callable[[], int]) -> None:
        """Wait for the first inner shell; `supervisor` then tells how the host numbers the slot's first process."""
        async with self._lock:
            await self._back(seconds, "the slot's shell did not start")
        self._pid = supervisor()

    async def run(self, command: bytes, *, seconds: float, keep: int) -> ExecResult:
        """Run one command in the inner shell; see `Sandbox.exec`."""
        async with self._lock:
            await self._back(_RESTART_SECONDS, "the slot's shell did not come back")
            return await self._run(command, seconds, keep)

    async def fresh(self) -> None:
        """Kill every process of the slot but the supervisor, and start a new inner shell in its home."""
        async with self._lock:
            await self._back(_RESTART_SECONDS, "the slot's shell did not come back")
            await to_the_end(self._restart())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._die("the slot is closed")
            self._pipes.close_host_ends()

    # ---- one command ----------------------------------------------------------------------------------------------

    async def _run(self, command: bytes, seconds: float, keep: int) -> ExecResult:
        started, self._boot = time.monotonic(), boot_clock()
        self._discard_output()
        self._out, self._err = Kept(keep), Kept(keep)
        self._limit = max(FLOOD_BYTES, 2 * keep)
        self._junk = 0
        spilled = self._spill(command)
        running: asyncio.Future[int | _Stop] = self._loop.create_future()
        self._outcome = running
        self._rest.clear()
        self._write(b"@%d\0" % self._sequence if spilled else b"%d:%b\0" % (self._sequence, command))
        self._watch = self._loop.call_later(_QUICK_SECONDS, self._watch_output)
        expire = self._loop.call_later(seconds, self._stop, _Stop.TIME)
        try:
            outcome = await running
            if isinstance(outcome, _Stop):
                await to_the_end(self._abort())
        except asyncio.CancelledError:
            with suppress(SandboxError):  # found by the next command; this caller has gone
                await to_the_end(self._abort())
            raise
        finally:
            expire.cancel()
            self._outcome = None
            self._unwatch_output()
            if spilled is not None:
                spilled.unlink(missing_ok=True)
        return self._result(outcome, time.monotonic() - started)

    def _spill(self, command: bytes) -> Path | None:
        """Lay a long command into a file, to be named by its number."""
        self._sequence += 1
        if len(command) <= INLINE_BYTES:
            return None
        path = self._io / str(self._sequence)
        lay_down(path, command)
        return path

    def _write(self, record: bytes) -> None:
        try:
            os.write(self._pipes.command, record)
        except OSError as error:
            self._die(f"the slot takes no commands: {error}")

    def _result(self, outcome: "int | _Stop", seconds: float) -> ExecResult:
        timed_out = outcome is _Stop.TIME
        stderr = self._err.result()
        if outcome is _Stop.FLOOD:
            stderr += b"\n[killed: the command wrote more than %d bytes]\n" % self._limit
        return ExecResult(
            self._out.result(),
            stderr,
            124 if timed_out else 137 if isinstance(outcome, _Stop) else outcome,
            timed_out,
            self._out.truncated or self._err.truncated,
            seconds,
        )

    # ---- ending what will not end ---------------------------------------------------------------------------------

    def _stop(self, why: _Stop) -> None:
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(why)

    async def _abort(self) -> None:
        """Kill the running command, at last together with its shell, and wait until the shell is ready."""
        for pause in _KILL_PAUSES:
            if not self._rest.is_set():
                self._kill_command()
            if await self._rests_within(pause):
                self._raise_if_dead()
                return
        self._sweeping = self._sweeping or self._crowded()
        inner = (self._inner_on_host(),)
        signal_each(inner, signal.SIGSTOP)  # so that it starts nothing while its children are killed
        self._kill_command()
        signal_each(inner, signal.SIGKILL)
        if not await self._rests_within(_STRAY_SECONDS):
            await self._restart()

    async def _restart(self) -> None:
        """Kill everyone in the slot but the supervisor, and have a new shell started."""
        self._rest.clear()
        self._sweeping, self._cwd = True, self._home
        kill_trees(lambda: children(self._pid))
        if not self._inner:  # the order to start it may have been taken by someone who is dead now
            self._order_shell()
        await self._back(_RESTART_SECONDS, "the slot's processes could not be ended")

    async def _rests_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rest.wait()
        return self._rest.is_set()

    async def _back(self, seconds: float, otherwise: str) -> None:
        """Wait until an inner shell is ready, or declare the slot dead."""
        if not self._rest.is_set() and not await self._rests_within(seconds):
            self._die(otherwise)
        self._raise_if_dead()

    def _kill_command(self) -> None:
        """Kill what the current command started: what earlier ones left in the background stays."""
        inner = self._inner_on_host()
        kill_trees(lambda: [child for child in children(inner) if started_after(child, self._boot)])

    def _inner_on_host(self) -> int:
        """The inner shell as the host numbers it; 0 if it is gone."""
        return next((c for c in children(self._pid) if self._inner and number_within(c) == self._inner), 0)

    def _crowded(self) -> bool:
        """So many strays that a new shell might find no room."""
        return len(children(self._pid)) > 32

    # ---- status ---------------------------------------------------------------------------------------------------

    def _on_status(self) -> None:
        try:
            data = os.read(self._pipes.status, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._die(self._last_words())
            return
        *records, buffer = (self._buffer + data).split(b"\0")
        self._buffer = buffer[:_STATUS_BYTES]
        for record in filter(None, records):
            if not self._take(record):
                self._junk += 1
        if self._junk > _JUNK_RECORDS or len(buffer) > _STATUS_BYTES:
            self._junk, self._sweeping = 0, True
            kill_trees(lambda: children(self._pid))

    def _take(self, record: bytes) -> bool:
        """Act on a status record; false if it means nothing now."""
        try:
            kind, first, second, *rest = record.split(b" ", 3)
            if kind == b"d" and self._outcome is not None and int(first) == self._sequence:
                self._cwd = b" ".join(rest)
                self._finish(int(second))
            elif kind == b"x" and first.decode() == self._name and not self._inner_on_host():
                self._inner_ended(int(second))
            elif kind == b"r" and first.decode() == self._name and not self._inner:
                self._inner = int(second)
                self._finish(self._code)
            else:
                return False
        except ValueError:
            return False
        return True

    def _inner_ended(self, code: int) -> None:
        """The shell is gone, and with it the command: have the next one started where the last command ended."""
        self._failed_starts = 0 if self._inner else self._failed_starts + 1
        if self._failed_starts > _FAILED_STARTS:
            self._die("the slot's shell cannot start any more")
            return
        self._sweeping = self._sweeping or not self._inner
        self._code, self._inner, self._name = code, 0, secrets.token_hex(8)
        self._rest.clear()
        self._order_shell()

    def _order_shell(self) -> None:
        """Have the supervisor start an inner shell, which ignores the order if it comes twice."""
        if self._sweeping and self._sweep_from_host is not None:
            self._sweep_from_host()
        order = b"sweep" if self._sweeping else b"go"
        # The first NUL ends a command that was on its way when the shell died.
        self._write(b"\0%b:%b:%b\0" % (order, self._name.encode(), self._cwd))

    def _finish(self, code: int) -> None:
        self._code, self._sweeping = code, False
        self._drain_output()
        self._rest.set()
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(code)

    # ---- output ---------------------------------------------------------------------------------------------------

    def _watch_output(self) -> None:
        self._loop.add_reader(self._pipes.stdout, self._on_output, self._pipes.stdout)
        self._loop.add_reader(self._pipes.stderr, self._on_output, self._pipes.stderr)
        self._watching = True

    def _unwatch_output(self) -> None:
        self._watch.cancel()
        if self._watching:
            self._watching = False
            self._loop.remove_reader(self._pipes.stdout)
            self._loop.remove_reader(self._pipes.stderr)

    def _on_output(self, fd: int) -> None:
        kept = self._out if fd == self._pipes.stdout else self._err
        try:
            chunk = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        if not chunk:  # every writer is gone; the status pipe tells the rest
            self._unwatch_output()
            return
        kept.add(chunk)
        if self._out.size + self._err.size > self._limit:
            self._stop(_Stop.FLOOD)
        elif len(chunk) < _SMALL_BYTES:
            self._unwatch_output()
            self._watch = self._loop.call_later(_REST_SECONDS, self._watch_output)

    def _drain_output(self) -> None:
        for fd, kept in ((self._pipes.stdout, self._out), (self._pipes.stderr, self._err)):
            held = _held(fd)
            while held > 0:
                chunk = os.read(fd, held)
                if not chunk:
                    break
                held -= len(chunk)
                kept.add(chunk)

    def _discard_output(self) -> None:
        for fd in (self._pipes.stdout, self._pipes.stderr):
            held = _held(fd)
            if held:
                os.read(fd, held)

    # ---- death ----------------------------------------------------------------------------------------------------

    def _last_words(self) -> str:
        """What the slot wrote before it died."""
        self._drain_output()
        words = self._err.result().decode(errors="replace").strip()
        # Once commands run, what is on stderr is theirs, and an error is no place for it.
        return "the slot ended" if self._pid or not words else f"the slot ended: {words[-500:]}"

    def _die(self, reason: str) -> None:
        if self._dead:
            return
        self._dead = reason
        self._rest.set()
        self._loop.remove_reader(self._pipes.status)
        self._unwatch_output()
        self._stop(_Stop.DEAD)

    def _raise_if_dead(self) -> None:
        if self._dead:
            raise SandboxError(self._dead)


def lay_down(path: Path, data: bytes) -> None:
    """Write a new file that the slot may read, whatever this process's umask is."""
    try:
        with path.open("xb", buffering=0) as file:
            os.fchmod(file.fileno(), 0o444)
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
    except OSError as error:
        raise SandboxError(f"input for the slot cannot be written on the host: {error}") from error


def _held(fd: int) -> int:
    """How many bytes a pipe holds."""
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]
