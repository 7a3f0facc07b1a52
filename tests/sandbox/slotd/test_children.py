"""Child processes of slotd, and work in forked ones."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from ludus.sandbox.slotd.children import Children, send_report


@asynccontextmanager
async def reap_children() -> AsyncGenerator[Children]:
    """`Children` that reap on SIGCHLD, as in slotd."""
    children = Children()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, children.reap)
    try:
        async with asyncio.timeout(60):
            yield children
    finally:
        loop.remove_signal_handler(signal.SIGCHLD)


async def test_the_exit_code_of_a_forked_process_is_that_of_its_work(capfd):
    async with reap_children() as children:
        assert await children.fork(lambda: None)[1] == 0
        assert await children.fork(lambda: sys.exit("wrong"))[1] == 125
        assert await children.fork(lambda: os._exit(9))[1] == 9
        assert await children.fork(lambda: os.kill(os.getpid(), signal.SIGKILL))[1] == 137
        assert await children.run(lambda: None)
        assert not await children.run(lambda: 1 / 0)
        assert not children.watched
    assert "ZeroDivisionError" in capfd.readouterr().err


async def test_a_report_carries_text_and_descriptors():
    def work(sender: socket.socket) -> None:
        reading, writing = os.pipe()
        os.write(writing, b"through the pipe")
        send_report(sender, b"text", (reading, writing))

    async with reap_children() as children:
        text, (reading, writing) = await children.ask(work)
        assert text == b"text"
        assert not os.get_inheritable(reading)
        assert os.read(reading, 100) == b"through the pipe"
        os.close(reading)
        os.close(writing)


async def test_a_failure_is_reported_in_words():
    async with reap_children() as children:
        with pytest.raises(OSError, match="/no/such/file"):
            await children.ask(lambda sender: os.close(os.open("/no/such/file", os.O_RDONLY)))
        with pytest.raises(OSError, match="ZeroDivisionError"):
            await children.ask(lambda sender: send_report(sender, b"%d" % (1 / 0)))
        with pytest.raises(OSError, match="without a report"):
            await children.ask(lambda sender: None)
        with pytest.raises(OSError, match="without a report"):
            await children.ask(lambda sender: os.kill(os.getpid(), signal.SIGKILL))


async def test_an_adopted_process_that_ended_early_has_its_exit_code():
    async with reap_children() as children:
        pid = os.fork()
        if pid == 0:
            os._exit(3)
        while pid not in children._unclaimed:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert await children.watch(pid, adopted=True) == 3
        assert not children._unclaimed
