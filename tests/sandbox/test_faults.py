"""Faults during a rollout: that rollout fails clearly and gets no score, the pool goes on, and nothing leaks.

Each fault is real where that is possible: slots are killed, a disk of the host is filled, a control group runs out of
processes. Faults of remote backends are tested in `remote/`, a killed driver with 64 slots in `test_escape.py`, the
bookkeeping of the pool in `test_pool.py` and `test_pool_holds.py`.
"""

import ast
import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.sandbox_kit import make_pool

import ludus.sandbox
from ludus.engine import run_many
from ludus.env import Env
from ludus.errors import SandboxError
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner, RunOptions
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.local.bwrap import Bwrap
from ludus.sandbox.pool import Pool
from ludus.sandbox.processes import find_children
from ludus.tools import Tool, tool
from ludus.types import Rollout, Score, Task

SPEC = SandboxSpec(disk_mb=16)
TASK = Task(id="t", prompt="write", answer="x")


class Write(Env, frozen=True):
    """Write a file. Every fault comes from outside."""

    name: ClassVar[str] = "write"
    sandbox: ClassVar[SandboxSpec | None] = SPEC

    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
        assert box is not None

        @tool
        async def shell(command: str) -> str:
            return (await box.exec(command)).text

        return [shell]

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        return Score.of(float(await box.read("f") == b"x\n"))


def policy(command: str) -> Policy:
    return Policy(ScriptedModel([call("shell", command=command), say("done")]))


async def rollout(pool: Pool, command: str = "echo x > f") -> Rollout:
    return await run(Job(TASK, policy(command)), Runner(Write(), pool))


def assert_failed(done: Rollout, *words: str) -> None:
    assert done.score is None, "a failure is not a zero"
    assert done.failure is not None
    assert done.failure.boundary == "sandbox"
    assert all(word in done.failure.message for word in words), done.failure.message


async def assert_recovered(pool: Pool) -> None:
    """Check that the pool serves the next rollout and that the fault has left nothing behind."""
    done = await rollout(pool)
    assert done.score is not None, done.failure
    assert done.score.passed
    async with asyncio.timeout(100):
        while pool.metrics().live > pool.metrics().warm:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@asynccontextmanager
async def open_bwrap_pool(**options: Any) -> AsyncGenerator[Pool]:
    bwrap = Bwrap()
    try:
        async with asyncio.timeout(300), make_pool(bwrap.create, **options) as pool:
            yield pool
    finally:
        await bwrap.close()


# ---- slots --------------------------------------------------------------------------------------------------------


async def test_a_slot_that_is_killed_while_a_command_runs(bwrap):
    async with open_bwrap_pool() as pool:
        seconds = f"600.{os.getpid()}"  # unique to this test
        running = asyncio.create_task(rollout(pool, f"sleep {seconds}"))
        async with asyncio.timeout(100):
            while not _find_running(f"sleep\x00{seconds}\x00"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for pid in _find_first_processes():
                os.kill(pid, signal.SIGKILL)
            assert_failed(await running)
            while _find_running(f"sleep\x00{seconds}\x00"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await assert_recovered(pool)


def _find_running(line: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[1-9]*/cmdline"):
        try:
            found += [int(path.parent.name)] if path.read_text() == line else []
        except (OSError, UnicodeDecodeError):
            continue
    return found


def _find_first_processes() -> list[int]:
    """Find the first process of every slot of this driver: bubblewrap's only child. The fork server's are others."""
    slots = [pid for pid in find_children(os.getpid()) if b"bwrap\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return [pid for slot in slots for pid in find_children(slot)]


async def test_a_slot_that_is_taken_back_while_its_rollout_runs(bwrap):
    async with open_bwrap_pool(lifetime_seconds=0.5) as pool:
        assert_failed(await rollout(pool, "sleep 600"))
        assert pool.metrics().expired == 1
    async with open_bwrap_pool() as pool:
        await assert_recovered(pool)


async def test_a_slot_that_was_taken_back_is_reported_to_its_holder(bwrap):
    async with open_bwrap_pool(lease_seconds=0.2) as pool:
        box = await pool.acquire("silent", SPEC)
        async with asyncio.timeout(100):
            while pool.metrics().live or not pool.metrics().expired:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        with pytest.raises(SandboxError):
            await box.exec("echo still here")
        with pytest.raises(SandboxError, match="holds no slot"):
            pool.heartbeat("silent")
        await assert_recovered(pool)


class Stuck:
    """A slot that neither resets nor closes."""

    spec, alive = SPEC, True

    async def reset(self) -> None:
        await asyncio.Event().wait()

    close = reset


async def test_a_slot_that_hangs_in_reset_or_close_frees_its_place():
    made = 0

    async def create(spec: SandboxSpec) -> Any:
        nonlocal made
        made += 1
        return Stuck()

    async with asyncio.timeout(100):
        async with make_pool(create, max_slots=1, patience_seconds=0.05) as pool:
            await pool.acquire("a", SPEC)
            pool.release("a", reset=True)
            await pool.acquire("b", SPEC)
            assert (made, pool.metrics().broken) == (2, 1)
        assert pool.metrics().lost == 2


async def test_a_rollout_that_gets_no_slot_in_time(bwrap, pass_time):
    async with open_bwrap_pool(max_slots=1, acquire_seconds=100) as pool:
        async with pool.lease(SPEC):
            waiting = asyncio.create_task(rollout(pool))
            while not pool.metrics().waiting:  # noqa: ASYNC110
                await asyncio.sleep(0)
            pass_time(110)
            assert_failed(await waiting, "no slot within 100 s", "1 of 1 slots are leased")
        await assert_recovered(pool)


# ---- the host -----------------------------------------------------------------------------------------------------


async def test_more_rollouts_than_slots_and_a_backend_that_fails_at_times(bwrap):
    """Some slots cannot be made. Their rollouts are run again, and all get a score."""

    async def main() -> None:
        tries = 0

        async def create(spec: SandboxSpec) -> Sandbox:
            nonlocal tries
            tries += 1
            if tries in (2, 3, 5, 8, 13):
                raise SandboxError("the backend is down")
            return await bwrap.create(spec)

        bwrap, done = Bwrap(), []
        try:
            async with asyncio.timeout(300), make_pool(create, max_slots=3) as pool:
                jobs = [Job(TASK, policy("echo x > f"), number) for number in range(12)]
                options = RunOptions(6, 6)
                await run_many(
                    iter(jobs), Runner(Write(), pool, options=options), lambda _, rollout: done.append(rollout)
                )
        finally:
            await bwrap.close()
        assert len(done) == 12
        assert all(each.score is not None and each.score.passed for each in done), [each.failure for each in done]

    await main()


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
async def test_a_host_that_can_start_no_process(bwrap, monkeypatch, code):
    """The kernel is out of processes, memory or descriptors when a program is started."""
    real = subprocess.Popen

    async with open_bwrap_pool() as pool:
        await assert_recovered(pool)
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", _make_refusing(code))
            assert_failed(await rollout(pool), os.strerror(code))
        assert subprocess.Popen is real
        await assert_recovered(pool)


def _make_refusing(code: int) -> Any:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


FULL = """
import asyncio, errno, os, sys, tempfile
from pathlib import Path
from ludus.errors import SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.pool import PoolSettings
from ludus.sandbox.profiles import open_pool

tempfile.tempdir = sys.argv[1]
filler = Path(sys.argv[1]) / "filler"

async def main():
    async with open_pool("bwrap", PoolSettings(max_slots=2)) as pool:
        async with pool.lease(SandboxSpec(disk_mb=8)) as box:
            await box.exec("echo kept > f")
            with filler.open("wb", 0) as file:  # without a buffer, which could not be written when it is closed
                try:
                    while True:
                        file.write(b"x" * 65536)
                except OSError as error:
                    assert error.errno == errno.ENOSPC
            try:
                await box.exec("cat", stdin=b"y" * 300000)
                raise AssertionError("the disk is full")
            except SandboxError as error:
                print("error:", error)
            filler.unlink()
            done = await box.exec("cat f; wc -c", stdin=b"y" * 300000)
            print("after:", done.text.split())
    print("left:", os.listdir(sys.argv[1]))

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small disk")
def test_a_full_disk_of_the_host_is_reported_and_the_slot_goes_on(bwrap, tmp_path):
    disk = Path("/tmp") / f"ludus-full-{os.getpid()}"
    disk.mkdir(mode=0o755)
    script = f"mount -t tmpfs -o size=8m,mode=755 none {disk} && exec {sys.executable} -c '{FULL}' {disk}"
    try:
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=300, check=False
        )
    finally:
        disk.rmdir()
    assert done.returncode == 0, done.stderr
    error, after, left = done.stdout.splitlines()
    assert "No space left on device" in error
    assert after == "after: ['kept', '300000']"
    assert left == "left: []"


CROWDED = """
import asyncio, os, sys
from ludus.errors import SandboxError
from ludus.sandbox import SandboxSpec, pace
from ludus.sandbox.local import bwrap
from ludus.sandbox.pool import PoolSettings
from ludus.sandbox.profiles import open_pool

bwrap._START_SECONDS = bwrap._END_SECONDS = 5.0  # a test cannot wait as long as
pace.LONGEST_PAUSE = 0.5  # the defaults do

async def main():
    group = sys.argv[1]
    async with open_pool("bwrap", PoolSettings(max_slots=40)) as pool:
        async with pool.lease(SandboxSpec(disk_mb=8)) as box:
            open(f"{group}/tasks", "w").write(str(os.getpid()))
            asked = (pool.acquire(str(n), SandboxSpec(disk_mb=8), timeout=15) for n in range(30))
            found = await asyncio.gather(*asked, return_exceptions=True)
            failed = [f for f in found if isinstance(f, BaseException)]
            assert failed and all(isinstance(f, SandboxError) for f in failed), found
            for n in range(30):
                pool.release(str(n))
            open(f"{group}/../tasks", "w").write(str(os.getpid()))
            print("first:", (await box.exec("echo on")).text.strip())
        while pool.metrics().paused or pool.metrics().live:
            await asyncio.sleep(0.05)
        async with pool.lease(SandboxSpec(disk_mb=8)) as box:
            print("next:", (await box.exec("echo on")).text.strip())

asyncio.run(main())
"""


@pytest.mark.skipif(not Path("/sys/fs/cgroup/pids/tasks").exists(), reason="needs the pids group of version 1")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a control group")
def test_a_host_out_of_processes_fails_new_slots_alone(bwrap):
    group = Path(f"/sys/fs/cgroup/pids/ludus-crowded-{os.getpid()}")
    group.mkdir()
    try:
        (group / "pids.max").write_text("24")
        done = subprocess.run(
            [sys.executable, "-c", CROWDED, str(group)], capture_output=True, text=True, timeout=300, check=False
        )
    finally:
        _remove_group(group)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["first: on", "next: on"]


def _remove_group(group: Path) -> None:
    until = time.monotonic() + 100
    while group.exists():
        try:
            group.rmdir()
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)


# ---- clocks -------------------------------------------------------------------------------------------------------


def test_no_module_reads_a_clock_that_can_jump():
    folder = Path(ludus.sandbox.__file__).parent
    jumping = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime"}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in jumping:
                owner = ast.unparse(node.func.value)
                assert owner not in ("time", "datetime", "datetime.datetime", "date"), f"{path.name}: {owner}"


async def test_a_clock_that_jumps_changes_nothing(bwrap, monkeypatch):
    jumps = iter([0.0, 1e9, -1e9] * 100_000)
    real = time.time

    async with open_bwrap_pool(lease_seconds=300.0, lifetime_seconds=300.0, idle_seconds=300.0) as pool:
        monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
        box = await pool.acquire("a", SPEC)
        done = await box.exec("sleep 0.2; echo ended", timeout=300)
        assert (done.text, done.timed_out) == ("ended\n", False)
        assert 0.1 < done.seconds < 300
        assert (await box.exec("sleep 60", timeout=0.3)).timed_out
        pool.heartbeat("a")
        pool.release("a")
        await assert_recovered(pool)
        assert pool.metrics().expired == 0
