"""How slotd starts a slot's first process, and what isolates it."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.slotd_kit import needs_python, open_boxes, start_slotd

from ludus.sandbox.processes import find_children, find_inner_pid

FIND = """
import json, sys
from ludus.sandbox.slotd.first_process import find_starter

tried = []

def probe(starter):
    tried.append([starter.isolation.level, starter.isolation.in_user_namespace, starter.isolation.own_users])
    return "" if len(tried) > int(sys.argv[1]) else f"problem {len(tried)}"

isolation = find_starter(as_root=sys.argv[2] == "root", probe=probe).isolation
print(json.dumps([tried, isolation.level, isolation.reason]))
"""


def find_starter(failing: int, *, as_root: bool = False) -> tuple[list[list[object]], str, str]:
    """Run `find_starter` with a probe that fails so many times. In a child: it changes what the process adopts."""
    command = [sys.executable, "-c", FIND, str(failing), "root" if as_root else ""]
    return tuple(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests do not run as root")
def test_the_best_isolation_that_works_is_used_and_the_reason_names_what_failed():
    tried, level, reason = find_starter(0)
    assert (tried, level, reason) == ([["namespaces", True, True]], "namespaces", "")
    tried, level, reason = find_starter(3)
    assert [first for first, _, _ in tried] == ["namespaces"] * 3 + ["user"]
    assert (level, reason) == ("user", "namespaces are not allowed here; problem 1; problem 2; problem 3")
    _, level, reason = find_starter(4)
    assert level == "none"
    assert reason.endswith("problem 4")


def test_slots_that_run_as_root_are_not_isolated():
    assert find_starter(0, as_root=True) == ([], "none", "slots run as root")


@needs_python
def test_the_first_process_is_a_child_of_slotd_and_pid_1_of_its_namespace():
    async def main() -> None:
        async with start_slotd() as (link, info):
            await open_boxes(link, info)
            (first,) = find_children(link._channel.pid)
            assert find_inner_pid(first) == 1
            if os.geteuid() == 0:
                assert Path(f"/proc/{first}").stat().st_uid >= 0x7000_0000  # noqa: ASYNC240

    asyncio.run(main())


@needs_python
def test_without_namespaces_processes_are_found_by_their_mark():
    async def main() -> None:
        async with start_slotd(as_root=True) as (link, info):
            assert (info.isolation, info.why) == ("none", "slots run as root")
            one, two = await open_boxes(link, info, 2)
            marks = [
                (await box.exec("echo $LUDUS_SLOT; setsid sleep 614.5 & echo $!")).stdout.split() for box in (one, two)
            ]
            assert marks[0][0] != marks[1][0]
            await one.settle()
            alive = [Path(f"/proc/{pid.decode()}").exists() for _, pid in marks]  # noqa: ASYNC240
            assert alive == [False, True]

    asyncio.run(main())


@needs_python
def test_a_slot_has_no_privileges_and_can_gain_none():
    async def main() -> None:
        async with start_slotd() as (link, info):
            (box,) = await open_boxes(link, info)
            status = (
                await box.exec("grep -E '^(Cap(Prm|Eff|Bnd)|NoNewPrivs|Seccomp):' /proc/self/status")
            ).stdout.decode()
            assert re.findall(r"Cap\w+:\s+(\w+)", status) == ["0" * 16] * 3
            assert "NoNewPrivs:\t1" in status
            assert "Seccomp:\t2" in status
            for attempt in (
                "unshare -U true",
                "mount -t tmpfs none /tmp",
                "chroot / true",
                "touch /usr/x",
                "touch /etc/x",
            ):
                assert (await box.exec(attempt)).exit_code != 0, attempt
            # Of the host, only its programs are visible.
            seen = (await box.exec("ls -A /; ls -A /home /root /var/lib /srv 2>&1")).stdout.decode()
            assert "agent" in seen
            assert "root" not in seen.split("\n")[:20]
            assert (await box.exec("id -un; whoami; hostname")).stdout == b"agent\nagent\nludus\n"

    asyncio.run(main())
