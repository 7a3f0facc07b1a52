"""A child process as a channel."""

from pathlib import Path

import pytest

from ludus.errors import SandboxError
from ludus.sandbox.remote.program import run_program


async def test_bytes_go_in_and_come_out_and_stderr_is_kept():
    channel = await run_program(["/bin/sh", "-c", "cat; echo the end >&2"])
    channel.send(b"some\0bytes")
    await channel.drain()
    assert await channel.receive() == b"some\0bytes"
    channel._stdin.close()
    assert await channel.receive() == b""
    assert channel.get_stderr() == "the end"
    await channel.close()


async def test_only_the_last_part_of_stderr_is_kept():
    channel = await run_program(["/bin/sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x >&2; echo last >&2"])
    assert await channel.receive() == b""
    assert channel.get_stderr().endswith("xlast")
    assert len(channel.get_stderr()) < 5000
    await channel.close()


async def test_a_program_that_ignores_the_end_of_its_stdin_is_killed(monkeypatch):
    monkeypatch.setattr("ludus.sandbox.remote.program._END_SECONDS", 0.05)

    channel = await run_program(["/bin/sleep", "614.5"])
    await channel.close()
    await channel.close()
    assert not Path(f"/proc/{channel.pid}").exists()


async def test_a_program_that_is_not_there_is_an_error_that_is_not_retried():
    with pytest.raises(SandboxError, match="/no/such did not start") as error:
        await run_program(["/no/such"])
    assert not error.value.retryable
