"""Measure `echo hi` in a bwrap slot through the public API, and compare it with other ways to run a command.

Example:
    python bench/exec.py                 slots of Ludus, a plain subprocess, and one bubblewrap per call
    python bench/exec.py --peers         also SWE-ReX and mini-swe-agent, installed on first use
    python bench/exec.py --calls 5000

Calls run one after the other. The exit code is 1 when a target is missed. Targets: exec p50 0.3 ms and p99 5 ms, slot
creation p50 30 ms, lease from a warm pool p50 1 ms.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from common import CACHE, Check, CommandFailed, describe_machine, find_venv, make_venv, print_verdict, render_table

from ludus.sandbox import SandboxSpec
from ludus.sandbox.local.bwrap import find_bwraps
from ludus.sandbox.pool import Pool, PoolSettings
from ludus.sandbox.profiles import open_pool

COMMAND = "echo hi"
SWE_REX = """
import asyncio, json, sys, time
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime

async def main():
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest())
    times = []
    for _ in range(int(sys.argv[1])):
        before = time.perf_counter()
        answer = await runtime.run_in_session(BashAction(command="echo hi"))
        times.append(1000 * (time.perf_counter() - before))
        assert answer.output.strip() == "hi"
    await runtime.close()
    print(json.dumps(times))

asyncio.run(main())
"""
MINI = """
import json, os, shutil, sys, time
os.environ["MSWEA_SILENT_STARTUP"] = "1"
from minisweagent.environments.extra.bubblewrap import BubblewrapEnvironment

environment = BubblewrapEnvironment(executable=sys.argv[2])
times = []
for _ in range(int(sys.argv[1])):
    before = time.perf_counter()
    answer = environment.execute({"command": "echo hi"})
    times.append(1000 * (time.perf_counter() - before))
    assert answer["output"].strip() == "hi", answer
shutil.rmtree(environment.working_dir, ignore_errors=True)
print(json.dumps(times))
"""


@dataclass(frozen=True)
class Peer:
    """Another system, its virtual environment, and a program that prints its times as JSON."""

    way: str
    folder: str
    requirements: tuple[str, ...]
    program: str
    calls: int


PEERS = (
    Peer("SWE-ReX: a local session", "swerex", ("swe-rex==1.4.0",), SWE_REX, 30),
    Peer("mini-swe-agent: its bubblewrap", "mini-swe-agent", ("mini-swe-agent", "mcp"), MINI, 100),
)


@dataclass(frozen=True)
class Row:
    """The times of one way to run a command, in milliseconds."""

    way: str
    calls: int
    p50: float
    p99: float
    cpu: float | None
    """CPU time of the driver per call, without that of the command."""


def compute_quantile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


def make_row(way: str, times: list[float], cpu: float | None = None) -> Row:
    return Row(way, len(times), compute_quantile(times, 0.5), compute_quantile(times, 0.99), cpu)


async def time_calls(way: str, call: Callable[[], Awaitable[object]], calls: int, warm_up: int = 0) -> Row:
    for _ in range(warm_up):
        await call()
    times: list[float] = []
    cpu = time.process_time()
    for _ in range(calls):
        before = time.perf_counter()
        await call()
        times.append(1000 * (time.perf_counter() - before))
    return make_row(way, times, 1000 * (time.process_time() - cpu) / calls)


# ---- ours ---------------------------------------------------------------------------------------------------------


async def bench_exec(pool: Pool, spec: SandboxSpec, calls: int) -> Row:
    async with pool.lease(spec) as box:

        async def call() -> None:
            assert (await box.exec(COMMAND)).stdout == b"hi\n"

        return await time_calls("ludus: exec in a slot", call, calls, warm_up=100)


async def bench_create(pool: Pool, spec: SandboxSpec, slots: int) -> Row:
    """Measure the time until a cold pool has a slot ready. Slots are created one at a time and kept."""
    async with AsyncExitStack() as leases:
        return await time_calls("ludus: create a slot", lambda: leases.enter_async_context(pool.lease(spec)), slots)


async def bench_warm_lease(spec: SandboxSpec, leases: int) -> Row:
    times: list[float] = []
    async with open_pool("bwrap", PoolSettings(max_slots=8, warm=2)) as pool:
        async with pool.lease(spec):
            pass
        for _ in range(leases):
            while pool.metrics().warm < 2:  # noqa: ASYNC110  # the refill is not measured
                await asyncio.sleep(0.005)
            before = time.perf_counter()
            async with pool.lease(spec):
                times.append(1000 * (time.perf_counter() - before))
    return make_row("ludus: lease from a warm pool", times)


# ---- others -------------------------------------------------------------------------------------------------------


async def bench_subprocess(calls: int) -> Row:
    async def call() -> None:
        done = subprocess.run(["bash", "-c", COMMAND], capture_output=True, check=True)  # noqa: ASYNC221
        assert done.stdout == b"hi\n"

    return await time_calls("a subprocess per call", call, calls)


async def bench_bwrap_per_call(calls: int) -> Row:
    command = [
        *(
            str(find_bwraps()[0]),
            "--unshare-all",
            "--die-with-parent",
            "--ro-bind",
            "/usr",
            "/usr",
            *bind_system_folders(),
        ),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "bash", "-c", COMMAND),
    ]

    async def call() -> None:
        assert subprocess.run(command, capture_output=True, check=True).stdout == b"hi\n"  # noqa: ASYNC221

    return await time_calls("a bubblewrap per call", call, calls)


def bind_system_folders() -> list[str]:
    words: list[str] = []
    for path in (Path("/bin"), Path("/lib"), Path("/lib64")):
        words += (
            ("--symlink", str(path.readlink()), str(path)) if path.is_symlink() else ("--ro-bind", *[str(path)] * 2)
        )
    return words


def bench_peer(peer: Peer, install: bool) -> Row | str:
    """Measure a peer. Returns its figures, or the reason why there are none."""
    home = CACHE / peer.folder
    try:
        python = make_venv(home, peer.requirements) if install else find_venv(home, peer.requirements)
    except CommandFailed as error:
        return f"skipped: {error}"
    if python is None:
        return "skipped: not installed; run with --peers to install it"
    command = [python, "-c", peer.program, str(peer.calls), str(find_bwraps()[0])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return f"skipped: its program failed: {done.stderr.strip().splitlines()[-1:]}"
    return make_row(peer.way, json.loads(done.stdout.splitlines()[-1]))


# ---- report -------------------------------------------------------------------------------------------------------


async def measure(calls: int, slots: int) -> list[Row]:
    spec = SandboxSpec()
    async with open_pool("bwrap", PoolSettings(max_slots=slots + 1)) as pool:
        ours = [await bench_exec(pool, spec, calls), await bench_create(pool, spec, slots)]
    ours.append(await bench_warm_lease(spec, slots))
    return [*ours, await bench_subprocess(200), await bench_bwrap_per_call(100)]


def print_table(rows: list[Row]) -> None:
    print(describe_machine())
    figures = [(r.way, r.calls, r.p50, r.p99, "" if r.cpu is None else r.cpu) for r in rows]
    print(render_table([(f"`{COMMAND}`", "calls", "p50 ms", "p99 ms", "driver CPU ms"), *figures]))


def judge(rows: list[Row]) -> int:
    run, create, lease, *others = rows
    checks = [
        Check("exec p50", run.p50, 0.3, "ms"),
        Check("exec p99", run.p99, 5, "ms"),
        Check("create p50", create.p50, 30, "ms"),
        Check("warm lease p50", lease.p50, 1, "ms"),
    ]
    return print_verdict(
        "exec", checks, notes=[f"{other.p50 / run.p50:.0f} x faster than {other.way}" for other in others]
    )


def main() -> int:
    lines = (__doc__ or "").split("\n", 2)
    parser = argparse.ArgumentParser(
        description=lines[0], epilog=lines[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=2000, help="calls of exec to measure (default 2000)")
    parser.add_argument("--slots", type=int, default=50, help="slots to create, and warm leases to take (default 50)")
    parser.add_argument("--peers", action="store_true", help="install missing peers and measure them")
    arguments = parser.parse_args()
    rows = asyncio.run(measure(arguments.calls, arguments.slots))
    found = {peer.way: bench_peer(peer, arguments.peers) for peer in PEERS}
    rows += [each for each in found.values() if isinstance(each, Row)]
    print_table(rows)
    for way, why in found.items():
        if isinstance(why, str):
            print(f"{way}: {why}")
    return judge(rows)


if __name__ == "__main__":
    sys.exit(main())
