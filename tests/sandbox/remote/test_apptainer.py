"""Slots of Apptainer, against a stand-in of its command line that really isolates."""

import asyncio
import os
from itertools import pairwise

import pytest

from ludus.errors import SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.backend import Mount
from ludus.sandbox.backend_settings import ApptainerSettings
from ludus.sandbox.processes import find_children
from ludus.sandbox.remote.apptainer import build_apptainer_command

SPEC = SandboxSpec(disk_mb=32)


async def test_slots_of_an_ordinary_user(apptainer_fleet, open_folder):
    (open_folder / "f").write_text("shared")
    before = set(find_children(os.getpid()))
    fleet = apptainer_fleet(env={"FROM": "profile"}, mounts=(Mount(source=str(open_folder), target="/cache"),))
    one, two = await asyncio.gather(*(fleet.create(SPEC) for _ in range(2)))
    assert fleet.list_servers()[0].info.isolation == "namespaces"
    seen = await one.exec("id -un; cat /cache/f; echo $FROM; env | grep -c APPTAINER; ls /proc | grep -c '^[0-9]'")
    assert seen.stdout.splitlines()[:3] == [b"agent", b"sharedprofile", b"0"]
    await one.exec("echo x >/tmp/f; sleep 640.5 &")
    assert (await two.exec("ls /tmp; pgrep -f 640.5 || echo none")).stdout == b"none\n"
    await fleet.close()
    assert set(find_children(os.getpid())) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": "/no/such/image.sif"}, "could not open image"),
        ({"command": "/no/such/apptainer"}, "did not start"),
        ({"python": "python9"}, "python9"),
        ({"arguments": ("--no-such-flag",)}, "unknown flag: --no-such-flag"),
    ],
)
async def test_what_cannot_start_says_why(apptainer_fleet, change, words):
    fleet = apptainer_fleet(**change)
    with pytest.raises(SandboxError, match=words):
        await fleet.create(SPEC)
    await fleet.close()


def test_the_command_line():
    settings = ApptainerSettings(
        image="docker://python:3.11", slots=2, cpus=1.5, gpus=True, fakeroot=True, limit_memory=True, arguments=("--x",)
    )
    command = build_apptainer_command(settings, SandboxSpec(memory_mb=100, disk_mb=10, processes=50))
    assert command[:2] == ["apptainer", "exec"]
    for flag in ("--containall", "--no-home", "--cleanenv", "--nv", "--fakeroot", "--x"):
        assert flag in command
    pairs = list(pairwise(command))
    assert ("--memory", f"{2 * (100 + 30 + 64) + 96}M") in pairs
    assert ("--pids-limit", "132") in pairs
    assert ("--cpus", "1.5") in pairs
    assert ("docker://python:3.11", "python3") in pairs
