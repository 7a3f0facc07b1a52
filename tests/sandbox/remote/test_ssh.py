"""Slots over a real sshd on loopback, with the real client."""

import asyncio
import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest
from tests.sandbox_kit import OURS

from ludus.errors import SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.backend import Mount
from ludus.sandbox.backend_settings import SshSettings
from ludus.sandbox.processes import find_children
from ludus.sandbox.remote.ssh import Ssh, build_ssh_command

SPEC = SandboxSpec(disk_mb=32)


async def test_one_connection_serves_all_slots_and_leaves_nothing(ssh_fleet, open_folder):
    (open_folder / "f").write_text("shared")
    before = set(find_children(os.getpid()))
    fleet = ssh_fleet(slots=6, mounts=(Mount(source=str(open_folder), target="/cache"),), env={"FROM": "profile"})
    boxes = await asyncio.gather(*(fleet.create(SPEC) for _ in range(6)))
    assert len(set(find_children(os.getpid())) - before) == 1
    assert (await boxes[0].exec("cat /cache/f; echo $FROM; ls /root /home")).stdout == b"sharedprofile\n/home:\nagent\n"
    seventh = asyncio.create_task(fleet.create(SPEC))
    await asyncio.sleep(0.1)
    assert not seventh.done(), "there is room for six"
    await boxes.pop().close()
    boxes.append(await seventh)
    await asyncio.gather(*(box.close() for box in boxes))
    assert (await (await fleet.create(SPEC)).exec("echo on")).stdout == b"on\n"
    await fleet.close()
    assert set(find_children(os.getpid())) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"known_hosts": "/dev/null"}, "verification failed"),
        ({"key_file": "/dev/null"}, "Permission denied"),
        ({"port": 1}, "refused"),
        ({"python": "python9"}, "python9"),
        ({"user": "nobody-at-all"}, "Permission denied"),
    ],
)
async def test_what_cannot_connect_says_why(ssh_fleet, change, words):
    fleet = ssh_fleet(**change)
    with pytest.raises(SandboxError, match=f"host '127.0.0.1' runs no slots: .*{words}"):
        await fleet.create(SPEC)
    await fleet.close()


async def test_a_killed_connection_fails_its_slots_and_the_next_slot_gets_another(ssh_fleet):
    async def work() -> None:
        fleet = ssh_fleet()
        before = set(find_children(os.getpid()))
        box = await fleet.create(SPEC)
        running = asyncio.create_task(box.exec(f"sleep 630.{OURS}"))
        await asyncio.sleep(0.2)
        (client,) = set(find_children(os.getpid())) - before
        os.kill(client, signal.SIGKILL)
        with pytest.raises(SandboxError, match="connection"):
            await running
        await box.close()
        again = await fleet.create(SPEC)
        assert (await again.exec("echo on")).stdout == b"on\n"
        await fleet.close()
        for _ in range(2000):  # what ran over there ends by itself
            if not [p for p in Path("/proc").glob("[1-9]*/cmdline") if f"630.{OURS}".encode() in _bytes(p)]:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the command is still running")

    await work()


async def test_one_dead_host_of_two_costs_no_slot_and_is_named(ssh_fleet):
    told: list[str] = []
    fleet = ssh_fleet(hosts=("127.0.0.2", "127.0.0.1"), slots=2)  # only the second one's key is known
    fleet._backend.tell = told.append

    async def work(number: int) -> bytes:
        box = await fleet.create(SPEC)
        try:
            return (await box.exec(f"echo {number}")).stdout
        finally:
            await box.close()

    async with asyncio.timeout(120):
        assert await asyncio.gather(*map(work, range(6))) == [b"%d\n" % n for n in range(6)]
    assert len(told) == 1, "once, not for every slot"
    assert told[0].startswith("host '127.0.0.2' runs no slots: ") and told[0].endswith("slots go to the other hosts")
    await fleet.close()


def test_a_host_that_failed_is_left_out_until_others_cannot_help():
    backend = Ssh(SshSettings(hosts=("a", "b", "c")))
    told: list[str] = []
    backend.tell = told.append
    assert backend._choose_host({}) == "a"
    backend._rest("a", SandboxError("host 'a' runs no slots: refused"))
    backend._rest("a", SandboxError("host 'a' runs no slots: refused"))
    assert [backend._choose_host(tried) for tried in ({}, {"b": SandboxError("x")})] == ["b", "c"]
    backend._used.update(["b", "c"])
    assert backend._choose_host({}) is None, "slots wait for the hosts that work"
    backend._used.subtract(["b", "c"])
    backend._rest("b", SandboxError("host 'b' runs no slots: refused"))
    backend._rest("c", SandboxError("host 'c' runs no slots: refused"))
    assert backend._choose_host({}) == "a", "nothing else is left"
    assert len(told) == 3


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_the_command_line():
    settings = SshSettings(hosts=("h",), port=7, user="u", key_file="/k e y", known_hosts="/kh", python="py'3")
    command = build_ssh_command(settings, "h")
    assert command[0] == "ssh"
    for pair in (("-p", "7"), ("-l", "u"), ("-i", "/k e y"), ("-o", "StrictHostKeyChecking=yes")):
        assert pair in pairwise(command)
    assert command[-3:-1] == ["--", "h"]
    assert command[-1].startswith("exec 'py'\"'\"'3' -I -c ")
    assert "\n" not in command[-1]
