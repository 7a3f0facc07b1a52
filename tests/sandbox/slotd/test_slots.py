"""The slots of one slotd, which runs here as a child process."""

import asyncio
import resource

import pytest
from tests.sandbox_kit import OURS
from tests.slotd_kit import SPEC, call, make_run, needs_python, open_boxes, start_slotd

from ludus.errors import SandboxError
from ludus.sandbox.slotd.slots import SlotSpec, make_limits

pytestmark = needs_python

LISTENER = b"""
import socket
server = socket.socket()
server.bind(("127.0.0.1", 5599))
server.listen()
while True:
    server.accept()
"""


async def test_results_are_remembered_within_bounds():
    async with start_slotd() as (link, _):
        await call(link, {"op": "open", "slot": "a", "spec": SPEC})
        for number in range(40):
            await call(link, *make_run("a", f"e{number}", b"echo $RANDOM"))
        with pytest.raises(SandboxError, match="no longer knows"):
            await call(link, {"op": "run", "slot": "a", "execution": "e0", "again": True})
        await call(link, {"op": "run", "slot": "a", "execution": "e39", "again": True})


@pytest.mark.parametrize("settings", [{}, {"as_root": True}], ids=["namespaces", "none"])
async def test_a_reset_slot_is_as_new(settings):
    async with start_slotd(**settings) as (link, info):
        assert info.isolation == ("none" if settings else "namespaces")
        (box,) = await open_boxes(link, info)
        sleep = f"sleep 610.{OURS}"
        await box.exec(f"echo dirt >file; export X=1; cd /tmp; echo dirt >dirt; {sleep} & setsid {sleep} &")
        await box.start(sleep)
        await box.reset()
        left = await box.exec(f"ls -A; ls -A ${{TMPDIR:-/tmp}}; ls -A ~; echo [$X]; pgrep -afx '{sleep}' || echo none")
        assert left.stdout == b"[]\nnone\n"
        with pytest.raises(KeyError):
            await box.poll("bg-1")
        await box.close()
        with pytest.raises(SandboxError):
            await box.reset()


async def test_slots_do_not_see_each_other():
    async with start_slotd() as (link, info):
        one, two = await open_boxes(link, info, 2)
        await one.exec("echo secret >f; echo secret >/tmp/f; echo secret >/dev/shm/f; sleep 611.5 &")
        await one.write("listen.py", LISTENER)
        await one.exec("python3 listen.py &")
        seen = await two.exec(
            "ls -A /workspace /tmp /dev/shm ~; ls /proc | grep -c '^[0-9]'; pgrep -f 611.5; ls /run/ludus/io; "
            "cat /proc/1/environ /proc/1/mem; ls /proc/1/fd; echo >/dev/tcp/127.0.0.1/5599"
        )
        assert b"secret" not in seen.stdout + seen.stderr
        assert b"611.5" not in seen.stdout
        assert b"refused" in seen.stderr
        await one.exec("kill -9 -1; kill -9 1")
        assert (await two.exec("echo on")).stdout == b"on\n"
        assert (await one.exec("echo on")).stdout == b"on\n"


async def test_a_bomb_of_processes_or_files_stays_in_its_slot():
    async with start_slotd() as (link, info):
        one, two = await open_boxes(link, info, 2, disk_mb=8, processes=60)
        await one.exec("bomb() { bomb | bomb & }; bomb", timeout=3)
        assert (await two.exec("head -c 20000000 /dev/zero >big")).exit_code != 0
        assert (await two.exec("for i in {1..9000}; do : >$i || exit 9; done")).exit_code == 9
        await one.settle()
        for box in (one, two):
            assert (await box.exec("echo on")).stdout == b"on\n"


async def test_two_requests_for_one_slot_open_it_once():
    async with start_slotd() as (link, _):
        request = {"op": "open", "slot": "a", "spec": SPEC}
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call(link, request)) for _ in range(2)]
        assert tasks[0].result().head["paths"] == tasks[1].result().head["paths"]
        assert (await call(link, {"op": "hello"})).head["slots"] == 1
        await call(link, {"op": "close", "slot": "a"})
        assert (await call(link, {"op": "hello"})).head["slots"] == 0


@pytest.mark.parametrize("name", ["../b", "a b", "", "é"])
async def test_a_slot_name_is_an_identifier(name):
    async with start_slotd() as (link, _):
        with pytest.raises(SandboxError, match="not a valid slot name") as refused:
            await call(link, {"op": "open", "slot": name, "spec": SPEC})
        assert not refused.value.retryable


def test_processes_are_limited_only_where_slots_have_users_of_their_own():
    spec = SlotSpec(False, 1, 60, 128, {})
    memory = (resource.RLIMIT_AS, 128 * 2**20)
    assert make_limits(spec, own_users=True)[2:] == ((resource.RLIMIT_NPROC, 60), memory)
    assert make_limits(spec, own_users=False)[2:] == (memory,)
    assert make_limits(spec._replace(memory_mb=0), own_users=False)[0] == (resource.RLIMIT_CORE, 0)
