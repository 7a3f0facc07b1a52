"""Requests to slotd over stdio and HTTP."""

import asyncio
from pathlib import Path

import pytest
from tests.sandbox_kit import OURS
from tests.slotd_kit import (
    SPEC,
    HttpSlotd,
    call,
    find_sleepers,
    make_run,
    needs_python,
    open_boxes,
    start_slotd,
    wait_gone,
)

from ludus.errors import SandboxError
from ludus.http_client import Client
from ludus.sandbox.processes import find_children
from ludus.sandbox.remote.link import HttpLink

pytestmark = needs_python


@pytest.fixture
def http_slotd(tmp_path, request):
    found = HttpSlotd(tmp_path, **getattr(request, "param", {}))
    yield found
    found.daemon.stop()


async def test_an_execution_that_is_asked_for_twice_runs_once():
    async with start_slotd() as (link, _):
        await call(link, {"op": "open", "slot": "a", "spec": SPEC})
        await call(link, {"op": "open", "slot": "a", "spec": SPEC})  # the same slot
        request = make_run("a", "e1", b"echo x >>log; sleep 0.3; cat log; echo $RANDOM")
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call(link, *request)) for _ in range(3)]
        later = await call(link, *request)
        again = await call(link, {"op": "run", "slot": "a", "execution": "e1", "again": True})
        assert {task.result().body for task in tasks} == {later.body} == {again.body}
        assert later.body.startswith(b"x\n")
        assert later.body.count(b"x") == 1
        with pytest.raises(SandboxError, match="no longer knows"):
            await call(link, {"op": "run", "slot": "a", "execution": "never", "again": True})


async def test_long_input_comes_in_parts():
    async with start_slotd() as (link, _):
        await call(link, {"op": "open", "slot": "a", "spec": SPEC})
        for offset in (0, 3, 0):  # the first part twice, as after a lost answer
            part = b"onetwo"[offset : offset + 3]
            await call(link, {"op": "input", "slot": "a", "execution": "e", "offset": offset}, part)
        result = await call(link, *make_run("a", "e", b"cat", b"three"))
        assert result.body == b"onetwothree"
        for bad in ("../x", "a/b", ""):
            with pytest.raises(SandboxError, match="not a valid execution id"):
                await call(link, {"op": "input", "slot": "a", "execution": bad, "offset": 0}, b"x")


async def test_bad_requests_are_refused_and_harm_no_slot():
    async with start_slotd() as (link, _):
        await call(link, {"op": "open", "slot": "a", "spec": SPEC})
        for head in (
            {"op": "fly"},
            {"op": "run", "slot": "a"},
            {"op": "run", "slot": "nobody", "execution": "e"},
            {"op": "open", "slot": "../b", "spec": SPEC},
            {"op": "open", "slot": "b", "spec": {}},
            {"op": "restart"},
        ):
            with pytest.raises(SandboxError):
                await call(link, head)
        await call(link, {"op": "close", "slot": "nobody"})
        assert (await call(link, *make_run("a", "e", b"echo on"))).body == b"on\n"


@pytest.mark.parametrize("settings", [{}, {"as_root": True}], ids=["namespaces", "none"])
async def test_when_the_driver_falls_silent_all_slots_end(settings):
    async with start_slotd(lapse=2.0, **settings) as (link, info):
        slotd_pid = link._channel.pid
        (box,) = await open_boxes(link, info)
        await box.exec(f"sleep 612.{OURS} & setsid sleep 612.{OURS} &")
        processes = find_children(slotd_pid)
        sleeping = asyncio.create_task(box.exec(f"sleep 612.{OURS}"))
        await asyncio.sleep(2.2)  # the heartbeat goes on: nothing happens
        assert not sleeping.done()
        await link._heartbeat.stop()
        with pytest.raises(SandboxError, match=r"connection ended|slot (is closed|ended)"):
            await sleeping
        for pid in processes:
            await wait_gone(pid)
        assert not find_sleepers(f"612.{OURS}")
        with pytest.raises(SandboxError):
            await box.exec("true")


async def test_http_needs_the_token(http_slotd):
    async with Client() as client:
        assert (await client.request("GET", f"{http_slotd.url}/health")).body == b"ok"
        for headers in ((), (("Authorization", "Bearer "),), (("Authorization", f"Bearer {http_slotd.token}x"),)):
            assert (await client.request("POST", f"{http_slotd.url}/call", headers, b"")).status == 401
        assert (await client.request("GET", f"{http_slotd.url}/call")).status == 404
        good = (("Authorization", f"Bearer {http_slotd.token}"),)
        assert (await client.request("POST", f"{http_slotd.url}/call", good, b"nonsense")).status == 400
        bad = HttpLink(client, http_slotd.url, "wrong")
        with pytest.raises(SandboxError, match="401") as refused:
            await bad.call({"op": "hello"}, seconds=5)
        assert not refused.value.retryable
    process = Path(f"/proc/{http_slotd.daemon.pid}")
    assert http_slotd.token.encode() not in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()


@pytest.mark.parametrize("http_slotd", [{"lapse": 2.0}], indirect=True)
async def test_http_without_a_heartbeat_ends(http_slotd, monkeypatch):
    monkeypatch.setattr("ludus.sandbox.remote.link._RETRY_PAUSES", (0.1, 0.1))

    async with Client() as client:
        link = HttpLink(client, http_slotd.url, http_slotd.token)
        await link.start(seconds=60, lapse=2.0)
        await call(link, {"op": "open", "slot": "a", "spec": SPEC})
        await asyncio.sleep(2.2)
        await call(link, *make_run("a", "e", f"sleep 613.{OURS} & echo on".encode()))
        await link._heartbeat.stop()
        await http_slotd.wait_exit()
        assert not find_sleepers(f"613.{OURS}")
        with pytest.raises(SandboxError):
            await call(link, *make_run("a", "f", b"echo on"))
        assert not link.alive
        await link.close()
