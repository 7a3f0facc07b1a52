"""A slot with an image: the whole root of a container, of which the slot changes its own copy. Here that is the root of
this machine."""

import os
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.slotd_kit import find_folder, needs_python, open_boxes, start_slotd

from ludus.sandbox.remote.link import StdioLink
from ludus.sandbox.remote.remote_sandbox import RemoteSandbox
from ludus.sandbox.slotd.root_view import list_ranges

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="slotd is root in a container")


@pytest.mark.parametrize(
    ("known", "ranges"),
    [
        ("         0          0 4294967295\n", "0 0 65533\n65534 65534 2"),
        ("0 100000 65536\n", "0 0 65533\n65534 65534 2"),
        ("0 1000 1\n1 100000 5000\n", "0 0 1\n1 1 5000"),
    ],
)
def test_which_users_a_slot_knows(known: str, ranges: str):
    assert list_ranges(known) == ranges


@asynccontextmanager
async def in_slot(**spec: Any) -> AsyncGenerator[tuple[RemoteSandbox, StdioLink]]:
    async with start_slotd(view="root") as (link, info):
        assert info.isolation == "namespaces", info.why
        (box,) = await open_boxes(link, info, **spec)
        yield box, link


@needs_python
@needs_root
async def test_root_may_change_every_file_of_its_own_copy_and_nothing_else():
    async with in_slot() as (box, link):
        done = await box.exec("id -u; rm /etc/passwd; touch /usr/x; chown 7 /usr/x; stat -c %u /usr/x; ls /var/lib")
        assert done.stdout.startswith(b"0\n7\n")
        assert find_folder(link).name not in done.text
        assert (Path("/etc/passwd").exists(), Path("/usr/x").exists()) == (True, False)
        status = (await box.exec("cat /proc/self/status")).stdout.decode()
        assert re.findall(r"Cap(?:Prm|Eff|Bnd):\s+(\w+)", status) == ["00000000000000fb"] * 3
        assert "NoNewPrivs:\t1" in status
        assert "Seccomp:\t2" in status
        for attempt in (
            "mount -t tmpfs none /mnt",
            "mknod /x c 1 3",
            "unshare -U true",
            "chroot / true",
            "touch /run/ludus/lib/x",
            "echo 0 >/proc/self/oom_score_adj",
            "echo 1 >/proc/sys/vm/overcommit_memory",
            "cat /run/ludus/lib/bash",
            "cat /proc/1/environ",
            "readlink /proc/$$/fd/1",
        ):
            assert (await box.exec(attempt)).exit_code != 0, attempt


@needs_python
@needs_root
async def test_settle_reset_and_the_changes_of_a_slot():
    async with in_slot() as (box, _):
        await box.exec("mkdir /new; echo x >/new/x; rm -r /usr/share/doc; (setsid sleep 643.5 &)")
        await box.settle()
        assert (await box.exec("echo /proc/[0-9]*; cat /new/x")).stdout == b"/proc/1 /proc/2\nx\n"
        found = await box.exec(f"cd {box.changes_path}; find . -printf '%p %y\\n' | sort")
        assert found.stdout == b". d\n./new d\n./new/x f\n./usr d\n./usr/share d\n./usr/share/doc c\n"
        await box.reset()
        assert (await box.exec(f"find {box.changes_path} | wc -l; ls -d /new /usr/share/doc")).stdout == (
            b"1\n/usr/share/doc\n"
        )


@needs_python
@needs_root
async def test_the_disk_is_limited_and_low_ports_are_free():
    async with in_slot(disk_mb=8) as (box, _):
        assert b"No space left" in (await box.exec("head -c 20M /dev/zero >/big")).stderr
        listen = "import socket; socket.create_server(('127.0.0.1', 80)); print('listens')"
        assert (await box.exec(f'/usr/bin/python3 -c "{listen}"')).stdout == b"listens\n"
