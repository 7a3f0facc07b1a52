"""What a slot of a slotd sees of the file system."""

import os
from pathlib import Path

import pytest
from tests.slotd_kit import call, make_run, needs_python, start_slotd

from ludus.sandbox.slotd.frames import Frame
from ludus.sandbox.slotd.mount_view import _OWN, _SYSTEM

SPEC = {"network": False, "disk_mb": 8, "processes": 200, "memory_mb": 0, "env": {}, "mounts": []}

pytestmark = needs_python


async def run_in_view(
    view: str, *commands: str, mounts: tuple[tuple[str, str], ...] = (), folders: tuple[str, ...] = ()
) -> list[str]:
    """The output of commands in a slot with that view."""

    async def main() -> list[Frame]:
        async with start_slotd(view=view) as (link, info):
            if info.isolation != "namespaces":
                pytest.skip(f"no namespaces: {info.why}")
            await call(link, {"op": "open", "slot": "a", "spec": {**SPEC, "mounts": mounts, "folders": folders}})
            return [await call(link, *make_run("a", f"e{n}", c.encode())) for n, c in enumerate(commands)]

    return [reply.body.decode() for reply in await main()]


async def test_the_system_view_shows_only_folders_with_programs():
    (listing,) = await run_in_view("system", "ls -A /")
    names = set(listing.split())
    assert names <= {*_SYSTEM, *_OWN, "var"} - {"sys"}
    assert {"usr", "etc", "proc", "dev", "tmp", "run", "home", "workspace"} <= names


async def test_the_image_view_shows_everything_read_only():
    names, touched = await run_in_view("image", "ls -A /", "touch /usr/x /etc/x /x 2>&1; echo $?")
    expected = {path.name for path in Path("/").iterdir() if os.path.lexists(path)} - {*_OWN}
    assert expected <= set(names.splitlines())
    assert touched.count("Read-only file system") == 3


async def test_own_folders_are_writable_and_of_limited_size():
    sizes, users, shared, devices = await run_in_view(
        "system",
        "df --output=size -m /workspace /tmp ~ | tail -n +2",
        "stat -c %U:%a /workspace /tmp ~",
        "echo x >/var/tmp/file; cat /tmp/file",
        "ls /dev; ls /proc | grep -c '^[0-9]'",
    )
    assert sizes.split() == ["8", "8", "8"]
    assert users.split() == ["agent:755", "root:1777", "agent:700"] or users.split()[0] == "agent:755"
    assert shared == "x\n"
    listed = set(devices.split())
    assert {"null", "zero", "random", "urandom", "shm", "fd"} <= listed
    assert not listed & {"mem", "kmsg", "sda", "kvm", "fuse"}


async def test_more_folders_are_shown_read_only(open_folder):
    (open_folder / "file").write_text("cached")
    commands = ("cat /srv/cache/file", "touch /srv/cache/x 2>&1")
    content, failed = await run_in_view("system", *commands, mounts=((str(open_folder), "/srv/cache"),))
    assert content == "cached"
    assert "Read-only file system" in failed


@pytest.mark.parametrize("view", ["system", "image"])
async def test_further_folders_can_be_written_to(view):
    commands = ("mkdir -p /data/cache && echo x > /data/cache/f; cat /data/cache/f", "stat -c %U /data")
    content, owner = await run_in_view(view, *commands, folders=("/data",))
    assert (content, owner) == ("x\n", "agent\n")
