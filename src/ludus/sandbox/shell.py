"""The persistent bash of a slot, as the driver uses it.

Guarantees: commands run one at a time, in the order of the calls. A command is killed with its children if it exceeds
its time limit, writes too much output, or if its caller is cancelled; when `run` returns, nothing of it is running, and
nothing that follows in its line has been started. A line of several commands (`sleep 40; touch x`) is therefore killed
together with its shell.
What a command does to the shell (`exit`, `exec`, `set -e`, closing descriptors, defining `eval`, taking over its pipes)
costs at most the shell's variables, never the slot: the next command gets a new shell with new pipes.

Not guaranteed: that the exit code is correct if the agent's shell code wants to falsify it, because that code runs in
the shell that reports. `restart` ends this. It has every process of the slot ended from outside, closes the pipes that
they could reach, and starts a new shell with new ones. No order to a process of the slot is involved.

Killing the processes of one command is a matter of finding them. If that takes too long, because they fork faster than
they are found or do not die, all processes of the slot are ended as in `restart`.
"""

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ludus.errors import SandboxError, SlotEvidence
from ludus.sandbox import ExecResult
from ludus.sandbox.processes import find_children, is_started_after, kill_trees, read_boot_clock, signal_each
from ludus.sandbox.shell_channel import ShellChannel, Stop
from ludus.sandbox.shell_starter import ShellProcess, ShellStarter
from ludus.sandbox.teardown import run_shielded

SUBSHELL = b"( :\n"
"""How a command begins that is a subshell as a whole. What an agent writes does not begin like that."""
_SEPARATORS = re.compile(rb"[;&|\n`{}()]")
INLINE_BYTES = 512
"""Longer commands go through a file: bash reads a pipe byte by byte, but a file in blocks."""
_KILL_PAUSES = (0.02, 0.05, 0.1, 0.2, 1.0)
"""How long to wait after each round of killing a command's children. After the last, its shell is killed too."""
_SHELL_SECONDS = 10.0
"""How long a new shell may take to start, and a killed one to exit. After that, all processes of the slot are ended."""
_START_SECONDS = 30.0
"""How long a shell may take to start in a slot without other processes. After that, the slot is dead."""


class SlotShell:
    """Runs commands in one slot. `starter` starts and ends its processes.

    `io` is a host folder that the slot sees too: long commands are written there. `home` is where shells start.
    """

    def __init__(self, starter: ShellStarter, io: Path, home: str) -> None:
        self._starter = starter
        self._io = io
        self._home = self._folder = home.encode()
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._sequence = 0
        self._boot = 0.0
        """When the current command started, by the boot clock."""
        self._is_alone = True
        """Whether nothing follows the current command in its line."""
        self._channel: ShellChannel | None = None
        self._process: ShellProcess | None = None
        self._death: SandboxError | None = None

    @property
    def alive(self) -> bool:
        return self._death is None

    async def start(self) -> None:
        """Start the first shell, so that the first command does not wait for it."""
        async with self._lock:
            self._raise_if_dead()
            await run_shielded(self._start_shell())

    async def run(self, command: bytes, *, seconds: float, keep: int) -> ExecResult:
        """Run one command. See `Sandbox.exec`."""
        async with self._lock:
            self._raise_if_dead()
            return await self._run(command, seconds, keep)

    async def restart(self) -> None:
        """End every process of the slot, and start a new shell in its home."""
        async with self._lock:
            self._raise_if_dead()
            await run_shielded(self._restart())

    def fail(self, error: SandboxError) -> None:
        """Mark the slot as dead. A running command, and every later one, raises `error`."""
        if self._death is None:
            self._death = error
            self._drop_channel()

    def close(self) -> None:
        self.fail(SandboxError("the slot is closed", evidence=SlotEvidence(outside="the slot was closed")))

    # ---- one command ----------------------------------------------------------------------------------------------

    async def _run(self, command: bytes, seconds: float, keep: int) -> ExecResult:
        start, self._boot = time.monotonic(), read_boot_clock()
        self._is_alone = is_alone(command)
        self._sequence += 1
        spill_file = self._spill_command(command)
        record = b"@%d\0" % self._sequence if spill_file else b"%d:%b\0" % (self._sequence, command)
        try:
            channel = await self._send_record(record, keep)
            timer = self._loop.call_later(seconds, channel.stop, Stop.TIME)
            try:
                outcome = await channel.wait_outcome()
                if isinstance(outcome, Stop):
                    await run_shielded(self._abort(channel))
            except asyncio.CancelledError:
                with suppress(SandboxError):  # the next command will raise it: this caller is gone
                    await run_shielded(self._abort(channel))
                raise
            finally:
                timer.cancel()
                channel.unwatch_output()
        finally:
            if spill_file is not None:
                spill_file.unlink(missing_ok=True)
        self._folder = channel.folder or self._folder
        return _make_result(channel, outcome, time.monotonic() - start)

    def _spill_command(self, command: bytes) -> Path | None:
        """Write a long command to a file named by its sequence number."""
        if len(command) <= INLINE_BYTES:
            return None
        path = self._io / str(self._sequence)
        write_input(path, command)
        return path

    async def _send_record(self, record: bytes, keep: int) -> ShellChannel:
        """Send a command to the shell, or to a new one if it is gone."""
        channel = self._channel
        if channel is not None and not channel.broken and channel.send(self._sequence, record, keep):
            return channel
        channel = await run_shielded(self._replace_shell())
        channel.send(self._sequence, record, keep)  # if this fails too, the outcome says so
        return channel

    # ---- shells ---------------------------------------------------------------------------------------------------

    async def _replace_shell(self) -> ShellChannel:
        """Kill the shell if it still runs, and start another one in the same folder."""
        if self._process is not None and not self._process.exited.done():
            await self._kill_shell()
        return await self._start_shell()

    async def _start_shell(self) -> ShellChannel:
        """Start a shell. If the slot's processes keep it from starting, they are ended first."""
        channel, _ = await self._try_start(_SHELL_SECONDS)
        if channel is not None:
            return channel
        self._raise_if_dead()
        await self._end_processes()
        channel, reason = await self._try_start(_START_SECONDS)
        if channel is None:
            self.fail(SandboxError(f"the slot's shell did not start{reason}"))
        self._raise_if_dead()
        assert channel is not None
        return channel

    async def _try_start(self, seconds: float) -> "tuple[ShellChannel | None, str]":
        """Start a shell with new pipes. Returns its channel, or None and the reason."""
        channel, ends = ShellChannel.open()
        try:
            process = await self._starter.start_shell(ends, self._folder)
        except SandboxError as error:
            channel.close()
            self.fail(error)
            raise
        finally:
            for fd in ends:
                os.close(fd)
        process.exited.add_done_callback(lambda exited: channel.on_exit(exited.result()))
        self._drop_channel()
        if self._death is not None:
            channel.close()
            raise self._death
        self._channel, self._process = channel, process
        if not await channel.is_idle_within(seconds):
            reason = f" within {seconds:g} s"
        elif channel.broken:
            words = channel.err.to_bytes().decode(errors="replace").strip()[-500:]
            reason = f": {words}" if words else ""
        else:
            return channel, ""
        self._drop_channel()
        return None, reason

    def _drop_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def _restart(self) -> None:
        await self._end_processes()
        self._folder = self._home
        await self._start_shell()

    async def _end_processes(self) -> None:
        try:
            await self._starter.end_processes()
        except SandboxError as error:
            self.fail(error)
        self._drop_channel()
        self._raise_if_dead()

    # ---- aborting a command ---------------------------------------------------------------------------------------

    async def _abort(self, channel: ShellChannel) -> None:
        """Kill the running command, in the end together with its shell, or even with all processes of the slot."""
        self._raise_if_dead()
        assert self._process is not None
        pid = self._process.pid
        for pause in _KILL_PAUSES if self._is_alone and not channel.broken else ():
            if not channel.idle:
                await self._in_thread(lambda: _kill_command(pid, self._boot))
            if await channel.is_idle_within(pause):
                self._raise_if_dead()
                return
        await self._kill_shell()

    async def _kill_shell(self) -> None:
        """Kill the shell and the processes of its command. Background processes of earlier commands stay alive."""
        assert self._process is not None
        process, boot = self._process, self._boot
        killed_all = await self._in_thread(lambda: _kill_with_shell(process.pid, boot))
        if not killed_all or not await _is_done_within(process.exited, _SHELL_SECONDS):
            await self._end_processes()
        self._raise_if_dead()

    async def _in_thread(self, work: Callable[[], bool]) -> bool:
        """Run what depends on the number of the agent's processes in a thread."""
        return await self._loop.run_in_executor(None, work)

    def _raise_if_dead(self) -> None:
        if self._death is not None:
            raise self._death


def is_alone(command: bytes) -> bool:
    """Whether the shell has nothing left to do once the processes of a command are killed: it is a single one, or all
    of it runs in a subshell. A character in quotes may be mistaken for one that separates commands.
    That costs the variables of the shell, and only if the command is killed."""
    return command.startswith(SUBSHELL) or not _SEPARATORS.search(command)


def _kill_command(shell: int, boot: float) -> bool:
    return kill_trees(lambda: [child for child in find_children(shell) if is_started_after(child, boot)])


def _kill_with_shell(shell: int, boot: float) -> bool:
    signal_each((shell,), signal.SIGSTOP)  # so that it starts no process while its children are killed
    killed_all = _kill_command(shell, boot)
    signal_each((shell,), signal.SIGKILL)
    return killed_all


async def _is_done_within(future: "asyncio.Future[int]", seconds: float) -> bool:
    await asyncio.wait([future], timeout=seconds)
    return future.done()


def _make_result(channel: ShellChannel, outcome: "int | Stop", seconds: float) -> ExecResult:
    stderr = channel.err.to_bytes()
    if outcome is Stop.FLOOD:
        stderr += b"\n[killed: the command wrote more than %d bytes]\n" % channel.limit
    elif outcome is Stop.BROKEN:
        stderr += b"\n[killed: the shell's connection to the driver was blocked or closed]\n"
    return ExecResult(
        channel.out.to_bytes(),
        stderr,
        124 if outcome is Stop.TIME else 137 if isinstance(outcome, Stop) else outcome,
        outcome is Stop.TIME,
        channel.out.truncated or channel.err.truncated,
        seconds,
    )


def write_input(path: Path, data: bytes) -> None:
    """Write a new file that the slot may read, independent of this process's umask."""
    try:
        with path.open("xb", buffering=0) as file:
            os.fchmod(file.fileno(), 0o444)
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
    except OSError as error:
        raise SandboxError(
            f"the host cannot store the input of a command: {error}",
            evidence=SlotEvidence(outside="the host could not store a file"),
        ) from error
