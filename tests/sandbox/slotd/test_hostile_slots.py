"""Hostile agents in slots of a slotd on this machine: as root, as an ordinary user, and without namespaces."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests import attacks_kit
from tests.attacks_kit import check_honest, run_attack
from tests.slotd_kit import call, find_folder, needs_python, open_boxes, start_slotd

from ludus.sandbox.remote.link import StdioLink
from ludus.sandbox.remote.remote_sandbox import RemoteSandbox

pytestmark = needs_python

WITHOUT_NAMESPACES = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
asking, asked = os.pipe()
telling, told = os.pipe()
main = os.getpid()
if os.fork() == 0:
    os.read(asking, 1)
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{main}/{name}", "w") as file:
            file.write("0 0 65536")
    os.write(told, b"+")
    os._exit(0)
assert libc.unshare(0x10000000) == 0
os.write(asked, b"+")
os.read(telling, 1)
os.wait()
with open("/proc/sys/user/max_user_namespaces", "w") as file:
    file.write("0")
for capability in range(41):
    if capability not in (0, 1, 3, 5, 6, 7):
        libc.prctl(24, capability, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Runs a program with the rights of root in a container: it may act as any user, but make no namespaces."""

KINDS = {
    "root": (("namespaces", ()), {}),
    "ordinary": (("namespaces", ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")), {}),
    "user": (("user", (sys.executable, "-c", WITHOUT_NAMESPACES)), {}),
    "none": (("none", ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")), {"as_root": True}),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """How slotd runs, which decides how well it can isolate."""
    if os.geteuid() != 0:
        pytest.skip("the tests do not run as root")
    return request.param


@asynccontextmanager
async def in_slots(kind: str, count: int = 1, **spec: Any) -> AsyncGenerator[tuple[list[RemoteSandbox], StdioLink]]:
    (level, prefix), settings = KINDS[kind]
    async with asyncio.timeout(240), start_slotd(*prefix, **settings) as (link, info):
        assert info.isolation == level, info.why
        yield await open_boxes(link, info, count, **spec), link


async def test_nothing_outlives_a_settle_and_answers_in_place_of_the_shell(kind):
    async with in_slots(kind, processes=256) as (boxes, _):
        (box,) = boxes
        for _ in range(2):
            await run_attack(box, attacks_kit.HIJACK, 8, 180)
            await check_honest(box)


@pytest.mark.parametrize("program", [attacks_kit.QUEUE_ORDERS, attacks_kit.JAM], ids=["queued", "jammed"])
async def test_what_an_agent_leaves_in_the_pipes_of_its_shell_is_gone(kind, program):
    async with in_slots(kind) as (boxes, _):
        (box,) = boxes
        await run_attack(box, program, seconds=3)
        await check_honest(box)


async def test_a_flood_of_the_status_pipe_is_refused(kind):
    async with in_slots(kind) as (boxes, _):
        (box,) = boxes
        await run_attack(box, attacks_kit.FLOOD_STATUS, "${TMPDIR:-/tmp}")
        seen = [b"", b""]
        async with asyncio.timeout(60):
            while not seen[-1] or seen[-1] != seen[-2]:  # until it has begun and no longer goes on
                await asyncio.sleep(0.3)
                # With the names of the files: a flood may be ended before it has written how far it came.
                seen.append((await box.exec("cd ${TMPDIR:-/tmp} && tail -vn1 flood-*")).stdout)
        await check_honest(box)


async def test_full_and_blocked_folders_do_not_break_the_slot(kind):
    if kind == "user":
        pytest.skip("needs a container, whose disks are limited")
    async with in_slots(kind, disk_mb=8) as (boxes, _):
        (box,) = boxes
        if kind != "none":  # there, a slot has no disk of its own
            await box.exec(attacks_kit.FILL_DISKS, timeout=60)
        await box.exec(attacks_kit.BLOCK_FOLDERS)
        await check_honest(box)
        with pytest.raises(OSError):
            await box.write("/workspace/out.txt", b"x" * 5_000_000)


async def test_folders_nested_thousands_deep_are_removed(kind):
    async with in_slots(kind) as (boxes, _):
        (box,) = boxes
        await box.exec(f"python3 - <<'END'\n{attacks_kit.DEEP_FOLDERS}\nEND")
        await box.reset()
        assert (await box.exec("ls -A")).stdout == b""
        await check_honest(box)


async def test_one_slot_cannot_read_the_input_of_another(kind):
    if kind == "none":
        pytest.skip("slots are not isolated there")
    async with in_slots(kind, 2) as (boxes, link):
        one, two = boxes
        reading = asyncio.create_task(one.exec("cat >/dev/null; touch started; sleep 630.5", stdin=b"secret\n"))
        async with asyncio.timeout(60):
            while not (found := _find_inputs(link)):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert [path for path in found if b"secret" in path.read_bytes()]
        for path in found:
            folders = [str(folder) for folder in path.parents if "ludus-" in str(folder)]
            seen = await two.exec(f"cat {path}; ls -A {' '.join(folders)}")
            assert b"secret" not in seen.stdout
            assert not seen.stdout or folders[0].split("/")[-2] not in seen.stdout.decode()
        reading.cancel()
        await asyncio.wait([reading])


def _find_inputs(link: StdioLink) -> list[Path]:
    """The input files of a slotd's slots, by their names on this machine."""
    return list(find_folder(link).glob("*/io/in-*"))


async def test_the_kernel_chooses_agents_before_slotd_when_memory_runs_out(kind):
    async with in_slots(kind) as (boxes, link):
        (box,) = boxes
        adjustment = int(Path(f"/proc/{link._channel.pid}/oom_score_adj").read_text())
        assert int((await box.exec("cat /proc/self/oom_score_adj")).stdout) > adjustment
        if KINDS[kind][0][0] == "namespaces":  # elsewhere an agent may lower it to 0
            lowered = await box.exec("sh -c 'echo 0 >/proc/self/oom_score_adj; cat /proc/self/oom_score_adj'")
            assert int(lowered.stdout) > adjustment


async def test_an_error_says_whose_doing_it_was(kind):
    async with in_slots(kind) as (boxes, link):
        await call(link, {"op": "close", "slot": boxes[0]._remote._slot})
        with pytest.raises(Exception, match="no slot") as gone:
            await boxes[0].exec("true")
        assert gone.value.evidence.outside  # type: ignore[attr-defined]
