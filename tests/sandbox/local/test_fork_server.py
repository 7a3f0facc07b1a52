"""What the fork server does in namespaces, seen from the host. Its requests are tested in `test_fork_client.py`."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.sandbox_kit import OURS, find_inner_pid

from ludus.sandbox import SandboxSpec
from ludus.sandbox.processes import find_children, find_descendants, is_dead
from ludus.sandbox.profiles import open_pool
from ludus.sandbox.shell_sandbox import ShellSandbox


def find_init() -> int:
    """Find the init of the only slot: the first process of the agent's pid namespace."""
    processes = find_descendants(find_children(os.getpid()))
    found = [pid for pid in processes if _read_name(pid) == "init" and find_inner_pid(pid) == 1]
    assert len(found) == 1
    return found[0]


def _read_name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


async def wait_for_init() -> int:
    """The init may still be about to run its program when the first shell is ready."""
    while True:
        try:
            return find_init()
        except (AssertionError, FileNotFoundError):
            await asyncio.sleep(0.001)


async def test_the_agent_sees_its_own_processes_and_an_init_alone(bwrap, in_box):
    async with in_box(bwrap) as box:
        await wait_for_init()
        seen = await box.exec("for p in /proc/[0-9]*; do echo ${p#/proc/} $(<$p/comm); done")
        assert seen.stdout == b"1 init\n2 bash\n"
        assert (await box.exec("ls /proc/1/fd")).exit_code != 0
        assert (await box.exec("echo 0 >/proc/self/oom_score_adj")).exit_code != 0
        assert (await box.exec("cat /proc/self/oom_score_adj")).stdout == b"500\n"


async def test_settling_replaces_the_namespace_and_spares_the_keeper(bwrap, in_box):
    async with in_box(bwrap) as box:
        assert isinstance(box, ShellSandbox)
        keeper, before = box.first_process, await wait_for_init()
        await box.exec("echo x >f; sleep 625.5 & setsid sleep 625.5 &")
        await box.settle()
        assert is_dead(before)
        assert (await wait_for_init() != before, box.first_process) == (True, keeper)
        assert (await box.exec("cat f; set -- /proc/[0-9]*; echo $#")).stdout == b"x\n2\n"  # init and shell


async def test_an_init_that_is_killed_costs_the_processes_and_not_the_slot(bwrap, in_box):
    """As by the kernel, when it is out of memory."""

    async with in_box(bwrap) as box:
        running = asyncio.create_task(box.exec(f"echo x >f; sleep 626.{OURS}"))
        while _count_sleepers(f"626.{OURS}") == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        os.kill(await wait_for_init(), signal.SIGKILL)
        assert (await running).exit_code == 137
        assert (await box.exec("cat f")).stdout == b"x\n"
        assert _count_sleepers(f"626.{OURS}") == 0


def _count_sleepers(seconds: str) -> int:
    return sum(f"sleep\0{seconds}\0".encode() == _read_line(path) for path in Path("/proc").glob("[1-9]*/cmdline"))


def _read_line(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_zombies_do_not_gather(bwrap, in_box):
    async with in_box(bwrap) as box:
        await box.exec("for i in {1..50}; do (sleep 0.01 &) ; done; sleep 0.3")
        assert (await box.exec("cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '")).stdout == b"0\n"


async def test_a_fork_server_that_is_killed_takes_the_agents_with_it(bwrap):
    async with open_pool(bwrap) as pool:
        async with pool.lease(SandboxSpec()) as box:
            await box.exec(f"sleep 627.{OURS} &")
            init = await wait_for_init()
            server = next(pid for pid in find_children(os.getpid()) if init in find_children(pid))
            os.kill(server, signal.SIGKILL)
            while not is_dead(init) or _count_sleepers(f"627.{OURS}"):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            with pytest.raises(Exception, match="ended"):
                await box.exec("true")
        async with pool.lease(SandboxSpec()) as box:  # a new slot gets a new server
            assert (await box.exec("echo on")).stdout == b"on\n"


@pytest.mark.parametrize("folder", ["/tmp", "/workspace", "/home/agent", "/dev/shm"])
async def test_the_number_of_files_is_limited(bwrap, in_box, folder):
    async with in_box(bwrap, SandboxSpec(disk_mb=1)) as box:
        free = await box.exec(f"stat -f -c %c {folder}")
        assert int(free.stdout) == 1024 * (64 if folder == "/dev/shm" else 1)
