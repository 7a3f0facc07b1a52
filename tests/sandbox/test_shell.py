"""The host's side of a slot's shell."""

import asyncio
import os
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import SandboxError
from ludus.sandbox.local.host_dir import HostDir, find_bash
from ludus.sandbox.processes import Child
from ludus.sandbox.shell import INLINE_BYTES, OutputBuffer, Pipes, SlotShell, write_input


@given(st.lists(st.binary(max_size=30), max_size=30), st.integers(2, 100))
def test_a_buffer_keeps_everything_or_both_ends(chunks, limit):
    buffer = OutputBuffer(limit)
    for chunk in chunks:
        buffer.add(chunk)
    whole = b"".join(chunks)
    assert buffer.size == len(whole)
    if len(whole) <= limit:
        assert (buffer.to_bytes(), buffer.truncated) == (whole, False)
    else:
        marker = b"\n[... %d bytes left out ...]\n" % (len(whole) - limit)
        head, tail = limit - limit // 2, limit // 2
        assert buffer.to_bytes() == whole[:head] + marker + whole[len(whole) - tail :]
        assert buffer.truncated


def run_with_shell(tmp_path: Path, test) -> None:
    """Start a supervisor of the host's own bash, without any slot around it."""

    async def main() -> None:
        host, pipes = HostDir(), Pipes.open()
        shell = SlotShell(pipes, tmp_path, str(tmp_path))
        try:
            arguments = shell.make_arguments(str(host.lib), str(tmp_path), (), ("-c", "0"))
            child = Child(
                subprocess.Popen(  # noqa: ASYNC220
                    [find_bash(), "--norc", str(host.lib / "supervisor.sh"), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=pipes.slot_stdout,
                    stderr=pipes.slot_stderr,
                    pass_fds=(pipes.slot_command, pipes.slot_status),
                )
            )
            pipes.close_slot_ends()
            await shell.wait_started(30, lambda: child.pid)
            await test(shell, child)
        finally:
            shell.close()
            await child.wait()
            host.close()

    asyncio.run(main())


def test_long_and_short_commands_run_in_one_shell(tmp_path):
    async def test(shell: SlotShell, child: Child) -> None:
        long = b"X=" + b"y" * INLINE_BYTES + b"; echo ${#X}"
        assert (await shell.run(long, seconds=30, keep=100)).stdout == b"%d\n" % INLINE_BYTES
        assert list(tmp_path.iterdir()) == []  # the file of the long command is removed
        result = await shell.run(b"echo ${#X}; echo err >&2; false", seconds=30, keep=100)
        assert (result.stdout, result.stderr, result.exit_code) == (b"%d\n" % INLINE_BYTES, b"err\n", 1)

    run_with_shell(tmp_path, test)


def test_a_restart_loses_the_variables_and_the_folder(tmp_path):
    async def test(shell: SlotShell, child: Child) -> None:
        await shell.run(b"X=1; cd /; sleep 615.5 & echo on", seconds=30, keep=100)
        await shell.restart()
        result = await shell.run(b"echo [$X] $PWD; jobs", seconds=30, keep=1000)
        assert result.stdout == b"[] %b\n" % bytes(tmp_path)

    run_with_shell(tmp_path, test)


def test_a_dead_supervisor_is_an_error_of_the_slot(tmp_path):
    async def test(shell: SlotShell, child: Child) -> None:
        running = asyncio.create_task(shell.run(b"kill -9 $PPID; kill -9 $$", seconds=60, keep=100))
        with pytest.raises(SandboxError, match="the slot ended"):
            await running
        assert not shell.alive

    run_with_shell(tmp_path, test)


def test_a_slot_that_cannot_start_reports_what_it_wrote(tmp_path):
    async def main() -> None:
        pipes = Pipes.open()
        shell = SlotShell(pipes, tmp_path, "/")
        ended = subprocess.run(  # noqa: ASYNC221
            ["sh", "-c", "echo no such luck >&2"], stderr=pipes.slot_stderr, pass_fds=(pipes.slot_status,)
        )
        pipes.close_slot_ends()
        with pytest.raises(SandboxError, match="the slot ended: no such luck"):
            await shell.wait_started(30, lambda: ended.returncode)
        shell.close()
        shell.close()

    asyncio.run(main())


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
