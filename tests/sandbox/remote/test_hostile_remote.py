"""Hostile agents on real engines and hosts: docker and podman with several slots and with one, ssh as root and not.

They take minutes and run only with `make test-hostile`.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from tests import attacks_kit
from tests.attacks_kit import check_honest, run_attack
from tests.slotd_kit import PYTHON

from ludus.errors import SandboxError
from ludus.sandbox import Sandbox, SandboxSpec

pytestmark = pytest.mark.skipif(not os.environ.get("LUDUS_TEST_HOSTILE"), reason="runs with `make test-hostile`")

KINDS = {
    "docker": ("docker_fleet", {}),
    "docker_single": ("docker_single_fleet", {}),
    "podman": ("podman_fleet", {}),
    "podman_single": ("podman_fleet", {"slots": 1}),
    "ssh": ("ssh_fleet", {}),
    "ssh_ordinary": ("ssh_fleet", {}),
}
ORDINARY = f'#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups {PYTHON} "$@"\n'
"""In place of Python on the host: slotd then runs as an ordinary user."""
SPEC = SandboxSpec(disk_mb=16, memory_mb=256, processes=256)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def in_slots(request: pytest.FixtureRequest, kind: str) -> Callable[..., AbstractAsyncContextManager[list[Sandbox]]]:
    """Opens slots of one fleet."""
    fixture, changes = KINDS[kind]
    make = request.getfixturevalue(fixture)
    if kind == "ssh_ordinary":
        python = request.getfixturevalue("tmp_path") / "python"
        python.write_text(ORDINARY)
        python.chmod(0o755)
        changes = {"python": str(python)}

    @asynccontextmanager
    async def open_slots(count: int = 1, **more: Any) -> AsyncGenerator[list[Sandbox]]:
        fleet = make(**changes, **more)
        try:
            async with asyncio.timeout(250):
                yield [await fleet.create(SPEC) for _ in range(count)]
        finally:
            await fleet.close()

    return open_slots


async def test_nothing_outlives_a_settle_and_answers_in_place_of_the_shell(in_slots):
    async with in_slots() as boxes:
        (box,) = boxes
        for _ in range(4):
            await run_attack(box, attacks_kit.HIJACK, 8, 215)
            await check_honest(box)


@pytest.mark.parametrize("program", [attacks_kit.QUEUE_ORDERS, attacks_kit.JAM], ids=["queued", "jammed"])
async def test_what_an_agent_leaves_in_the_pipes_of_its_shell_is_gone(in_slots, program):
    async with in_slots() as boxes:
        (box,) = boxes
        await run_attack(box, program, seconds=3)
        await check_honest(box)


async def test_full_and_blocked_folders_do_not_break_the_slot(in_slots):
    async with in_slots() as boxes:
        (box,) = boxes
        await box.exec(attacks_kit.FILL_DISKS, timeout=60)
        await box.exec(attacks_kit.BLOCK_FOLDERS)
        await check_honest(box)
        with pytest.raises(OSError):
            await box.write("/workspace/out.txt", bytes(20_000_000))


async def test_a_slot_holds_a_limited_number_of_files(in_slots, kind):
    if kind == "podman_single":
        pytest.skip("Podman has no such limit")
    async with in_slots() as boxes:
        made = await boxes[0].exec("mkdir d && cd d && for i in {1..30000}; do : >$i || exit 9; done", timeout=120)
        assert made.exit_code == 9
        await check_honest(boxes[0])


async def test_folders_nested_thousands_deep_are_removed(in_slots):
    async with in_slots() as boxes:
        (box,) = boxes
        await box.exec(f"python3 - <<'END'\n{attacks_kit.DEEP_FOLDERS}\nEND")
        await box.reset()
        assert (await box.exec("ls -A")).stdout == b""
        await check_honest(box)


async def test_slots_cannot_find_the_input_of_others(in_slots, kind):
    if kind.endswith("single"):
        pytest.skip("there is no other slot in the container")
    async with in_slots(2) as boxes:
        one, two = boxes
        await one.exec("mkfifo fifo")
        reading = asyncio.create_task(one.exec("read -r line; cat fifo; echo $line", stdin=b"the secret\n"))
        while not (await two.exec("echo on")).stdout:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        search = "find / -xdev -name 'in-*' -path '*io*' 2>/dev/null | xargs cat; grep -ar 'the secret' /run /var /tmp"
        found = await two.exec(search, timeout=60)
        assert b"the secret" not in found.stdout
        reading.cancel()
        await asyncio.wait([reading])


async def test_an_agent_that_uses_all_memory_loses_its_processes_and_its_neighbours_go_on(in_slots, kind):
    if kind.startswith("ssh"):
        pytest.skip("the host has no limit of its own for all slots")
    async with in_slots(1 if kind.endswith("single") else 3) as boxes:
        await boxes[0].exec(attacks_kit.FILL_DISKS, timeout=60)
        with contextlib.suppress(SandboxError):  # the next command says whose doing it was
            await run_attack(boxes[0], attacks_kit.EXHAUST_MEMORY, folder="/dev/shm")
        for box in boxes[1:]:
            assert (await box.exec("echo on")).stdout == b"on\n"
        try:
            await check_honest(boxes[0])
        except SandboxError as error:
            assert kind.endswith("single")  # where the agent's own container ended
            assert not error.evidence.outside
