"""The processes of a slot without namespaces."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from tests.slotd_kit import PYTHON, needs_python, open_boxes, start_slotd

from ludus.sandbox.slotd import plain_starter
from ludus.sandbox.slotd.plain_starter import MARK, has_processes, kill_as_user, kill_marked

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the tests do not run as root")
USER, STRANGER = 0x6FFF_1000 + os.getpid(), 0x6FFE_1000 + os.getpid()


@needs_python
async def test_processes_are_found_by_their_mark():
    async with start_slotd(as_root=True) as (link, info):
        assert (info.isolation, info.why) == ("none", "slots run as root")
        one, two = await open_boxes(link, info, 2)
        marks = [
            (await box.exec("echo $LUDUS_SLOT; setsid sleep 614.5 & echo $!")).stdout.split() for box in (one, two)
        ]
        assert marks[0][0] != marks[1][0]
        await one.settle()
        alive = [Path(f"/proc/{pid.decode()}").exists() for _, pid in marks]
        assert alive == [False, True]


@needs_python
async def test_an_orphan_without_a_mark_ends_with_the_next_settle():
    async with start_slotd(as_root=True) as (link, info):
        one, two = await open_boxes(link, info, 2)
        pid = (await one.exec("(env -i setsid sleep 614.75 >/dev/null 2>&1 & echo $!)")).stdout.decode().strip()
        kept = (await two.exec("(setsid sleep 614.25 >/dev/null 2>&1 & echo $!)")).stdout.decode().strip()
        await one.settle()
        assert not Path(f"/proc/{pid}").exists()
        assert Path(f"/proc/{kept}").exists()


def start_as_user(program: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([PYTHON, "-c", program], user=USER, group=USER, stdout=subprocess.PIPE)


@needs_root
@needs_python
def test_all_processes_of_a_user_end_by_one_call_and_no_others():
    others = subprocess.Popen(["sleep", "642.5"])
    forking = "import os\nprint(flush=True)\nwhile True:\n    os.fork() and os._exit(0)"
    users = [start_as_user(forking) for _ in range(3)]
    users.append(start_as_user("import time\nprint(flush=True)\ntime.sleep(642.5)"))
    try:
        for process in users:
            assert process.stdout is not None
            process.stdout.readline()
        assert has_processes(USER)  # the idle one: those that fork may be missed
        child = os.fork()
        if child == 0:
            kill_as_user(USER, STRANGER)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        until = time.monotonic() + 60
        while has_processes(USER):
            assert time.monotonic() < until
        assert [process.stdout.read() for process in users if process.stdout] == [b""] * 4  # no chain holds its pipe
        assert others.poll() is None
    finally:
        others.kill()
        for process in (others, *users):
            process.communicate()


@needs_root
@needs_python
def test_the_user_cannot_signal_the_process_that_kills():
    hunter = start_as_user(
        "import os\nprint(flush=True)\nfor pid in range(2, 4_194_304):\n"
        "    try:\n        pid != os.getpid() and os.kill(pid, 9)\n    except OSError:\n        pass\n"
        "    if pid > 200_000:\n        break"
    )
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresuid(STRANGER, USER, STRANGER)
        time.sleep(60)
        os._exit(0)
    try:
        hunter.communicate(timeout=120)
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


@needs_root
@needs_python
def test_a_dead_process_that_was_not_reaped_does_not_count():
    process = start_as_user("pass")
    while Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "Z":
        time.sleep(0.005)
    assert not has_processes(USER)
    process.communicate()


def test_marked_processes_and_their_descendants_are_killed_until_none_is_left():
    process = subprocess.Popen(["bash", "-c", "sleep 643.5 & wait"], env={**os.environ, MARK: "here"})
    other = subprocess.Popen(["sleep", "643.5"], env={**os.environ, MARK: "there"})
    try:
        watched = frozenset({process.pid, other.pid, *plain_starter.find_children(os.getpid())})
        while kill_marked("here", (), watched, frozenset({"there"})):
            process.poll()
        assert process.wait() == -9
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
