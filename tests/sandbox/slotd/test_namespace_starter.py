"""The processes of a slot in namespaces of its own."""

import os
import re
import signal
from pathlib import Path

import pytest
from tests.sandbox_kit import find_inner_pid
from tests.slotd_kit import needs_python, open_boxes, start_slotd, wait_gone

from ludus.sandbox.processes import find_children

pytestmark = needs_python


def find_init(slotd: int) -> int:
    (init,) = (pid for pid in find_children(slotd) if find_inner_pid(pid) == 1)
    return init


async def test_a_slot_is_an_init_and_a_shell_which_are_children_of_slotd():
    async with start_slotd() as (link, info):
        await open_boxes(link, info)
        children = find_children(link._channel.pid)
        assert sorted(map(find_inner_pid, children)) == [1, 2]
        if os.geteuid() == 0:
            assert {Path(f"/proc/{pid}").stat().st_uid >= 0x7000_0000 for pid in children} == {True}


async def test_init_has_no_channel_no_rights_and_no_open_memory():
    async with start_slotd() as (link, info):
        (box,) = await open_boxes(link, info)
        init = find_init(link._channel.pid)
        kinds = sorted(str(path.readlink()) for path in Path(f"/proc/{init}/fd").iterdir())
        assert [kind.partition(":")[0] for kind in kinds] == ["/dev/null"] * 3 + ["pipe"]
        status = Path(f"/proc/{init}/status").read_text()
        assert re.findall(r"Cap(?:Prm|Eff|Bnd):\s+(\w+)", status) == ["0" * 16] * 3
        seen = await box.exec("ls /proc/1/fd; cat /proc/1/environ /proc/1/maps; kill -9 1; kill -STOP 1; echo on")
        assert seen.stdout == b"on\n"


async def test_settling_replaces_init_and_ends_everything_that_was_in_its_namespace():
    async with start_slotd() as (link, info):
        (box,) = await open_boxes(link, info)
        before = find_init(link._channel.pid)
        await box.exec("echo kept >/tmp/file; (setsid sleep 640.5 &) ; trap '' TERM; export X=1")
        await box.settle()
        after = find_init(link._channel.pid)
        assert before != after
        assert not Path(f"/proc/{before}").exists()
        result = await box.exec("cat /tmp/file; echo [$X]; echo /proc/[0-9]*")  # no process of the count's own
        assert result.stdout == b"kept\n[]\n/proc/1 /proc/2\n"


async def test_a_slot_whose_init_was_killed_goes_on_with_a_new_one():
    async with start_slotd() as (link, info):
        (box,) = await open_boxes(link, info)
        await box.exec("echo kept >/tmp/file")
        init = find_init(link._channel.pid)
        os.kill(init, signal.SIGKILL)
        await wait_gone(init)  # it ends after all that is in its namespace, so the shell cannot answer any more
        await box.exec("true")
        assert (await box.exec("cat /tmp/file")).stdout == b"kept\n"


async def test_when_slotd_is_killed_its_slots_end():
    async with start_slotd() as (link, info):
        (box,) = await open_boxes(link, info)
        await box.exec("setsid sleep 641.5 &")
        processes = find_children(link._channel.pid)
        os.kill(link._channel.pid, signal.SIGKILL)
        for pid in processes:
            await wait_gone(pid)


async def test_a_slot_has_no_privileges_and_can_gain_none():
    async with start_slotd() as (link, info):
        (box,) = await open_boxes(link, info)
        status = (await box.exec("grep -E '^(Cap(Prm|Eff|Bnd)|NoNewPrivs|Seccomp):' /proc/self/status")).stdout.decode()
        assert re.findall(r"Cap\w+:\s+(\w+)", status) == ["0" * 16] * 3
        assert "NoNewPrivs:\t1" in status
        assert "Seccomp:\t2" in status
        for attempt in (
            "unshare -U true",
            "mount -t tmpfs none /tmp",
            "chroot / true",
            "touch /usr/x",
            "touch /etc/x",
            "echo 0 >/proc/self/oom_score_adj",
        ):
            assert (await box.exec(attempt)).exit_code != 0, attempt
        # Of the host, only its programs are visible.
        seen = (await box.exec("ls -A /; ls -A /home /root /var/lib /srv 2>&1")).stdout.decode()
        assert "agent" in seen
        assert "root" not in seen.split("\n")[:20]
        assert (await box.exec("id -un; whoami; hostname")).stdout == b"agent\nagent\nludus\n"


@pytest.mark.parametrize("view", ["system", "image"])
async def test_slotds_folder_is_hidden(view):
    async with start_slotd(view=view) as (link, info):
        (box,) = await open_boxes(link, info)
        held = {str(path.readlink()) for path in Path(f"/proc/{link._channel.pid}/fd").iterdir()}
        (lock,) = (Path(path) for path in held if path.endswith("/lock"))
        folder = lock.parent
        assert (folder / "lib" / "ops.sh").exists()
        seen = await box.exec(f"ls -A {folder}; cat {folder}/lib/ops.sh")
        assert (seen.stdout, seen.exit_code) == (b"", 1)
