"""The driver's ends of a shell's pipes, with a shell that a test plays itself."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.sandbox.shell_channel import OutputBuffer, ShellChannel, Stop
from ludus.sandbox.shell_starter import ShellEnds


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


@asynccontextmanager
async def open_channel() -> AsyncGenerator[tuple[ShellChannel, ShellEnds]]:
    """A channel to a shell that the test plays. The shell has reported that it is ready."""
    channel, ends = ShellChannel.open()
    try:
        async with asyncio.timeout(60):
            os.write(ends.status, b"\0r\0")
            assert await channel.wait_outcome() == 0
            assert channel.idle
            yield channel, ends
    finally:
        channel.close()
        channel.close()
        for fd in ends:
            os.close(fd)


async def test_output_that_was_written_before_the_report_is_in_the_result():
    async with open_channel() as (channel, ends):
        os.write(ends.stdout, b"late output of the command before")
        assert channel.send(7, b"7:x\0", 100)
        assert os.read(ends.command, 100) == b"7:x\0"
        os.write(ends.stdout, b"out")
        os.write(ends.stderr, b"err")
        os.write(ends.status, b"\0d 7 3 /a b\0")
        assert await channel.wait_outcome() == 3
        assert (channel.out.to_bytes(), channel.err.to_bytes(), channel.folder) == (b"out", b"err", b"/a b")
        assert not channel.broken


@pytest.mark.parametrize("record", [b"d 6 0 /", b"d 7", b"d 7 x /", b"r", b"x 7 0", b"", b"d 70 0 /", b"\xff" * 100])
async def test_any_other_record_is_ignored(record):
    async with open_channel() as (channel, ends):
        channel.send(7, b"7:x\0", 100)
        os.write(ends.status, b"\0%b\0" % record)
        os.write(ends.status, b"\0d 7 1 /\0")
        assert await channel.wait_outcome() == 1


@pytest.mark.parametrize("junk", [b"\0" * 65_536, b"x" * 65_536, b"\0d 6 0 /" * 8192])
async def test_a_flood_of_records_costs_the_shell_and_no_more_time(junk):
    """NULs, text without an end, and answers to other commands: the driver stops to read them."""

    async with open_channel() as (channel, ends):
        channel.send(7, b"7:x\0", 100)
        os.set_blocking(ends.status, False)
        os.write(ends.status, junk)
        assert await channel.wait_outcome() is Stop.BROKEN
        assert channel.broken
        written = os.write(ends.status, b"\0" * 4096)
        await asyncio.sleep(0)  # one round of the event loop
        await asyncio.sleep(0)
        assert written == 4096
        assert not channel._reading


async def test_a_pipe_full_of_unread_commands_breaks_the_channel():
    async with open_channel() as (channel, _):
        sequence = 0
        while not channel.broken:
            sequence += 1
            assert channel.send(sequence, b"%d:%b\0" % (sequence, b"x" * 500), 100)
        assert await channel.wait_outcome() is Stop.BROKEN
        assert sequence > 1


async def test_a_shell_that_is_gone_cannot_have_run_the_command():
    channel, ends = ShellChannel.open()
    for fd in ends:
        os.close(fd)
    assert not channel.send(1, b"1:x\0", 100)
    assert channel.broken
    channel.close()


async def test_the_exit_code_of_the_shell_is_the_commands():
    async with open_channel() as (channel, ends):
        channel.send(1, b"1:exit 9\0", 100)
        os.write(ends.stdout, b"last words")
        channel.on_exit(9)
        assert await channel.wait_outcome() == 9
        assert (channel.out.to_bytes(), channel.broken) == (b"last words", True)


async def test_a_report_before_the_exit_counts():
    async with open_channel() as (channel, ends):
        channel.send(1, b"1:x\0", 100)
        os.write(ends.status, b"\0d 1 5 /\0")
        channel.on_exit(137)
        assert await channel.wait_outcome() == 5
        assert channel.broken


async def test_a_closed_channel_ends_the_wait():
    async with open_channel() as (channel, ends):
        channel.send(1, b"1:x\0", 100)
        channel.close()
        assert await channel.wait_outcome() is Stop.DEAD
        channel.on_exit(3)
        with pytest.raises(BrokenPipeError):
            os.write(ends.status, b"\0d 1 0 /\0")
