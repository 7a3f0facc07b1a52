"""A slot's shell, as the driver uses it. The starter here is the real fork server, without any slot around it."""

import asyncio
import os
import stat
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest

from ludus.errors import SandboxError, SlotEvidence
from ludus.sandbox import shell as shell_module
from ludus.sandbox.local.fork_client import ForkServer, ForkStarter, SlotProgram
from ludus.sandbox.local.host_dir import SCRIPTS, find_bash, join_lines
from ludus.sandbox.processes import is_dead
from ludus.sandbox.shell import INLINE_BYTES, SlotShell, write_input
from ludus.sandbox.shell_starter import ShellEnds, ShellProcess


class CountingStarter(ForkStarter):
    """Counts what the shell asks for."""

    def __init__(self, server: ForkServer, program: SlotProgram) -> None:
        super().__init__(server, 0, program, lambda: nullcontext(()))
        self.started = self.ended = 0

    async def start_shell(self, ends: ShellEnds, folder: bytes) -> ShellProcess:
        self.started += 1
        return await super().start_shell(ends, folder)

    async def end_processes(self) -> None:
        self.ended += 1
        await super().end_processes()


def make_program(folder: Path, *, inner: str = "", limits: dict[str, int] | None = None) -> SlotProgram:
    script = inner or join_lines((SCRIPTS / "inner.sh").read_text())
    return SlotProgram(
        program=(find_bash(), "--norc", "--noprofile", "-c", script, "bash", str(folder)),
        home=str(folder),
        environment={"PATH": os.defpath},
        limits=limits or {},
    )


@asynccontextmanager
async def open_shell(tmp_path: Path, *, inner: str = "") -> AsyncGenerator[tuple[SlotShell, CountingStarter]]:
    server = ForkServer.launch()
    own = await server.copy()
    starter = CountingStarter(own, make_program(tmp_path, inner=inner))
    shell = SlotShell(starter, tmp_path, str(tmp_path))
    try:
        yield shell, starter
    finally:
        shell.close()
        await starter.close()
        own.close()
        server.close()
        server.wait()


async def test_long_and_short_commands_run_in_one_shell(tmp_path):
    async with open_shell(tmp_path) as (shell, starter):
        long = b"X=" + b"y" * INLINE_BYTES + b"; echo ${#X}"
        assert (await shell.run(long, seconds=30, keep=100)).stdout == b"%d\n" % INLINE_BYTES
        assert list(tmp_path.iterdir()) == []  # the file of the long command is removed
        result = await shell.run(b"echo ${#X}; echo err >&2; false", seconds=30, keep=100)
        assert (result.stdout, result.stderr, result.exit_code) == (b"%d\n" % INLINE_BYTES, b"err\n", 1)
        assert starter.started == 1


async def test_a_restart_loses_the_variables_the_folder_and_the_processes(tmp_path):
    async with open_shell(tmp_path) as (shell, starter):
        found = await shell.run(b"X=1; cd /; sleep 615.5 & echo $!", seconds=30, keep=100)
        await shell.restart()
        assert is_dead(int(found.stdout))
        result = await shell.run(b"echo [$X] $PWD; jobs", seconds=30, keep=1000)
        assert result.stdout == b"[] %b\n" % bytes(tmp_path)
        assert (starter.started, starter.ended) == (2, 1)


@pytest.mark.parametrize(
    ("command", "code"), [(b"exit 3", 3), (b"kill -9 $$", 137), (b"exec false", 1), (b"set -e; false", 1)]
)
async def test_a_shell_that_ends_is_replaced_in_the_same_folder(tmp_path, command, code):
    async with open_shell(tmp_path) as (shell, starter):
        await shell.run(b"cd /usr; sleep 616.5 & echo $! >" + bytes(tmp_path) + b"/pid", seconds=30, keep=100)
        assert (await shell.run(command, seconds=30, keep=100)).exit_code == code
        pid = int((tmp_path / "pid").read_text())
        result = await shell.run(b"echo $PWD; kill -0 %d && echo alive" % pid, seconds=30, keep=100)
        assert result.stdout == b"/usr\nalive\n"  # a background process outlives its shell
        assert (starter.started, starter.ended) == (2, 0)


@pytest.mark.parametrize("command", [b"while :; do :; done", b"trap '' TERM INT; while :; do sleep 0.01; done"])
async def test_a_command_that_only_ends_with_its_shell_spares_background_processes(tmp_path, command):
    async with open_shell(tmp_path) as (shell, starter):
        found = await shell.run(
            b"sleep 618.5 & echo $!; sleep 0.05", seconds=30, keep=100
        )  # starts are told apart by ticks
        result = await shell.run(command, seconds=0.2, keep=100)
        assert (result.exit_code, result.timed_out) == (124, True)
        alive = await shell.run(b"kill -0 %d" % int(found.stdout), seconds=30, keep=100)
        assert (alive.exit_code, starter.ended) == (0, 0)


async def test_processes_that_cannot_all_be_found_end_with_everything_else(tmp_path, monkeypatch):
    """The last resort is not another round of the same search."""
    monkeypatch.setattr(shell_module, "_KILL_PAUSES", (0.01,))
    monkeypatch.setattr(shell_module, "kill_trees", lambda find: False)

    async with open_shell(tmp_path) as (shell, starter):
        found = await shell.run(b"sleep 619.5 & echo $!", seconds=30, keep=100)
        assert (await shell.run(b"sleep 60", seconds=0.1, keep=100)).timed_out
        assert starter.ended == 1
        assert is_dead(int(found.stdout))
        assert (await shell.run(b"echo on", seconds=30, keep=100)).stdout == b"on\n"


async def test_finding_the_agents_processes_is_no_work_of_the_event_loop(tmp_path, monkeypatch):
    threads: list[int] = []
    real = shell_module.kill_trees

    def kill_trees(find: Callable[[], list[int]]) -> bool:
        threads.append(threading.get_ident())
        return real(find)

    monkeypatch.setattr(shell_module, "kill_trees", kill_trees)

    async with open_shell(tmp_path) as (shell, _):
        assert (await shell.run(b"while :; do sleep 0.01; done", seconds=0.1, keep=100)).timed_out
        await shell.restart()
    assert threads
    assert threading.get_ident() not in threads


async def test_a_shell_that_cannot_start_reports_what_it_wrote(tmp_path):
    async with open_shell(tmp_path, inner="echo no such luck >&6; exit 1") as (shell, starter):
        with pytest.raises(SandboxError, match="did not start: no such luck"):
            await shell.start()
        assert not shell.alive
        assert (starter.started, starter.ended) == (2, 1)
        with pytest.raises(SandboxError, match="did not start"):
            await shell.run(b"true", seconds=30, keep=100)


async def test_the_end_of_the_slot_ends_a_running_command_with_its_evidence(tmp_path):
    async with open_shell(tmp_path) as (shell, _):
        await shell.start()
        running = asyncio.create_task(shell.run(b"sleep 620.5", seconds=60, keep=100))
        await asyncio.sleep(0)
        shell.fail(SandboxError("the host is on fire", evidence=SlotEvidence(outside="fire")))
        with pytest.raises(SandboxError, match="fire") as caught:
            await running
        assert caught.value.evidence.outside == "fire"
        shell.close()  # the first reason stays
        with pytest.raises(SandboxError, match="fire"):
            await shell.run(b"true", seconds=30, keep=100)


async def test_a_closed_shell_says_that_it_was_closed(tmp_path):
    async with open_shell(tmp_path) as (shell, _):
        shell.close()
        with pytest.raises(SandboxError) as caught:
            await shell.run(b"true", seconds=30, keep=100)
        assert caught.value.evidence.outside == "the slot was closed"


def test_input_is_readable_for_the_slot_and_never_overwritten(tmp_path):
    old = os.umask(0o077)
    try:
        write_input(tmp_path / "in", b"data")
    finally:
        os.umask(old)
    assert (tmp_path / "in").read_bytes() == b"data"
    assert stat.S_IMODE((tmp_path / "in").stat().st_mode) == 0o444
    for path in (tmp_path / "in", tmp_path / "missing" / "in"):
        with pytest.raises(SandboxError, match="cannot store the input"):
            write_input(path, b"other")
