"""Slots over a real sshd on loopback, with the real client."""

import asyncio
import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest
from tests.sandbox.remote.machinery import finish

from ludus.errors import SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.backend import Mount
from ludus.sandbox.processes import find_children
from ludus.sandbox.remote.ssh import SshSettings, build_ssh_command

SPEC = SandboxSpec(disk_mb=32)


def test_one_connection_serves_all_slots_and_leaves_nothing(ssh_fleet, tmp_path):
    async def work() -> None:
        (tmp_path / "f").write_text("shared")
        for part in (tmp_path, *list(tmp_path.parents)[:2]):
            part.chmod(0o755)
        before = set(find_children(os.getpid()))
        fleet = ssh_fleet(slots=6, mounts=(Mount(source=str(tmp_path), target="/cache"),), env={"FROM": "profile"})
        boxes = await asyncio.gather(*(fleet.create(SPEC) for _ in range(6)))
        assert len(set(find_children(os.getpid())) - before) == 1
        assert (
            await boxes[0].exec("cat /cache/f; echo $FROM; ls /root /home")
        ).stdout == b"sharedprofile\n/home:\nagent\n"
        seventh = asyncio.create_task(fleet.create(SPEC))
        await asyncio.sleep(0.1)
        assert not seventh.done(), "there is room for six"
        await boxes.pop().close()
        boxes.append(await seventh)
        await asyncio.gather(*(box.close() for box in boxes))
        assert (await (await fleet.create(SPEC)).exec("echo on")).stdout == b"on\n"
        await fleet.close()
        assert set(find_children(os.getpid())) == before

    finish(work)


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
def test_what_cannot_connect_says_why(ssh_fleet, change, words):
    async def work() -> None:
        fleet = ssh_fleet(**change)
        with pytest.raises(SandboxError, match=f"host '127.0.0.1' runs no slots: .*{words}"):
            await fleet.create(SPEC)
        await fleet.close()

    finish(work)


def test_a_killed_connection_fails_its_slots_and_the_next_slot_gets_another(ssh_fleet):
    async def work() -> None:
        fleet = ssh_fleet()
        before = set(find_children(os.getpid()))
        box = await fleet.create(SPEC)
        running = asyncio.create_task(box.exec("sleep 630.5"))
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
            if not [p for p in Path("/proc").glob("[1-9]*/cmdline") if b"630.5" in _bytes(p)]:  # noqa: ASYNC240
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the command is still running")

    finish(work)


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
