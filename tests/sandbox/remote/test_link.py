"""Connections to slotd that fail, over stdio and over HTTP, and programs that are not slotd."""

import asyncio
import os
import signal

import pytest
from tests.sandbox.remote.machinery import make_lossy_proxy
from tests.slotd_kit import PYTHON, SPEC, HttpSlotd, call, make_run, needs_python, open_boxes, start_slotd

from ludus.errors import SandboxError, SlotEvidence
from ludus.http_client import Client
from ludus.sandbox.remote.link import HttpLink, StdioLink, _raise_if_refused
from ludus.sandbox.remote.program import run_program
from ludus.sandbox.slotd.frames import Frame

pytestmark = needs_python


@pytest.fixture
def http_slotd(tmp_path):
    slotd = HttpSlotd(tmp_path)
    yield slotd
    slotd.daemon.stop()


# ---- stdio --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["/bin/sh", "-c", "echo Welcome to this host, mind the gap; cat >/dev/null"], "not from slotd: Welcome"),
        (["/bin/sh", "-c", "echo no such luck >&2; exit 3"], "no such luck"),
        (["/bin/sh", "-c", "exec sleep 60"], "did not reply to 'hello' within 1 s"),
        ([PYTHON, "-c", "import os; os.close(0); os.close(1)"], "connection ended"),
    ],
)
async def test_a_program_that_is_not_slotd_is_reported(command, words):
    link = StdioLink(await run_program(command))
    try:
        with pytest.raises(SandboxError, match=words):
            await link.start({}, seconds=1 if "within 1 s" in words else 60, lapse=120)
    finally:
        await link.close()


async def test_a_slotd_that_falls_silent_is_noticed():
    async with start_slotd(lapse=2.0) as (link, info):
        (box,) = await open_boxes(link, info)
        os.kill(link._channel.pid, signal.SIGSTOP)
        try:
            with pytest.raises(SandboxError, match="did not reply to 'beat'"):
                await box.exec("sleep 20")
            assert not box.alive
        finally:
            os.kill(link._channel.pid, signal.SIGCONT)


def test_an_error_carries_what_slotd_knows_about_its_cause():
    refused = Frame({"error": "broken", "inside": "its processes do not die", "retryable": False})
    with pytest.raises(SandboxError, match="broken") as found:
        _raise_if_refused(refused)
    assert found.value.evidence == SlotEvidence(inside="its processes do not die")
    assert not found.value.retryable
    with pytest.raises(SandboxError) as unknown:
        _raise_if_refused(Frame({"error": "broken"}))  # from an older slotd
    assert (unknown.value.evidence, unknown.value.retryable) == (SlotEvidence(), True)


async def test_a_lost_link_is_not_the_agents_doing():
    async with start_slotd() as (link, info):
        (box,) = await open_boxes(link, info)
        os.kill(link._channel.pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(SandboxError) as lost:
                await box.exec("true")
            assert lost.value.evidence.outside
            assert not lost.value.evidence.inside


async def test_calls_after_close_are_refused():
    async with start_slotd() as (link, _):
        assert link.alive
        await link.close()
        assert not link.alive
        with pytest.raises(SandboxError, match="the link is closed"):
            await call(link, {"op": "open", "slot": "a", "spec": SPEC})


# ---- HTTP ---------------------------------------------------------------------------------------------------------


async def test_a_request_whose_reply_is_lost_is_repeated_and_nothing_runs_twice(http_slotd):
    """A proxy between driver and slotd drops every second reply."""

    lost = 0

    def loses() -> bool:
        nonlocal lost
        lost += 1
        return lost % 2 == 1

    server = await asyncio.start_server(make_lossy_proxy(http_slotd.port, loses), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Client() as client:
        link = HttpLink(client, f"http://127.0.0.1:{port}", http_slotd.token)
        await call(link, {"op": "open", "slot": "a", "spec": SPEC})
        for number in range(5):
            reply = await call(link, *make_run("a", f"e{number}", b"echo x >>log; wc -l <log"))
            assert reply.body == b"%d\n" % (number + 1)
        assert lost > 5
        await link.close()


async def test_a_command_longer_than_one_request_is_waited_for(http_slotd, monkeypatch):
    monkeypatch.setattr("ludus.sandbox.remote.link._WAIT_SECONDS", 0.2)

    async with Client() as client:
        link = HttpLink(client, http_slotd.url, http_slotd.token)
        await call(link, {"op": "open", "slot": "a", "spec": SPEC})
        reply = await call(link, *make_run("a", "e", b"sleep 1; echo done"))
        assert reply.body == b"done\n"
        await link.close()
