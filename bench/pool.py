"""Measure how fast slots are reset, forked and leased, and how many slots a machine can hold.

    python bench/pool.py                # a base of 50,000 files and 1 GB; 256 slots at once; up to 1,000 slots
    python bench/pool.py --quick        # a small base and few slots, as a test of the script
    python bench/pool.py --slots 400    # at most 400 slots, for a small machine

exchange replace a used slot by a fresh one, in a pool with one warm slot; this is how `verify` gets a fresh slot
reset    restore a slot whose /workspace is the base, after some files were changed
fork     take a snapshot of such a slot and start another slot from it
acquire  get a slot from a warm pool
storm    request many slots at once from a cold pool
memory   the largest drop of available memory per slot while more and more idle slots are held; and the memory of their
         processes as the kernel counts it (PSS), which other programs do not affect
busy     64 slots that compute at once, several commands each, compared with as many plain bash processes that do the
         same work, each in its own session like a slot; both run in turns, and the median of three ratios is reported
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles

from common import Check, describe_machine, print_verdict, render_table

from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.pool import Pool, PoolSettings
from ludus.sandbox.processes import find_descendants
from ludus.sandbox.profiles import open_pool

COMMANDS = 5
"""Commands that each busy slot runs."""
WORK = "i=0; while ((i < {})); do ((i++)); done"
CHANGE = "echo x >>d1/f1; rm -r d2; mkdir d2; touch new{1..20}"


@dataclass(frozen=True)
class Size:
    files: int
    bytes: int
    storm: int
    held: int
    times: int
    busy: int
    loops: int


FULL = Size(files=50_000, bytes=2**30, storm=256, held=1000, times=30, busy=64, loops=40_000)
QUICK = Size(files=500, bytes=2**22, storm=16, held=16, times=5, busy=8, loops=4_000)


def make_base(folder: Path, size: Size) -> None:
    folder.chmod(0o755)
    block = os.urandom(size.bytes // size.files)
    for number in range(size.files):
        below = folder / f"d{number % 500}"
        below.mkdir(exist_ok=True)
        (below / f"f{number}").write_bytes(block)


async def time_calls(times: int, work: Callable[[], Awaitable[object]]) -> list[float]:
    found: list[float] = []
    for _ in range(times):
        before = time.perf_counter()
        await work()
        found.append(1000 * (time.perf_counter() - before))
    return found


async def bench_reset(pool: Pool, spec: SandboxSpec, times: int) -> list[float]:
    found: list[float] = []
    async with pool.lease(spec) as box:
        for _ in range(times):
            await _change_files(box)
            found += await time_calls(1, box.reset)
    return found


async def bench_fork(pool: Pool, spec: SandboxSpec, times: int) -> list[float]:
    async with pool.lease(spec) as box, AsyncExitStack() as forks:
        await _change_files(box)

        async def fork() -> None:
            await forks.enter_async_context(pool.lease(await pool.snapshot(box)))

        return await time_calls(times, fork)


async def _change_files(box: Sandbox) -> None:
    done = await box.exec(CHANGE)
    assert done.exit_code == 0, done.text


async def bench_acquire(times: int) -> list[float]:
    found: list[float] = []
    async with open_pool("bwrap", PoolSettings(max_slots=8, warm=2)) as pool:
        for number in range(times + 1):
            before = time.perf_counter()
            await pool.acquire(str(number))
            found.append(1000 * (time.perf_counter() - before))
            pool.release(str(number))
            while pool.metrics().warm < 2:  # noqa: ASYNC110  # the refill is not measured
                await asyncio.sleep(0.005)
    return found[1:]


async def bench_exchange(times: int) -> list[float]:
    """Measure the exchange of a used slot for a fresh one, in a pool with one warm slot."""
    found: list[float] = []
    async with open_pool("bwrap", PoolSettings(max_slots=4, warm=1)) as pool:
        for number in range(times + 1):
            async with pool.lease(SandboxSpec()) as box:
                while pool.metrics().warm < 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
                before = time.perf_counter()
                async with pool.exchange(box):
                    found += [1000 * (time.perf_counter() - before)] if number else []
    return found


async def bench_storm(slots: int) -> tuple[float, int]:
    """Request slots all at once. Returns the seconds until all are ready, and how many failed."""
    async with open_pool("bwrap", PoolSettings(max_slots=slots)) as pool:
        before = time.perf_counter()
        requests = (pool.acquire(str(n), SandboxSpec(disk_mb=16)) for n in range(slots))
        results = await asyncio.gather(*requests, return_exceptions=True)
        seconds = time.perf_counter() - before
        return seconds, sum(isinstance(r, BaseException) for r in results)


async def bench_memory(slots: int) -> tuple[float, float, int]:
    """Measure idle slots. Returns the largest MB per slot, MB per slot by PSS, and how many slots could be held."""
    async with open_pool("bwrap", PoolSettings(max_slots=slots)) as pool:
        before, own, held, least = _read_free_mb(), _read_pss_mb(os.getpid()), 0, _read_free_mb()
        for start in range(0, slots, 50):
            batch = (pool.acquire(str(n), SandboxSpec(disk_mb=16)) for n in range(start, min(start + 50, slots)))
            results = await asyncio.gather(*batch, return_exceptions=True)
            held += sum(not isinstance(r, BaseException) for r in results)
            least = min(least, _read_free_mb())
            if any(isinstance(r, BaseException) for r in results):
                break
        family = [os.getpid(), *find_descendants([os.getpid()])]
        return (before - least) / max(1, held), (sum(map(_read_pss_mb, family)) - own) / max(1, held), held


def _read_pss_mb(pid: int) -> float:
    """Read the PSS of a process: its memory, with shared pages divided among their users."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # the process has ended
        return 0.0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


def _read_free_mb() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1024
    return 0.0


async def bench_busy(slots: int, loops: int, rounds: int = 3) -> float:
    """Measure the throughput of busy slots, in percent of that of plain processes."""
    work = WORK.format(loops)
    shares: list[float] = []
    async with open_pool("bwrap", PoolSettings(max_slots=slots)) as pool:
        boxes = await asyncio.gather(*(pool.acquire(str(n), SandboxSpec(disk_mb=16)) for n in range(slots)))
        for _ in range(rounds):
            plain = await asyncio.to_thread(_time_plain_bashes, work, slots)
            before = time.perf_counter()
            await asyncio.gather(*(_run_commands(box, work) for box in boxes))
            shares.append(100 * plain / (time.perf_counter() - before))
    return median(shares)


async def _run_commands(box: Sandbox, work: str) -> None:
    for _ in range(COMMANDS):
        done = await box.exec(work, timeout=600)
        assert done.exit_code == 0, done.text


def _time_plain_bashes(work: str, count: int) -> float:
    """Measure the seconds that plain bash processes take for the same work, once all have started."""
    script = f"read -r; for ((n = 0; n < {COMMANDS}; n++)); do {work}; done"
    pipes = {"stdin": subprocess.PIPE, "start_new_session": True}
    processes = [subprocess.Popen(["bash", "-c", script], **pipes) for _ in range(count)]
    time.sleep(0.5)
    before = time.perf_counter()
    for process in processes:
        process.stdin.close()
    for process in processes:
        process.wait()
    return time.perf_counter() - before


async def measure(size: Size) -> int:
    base = Path(tempfile.mkdtemp(prefix="ludus-bench-"))
    try:
        make_base(base, size)
        spec = SandboxSpec(base=(str(base),))
        async with open_pool("bwrap", PoolSettings(max_slots=size.times + 2)) as pool:
            before = time.perf_counter()
            async with pool.lease(spec):
                first = 1000 * (time.perf_counter() - before)
            reset = await bench_reset(pool, spec, size.times)
            fork = await bench_fork(pool, spec, size.times)
    finally:
        shutil.rmtree(base)
    exchange = await bench_exchange(size.times)
    acquire = await bench_acquire(size.times)
    storm, failed = await bench_storm(size.storm)
    memory, pss, held = await bench_memory(size.held)
    busy = await bench_busy(size.busy, size.loops)
    print(describe_machine())
    rows = [("first slot of the base", 1, first, first)]
    rows += [(n, len(t), median(t), quantiles(t, n=100)[98]) for n, t in _name_rows(reset, exchange, fork, acquire)]
    print(render_table([("", "times", "p50 ms", "p99 ms"), *rows]))
    checks = [
        Check("reset p50", median(reset), 15, "ms"),
        Check("warm exchange p50", median(exchange), 15, "ms"),
        Check("fork p50", median(fork), 30, "ms"),
        Check("warm acquire p50", median(acquire), 1, "ms"),
        Check(f"failed of {size.storm} at once", failed, 0),
        Check("storm", storm, None, "s"),
        Check(f"memory of {held} slots", memory, None, "MB each"),
        Check("by PSS", pss, None, "MB each"),
        Check("slots that the machine refused", size.held - held, 0),
        Check("busy throughput", busy, 90, "%", at_least=True),
    ]
    return print_verdict("pool", checks)


def _name_rows(*times: list[float]) -> list[tuple[str, list[float]]]:
    return list(zip(("reset", "exchange, warm", "fork", "acquire, warm"), times, strict=True))


def main() -> int:
    lines = (__doc__ or "").split("\n", 2)
    parser = argparse.ArgumentParser(
        description=lines[0], epilog=lines[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small run, as a test of the script")
    parser.add_argument("--slots", type=int, help="slots to hold at once, for the memory per slot")
    given = parser.parse_args()
    size = QUICK if given.quick else FULL
    return asyncio.run(measure(replace(size, held=given.slots or size.held)))


if __name__ == "__main__":
    sys.exit(main())
