"""The host's side of one persistent bash in a slot.

    host ── command pipe ──> supervisor ── starts ──> inner shell: eval, report, eval, report …
         <── status pipe ───      └─ starts the next one when the inner shell ends
         <── stdout, stderr ── the output of the commands

Output and status have separate pipes. So there is no end marker that a command could forge by printing, or that could
be lost in binary output. Pipe writes are synchronous: once the status has arrived, everything that the foreground
processes wrote is in the pipes. Reading as much as the pipes hold at that moment returns all of it, even if a
background process still has them open. Output that arrives between two commands is dropped.

Guarantees: commands run one at a time, in the order of the calls. A command is killed with its children if it exceeds
its time limit, writes too much output, or if its caller is cancelled; the shell is ready again when `run` returns. What
a command does to the shell (`exit`, `exec`, `set -e`, closing descriptors, defining `eval`) costs at most the shell's
variables, never the slot.

Not guaranteed: that the exit code is correct if the agent's shell code wants to falsify it, because that code runs in
the shell that reports. `restart` ends this: every process that could write to the pipes is dead before a new shell
starts, and the name of each shell is a random token that only the shell and its supervisor know.
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
from ludus.sandbox.processes import (
    find_children,
    find_inner_pid,
    is_started_after,
    kill_trees,
    read_boot_clock,
    signal_each,
)
from ludus.sandbox.teardown import run_shielded

INLINE_BYTES = 512
"""Longer commands go through a file: bash reads a pipe byte by byte, but a file in blocks."""
FLOOD_BYTES = 64 * 2**20
"""A command that writes more than this is killed, so that `yes` cannot exhaust the host."""
_QUICK_SECONDS = 0.001
"""Output is not watched at first: most commands end within this time, and then one wake-up is enough."""
_REST_SECONDS = 0.002
"""The pause after a small read: a command that writes line by line then fills the pipe and does not wake us often."""
_SMALL_BYTES = 16_384
_KILL_PAUSES = (0.02, 0.05, 0.1, 0.2, 1.0)
"""How long to wait after each round of killing a command's children. After the last, its shell is killed too."""
_STRAY_SECONDS = 2.0
"""How long a new shell may take to start. After that, everything else in the slot is killed."""
_RESTART_SECONDS = 30.0
"""How long a new inner shell may take to start. bash itself retries a failing fork for 15 seconds."""
_STATUS_BYTES = 16_384
"""The longest valid status record."""
_READ_BYTES = 65_536
_JUNK_RECORDS = 100
"""After this many invalid status records, every process of the slot that could have written them is killed."""
_FAILED_STARTS = 5
"""After this many inner shells in a row that died at once, the slot counts as dead."""


class _Stop(Enum):
    """Why a command ended without an exit code."""

    TIME = "time"
    FLOOD = "flood"
    DEAD = "dead"


@dataclass(frozen=True)
class Pipes:
    """The host's ends of a slot's four pipes, and the slot's ends, which its first process inherits."""

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
            # Not 3 to 6: the supervisor moves the descriptors to those numbers itself.
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (command_in, status_out)]
        except OSError as error:
            for fd in opened:
                os.close(fd)
            raise SandboxError(f"the pipes of a slot cannot be made: {error}") from error
        os.close(command_in)
        os.close(status_out)
        return cls(command, status, stdout, stderr, high[0], high[1], stdout_out, stderr_out)

    def close_slot_ends(self) -> None:
        for fd in (self.slot_command, self.slot_status, self.slot_stdout, self.slot_stderr):
            os.close(fd)

    def close_host_ends(self) -> None:
        for fd in (self.command, self.status, self.stdout, self.stderr):
            os.close(fd)


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


class SlotShell:
    """Controls the bash behind `pipes`. Create it in the event loop that uses it, then await `wait_started`.

    `io` is a host folder that the slot sees too: long commands and standard input are written there. `sweep` kills the
    slot's stray processes; it is needed if the slot has no pid namespace of its own.
    """

    def __init__(self, pipes: Pipes, io: Path, home: str, *, sweep: Callable[[], None] | None = None) -> None:
        self._pipes = pipes
        self._pid = 0
        self._io = io
        self._home = self._cwd = home.encode()
        self._host_sweep = sweep
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._sequence = 0
        self._name = secrets.token_hex(8)
        """The name of the current inner shell, or of the next one while none runs."""
        self._inner = 0
        """The inner shell's pid within the slot; 0 while none runs."""
        self._junk = 0
        self._failed_starts = 0
        self._sweeping = False
        self._code = 0
        self._dead = ""
        self._closed = False
        self._outcome: asyncio.Future[int | _Stop] | None = None
        """The outcome of the running command."""
        self._ready = asyncio.Event()
        """Set while the shell is ready for a command, and when it is dead: there is nothing to wait for."""
        self._buffer = b""
        self._watching = False
        self._watch = self._loop.call_soon(int)  # the timer that starts watching the output; this one does nothing
        self._out = OutputBuffer(0)
        self._err = OutputBuffer(_READ_BYTES)  # a slot that cannot start writes the reason to stderr
        self._limit = FLOOD_BYTES
        self._boot = 0.0
        self._loop.add_reader(pipes.status, self._on_status)

    # ---- for the backend ------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return not self._dead

    @property
    def pid(self) -> int:
        """The pid of the slot's first process on the host; 0 before it has started."""
        return self._pid

    def make_arguments(self, lib: str, io: str, cgroup_fds: Sequence[int], ulimits: Sequence[str]) -> list[str]:
        """Make the arguments of `slot_scripts/supervisor.sh`.

        The supervisor must inherit the slot's ends of the pipes and `cgroup_fds`, through which it enters its groups.
        """
        channels = (str(self._pipes.slot_command), str(self._pipes.slot_status))
        return [lib, io, self._home.decode(), self._name, *channels, " ".join(map(str, cgroup_fds)), *ulimits]

    async def wait_started(self, seconds: float, find_supervisor: Callable[[], int]) -> None:
        """Wait for the first inner shell. `find_supervisor` then returns the pid of the slot's first process."""
        async with self._lock:
            await self._wait_ready(seconds, "the slot's shell did not start")
        self._pid = find_supervisor()

    async def run(self, command: bytes, *, seconds: float, keep: int) -> ExecResult:
        """Run one command in the inner shell. See `Sandbox.exec`."""
        async with self._lock:
            await self._wait_ready(_RESTART_SECONDS, "the slot's shell did not restart")
            return await self._run(command, seconds, keep)

    async def restart(self) -> None:
        """Kill every process of the slot except the supervisor, and start a new inner shell in its home."""
        async with self._lock:
            await self._wait_ready(_RESTART_SECONDS, "the slot's shell did not restart")
            await run_shielded(self._replace_shell())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._mark_dead("the slot is closed")
            self._pipes.close_host_ends()

    # ---- one command ----------------------------------------------------------------------------------------------

    async def _run(self, command: bytes, seconds: float, keep: int) -> ExecResult:
        start, self._boot = time.monotonic(), read_boot_clock()
        self._discard_output()
        self._out, self._err = OutputBuffer(keep), OutputBuffer(keep)
        self._limit = max(FLOOD_BYTES, 2 * keep)
        self._junk = 0
        spill_file = self._spill_command(command)
        running: asyncio.Future[int | _Stop] = self._loop.create_future()
        self._outcome = running
        self._ready.clear()
        self._write_record(b"@%d\0" % self._sequence if spill_file else b"%d:%b\0" % (self._sequence, command))
        self._watch = self._loop.call_later(_QUICK_SECONDS, self._watch_output)
        timer = self._loop.call_later(seconds, self._stop, _Stop.TIME)
        try:
            outcome = await running
            if isinstance(outcome, _Stop):
                await run_shielded(self._abort())
        except asyncio.CancelledError:
            with suppress(SandboxError):  # the next command will raise it: this caller is gone
                await run_shielded(self._abort())
            raise
        finally:
            timer.cancel()
            self._outcome = None
            self._unwatch_output()
            if spill_file is not None:
                spill_file.unlink(missing_ok=True)
        return self._make_result(outcome, time.monotonic() - start)

    def _spill_command(self, command: bytes) -> Path | None:
        """Write a long command to a file named by its sequence number."""
        self._sequence += 1
        if len(command) <= INLINE_BYTES:
            return None
        path = self._io / str(self._sequence)
        write_input(path, command)
        return path

    def _write_record(self, record: bytes) -> None:
        try:
            os.write(self._pipes.command, record)
        except OSError as error:
            self._mark_dead(f"the slot does not accept commands: {error}")

    def _make_result(self, outcome: "int | _Stop", seconds: float) -> ExecResult:
        timed_out = outcome is _Stop.TIME
        stderr = self._err.to_bytes()
        if outcome is _Stop.FLOOD:
            stderr += b"\n[killed: the command wrote more than %d bytes]\n" % self._limit
        return ExecResult(
            self._out.to_bytes(),
            stderr,
            124 if timed_out else 137 if isinstance(outcome, _Stop) else outcome,
            timed_out,
            self._out.truncated or self._err.truncated,
            seconds,
        )

    # ---- aborting a command ---------------------------------------------------------------------------------------

    def _stop(self, reason: _Stop) -> None:
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(reason)

    async def _abort(self) -> None:
        """Kill the running command, in the end together with its shell, and wait until a shell is ready."""
        for pause in _KILL_PAUSES:
            if not self._ready.is_set():
                self._kill_command()
            if await self._is_ready_within(pause):
                self._raise_if_dead()
                return
        self._sweeping = self._sweeping or self._is_crowded()
        inner = (self._find_inner(),)
        signal_each(inner, signal.SIGSTOP)  # so that it starts no process while its children are killed
        self._kill_command()
        signal_each(inner, signal.SIGKILL)
        if not await self._is_ready_within(_STRAY_SECONDS):
            await self._replace_shell()

    async def _replace_shell(self) -> None:
        """Kill all processes of the slot except the supervisor, and have a new shell started."""
        self._ready.clear()
        self._sweeping, self._cwd = True, self._home
        kill_trees(lambda: find_children(self._pid))
        if not self._inner:  # a process that is dead now may have read the order to start it
            self._order_shell()
        await self._wait_ready(_RESTART_SECONDS, "the slot's processes could not be ended")

    async def _is_ready_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ready.wait()
        return self._ready.is_set()

    async def _wait_ready(self, seconds: float, problem: str) -> None:
        """Wait until an inner shell is ready. If none is within `seconds`, mark the slot as dead, due to `problem`."""
        if not self._ready.is_set() and not await self._is_ready_within(seconds):
            self._mark_dead(problem)
        self._raise_if_dead()

    def _kill_command(self) -> None:
        """Kill the processes of the current command. Background processes of earlier commands stay alive."""
        inner = self._find_inner()
        kill_trees(lambda: [child for child in find_children(inner) if is_started_after(child, self._boot)])

    def _find_inner(self) -> int:
        """Return the pid of the inner shell on the host; 0 if it is gone."""
        return next((c for c in find_children(self._pid) if self._inner and find_inner_pid(c) == self._inner), 0)

    def _is_crowded(self) -> bool:
        """Whether the slot has so many stray processes that a new shell might not be able to start."""
        return len(find_children(self._pid)) > 32

    # ---- status ---------------------------------------------------------------------------------------------------

    def _on_status(self) -> None:
        try:
            data = os.read(self._pipes.status, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._mark_dead(self._describe_end())
            return
        *records, buffer = (self._buffer + data).split(b"\0")
        self._buffer = buffer[:_STATUS_BYTES]
        for record in filter(None, records):
            if not self._handle_record(record):
                self._junk += 1
        if self._junk > _JUNK_RECORDS or len(buffer) > _STATUS_BYTES:
            self._junk, self._sweeping = 0, True
            kill_trees(lambda: find_children(self._pid))

    def _handle_record(self, record: bytes) -> bool:
        """Handle a status record. Returns false if it is invalid now."""
        try:
            kind, first, second, *rest = record.split(b" ", 3)
            if kind == b"d" and self._outcome is not None and int(first) == self._sequence:
                self._cwd = b" ".join(rest)
                self._finish(int(second))
            elif kind == b"x" and first.decode() == self._name and not self._find_inner():
                self._on_inner_exit(int(second))
            elif kind == b"r" and first.decode() == self._name and not self._inner:
                self._inner = int(second)
                self._finish(self._code)
            else:
                return False
        except ValueError:
            return False
        return True

    def _on_inner_exit(self, code: int) -> None:
        """The inner shell has exited, and the command with it: have the next one started in the same folder."""
        self._failed_starts = 0 if self._inner else self._failed_starts + 1
        if self._failed_starts > _FAILED_STARTS:
            self._mark_dead("the slot's shell can no longer start")
            return
        self._sweeping = self._sweeping or not self._inner
        self._code, self._inner, self._name = code, 0, secrets.token_hex(8)
        self._ready.clear()
        self._order_shell()

    def _order_shell(self) -> None:
        """Tell the supervisor to start an inner shell. If the order arrives twice, the shell ignores the second one."""
        if self._sweeping and self._host_sweep is not None:
            self._host_sweep()
        order = b"sweep" if self._sweeping else b"go"
        # The first NUL ends a command that was being sent when the shell died.
        self._write_record(b"\0%b:%b:%b\0" % (order, self._name.encode(), self._cwd))

    def _finish(self, code: int) -> None:
        self._code, self._sweeping = code, False
        self._drain_output()
        self._ready.set()
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
        buffer = self._out if fd == self._pipes.stdout else self._err
        try:
            chunk = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        if not chunk:  # every writer is gone; the status pipe reports the end
            self._unwatch_output()
            return
        buffer.add(chunk)
        if self._out.size + self._err.size > self._limit:
            self._stop(_Stop.FLOOD)
        elif len(chunk) < _SMALL_BYTES:
            self._unwatch_output()
            self._watch = self._loop.call_later(_REST_SECONDS, self._watch_output)

    def _drain_output(self) -> None:
        for fd, buffer in ((self._pipes.stdout, self._out), (self._pipes.stderr, self._err)):
            size = _count_bytes(fd)
            while size > 0:
                chunk = os.read(fd, size)
                if not chunk:
                    break
                size -= len(chunk)
                buffer.add(chunk)

    def _discard_output(self) -> None:
        for fd in (self._pipes.stdout, self._pipes.stderr):
            size = _count_bytes(fd)
            if size:
                os.read(fd, size)

    # ---- death ----------------------------------------------------------------------------------------------------

    def _describe_end(self) -> str:
        """Describe the slot's end, with the last part of its stderr if it did not start."""
        self._drain_output()
        message = self._err.to_bytes().decode(errors="replace").strip()
        # Once commands run, stderr is their output, which does not belong in an error message.
        return "the slot ended" if self._pid or not message else f"the slot ended: {message[-500:]}"

    def _mark_dead(self, reason: str) -> None:
        if self._dead:
            return
        self._dead = reason
        self._ready.set()
        self._loop.remove_reader(self._pipes.status)
        self._unwatch_output()
        self._stop(_Stop.DEAD)

    def _raise_if_dead(self) -> None:
        if self._dead:
            raise SandboxError(self._dead)


def write_input(path: Path, data: bytes) -> None:
    """Write a new file that the slot may read, independent of this process's umask."""
    try:
        with path.open("xb", buffering=0) as file:
            os.fchmod(file.fileno(), 0o444)
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
    except OSError as error:
        raise SandboxError(f"the host cannot store the input of a command: {error}") from error


def _count_bytes(fd: int) -> int:
    """Return how many bytes a pipe holds."""
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]
