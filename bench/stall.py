"""Measure how long hostile agents keep the event loop from doing anything else.

    python bench/stall.py               # about a minute
    python bench/stall.py --quick       # fewer processes and files, as a test of the script

A task on the loop notes the time whenever it gets its turn, every millisecond. The longest gap is the stall. `idle` is
the same task while the driver waits for a subprocess that uses one processor: what the machine itself does.

settle   end an agent's processes: fork chains, idle ones, and one that ignores every signal
abort    stop a command that forks without end, by its time limit
collect  read the files of an agent that has made many empty ones
copy     write them into a fresh slot
flood    a command that writes to its output, and to the pipe by which its shell reports, as fast as it can
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from common import Check, describe_machine, print_verdict, render_table

from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.agent_files import collect_files, copy_files
from ludus.sandbox.file_tree import CollectedFiles
from ludus.sandbox.pool import Pool, PoolSettings
from ludus.sandbox.profiles import open_pool

AIM_MS = 100
SPEC = SandboxSpec(processes=256, disk_mb=256)
CHAINS = """
import os, time
for _ in range({idle}):
    if not os.fork():
        os.setsid()
        time.sleep(900)
for _ in range(3):
    if not os.fork():
        os.setsid()
        while True:
            if os.fork():
                os._exit(0)
"""
FILES = "for d in {{1..{folders}}}; do mkdir d$d; (cd d$d; touch {{1..200}}; ln -s 1 link); done"
FLOOD = "cat /dev/zero >&14 & cat /dev/zero"


@dataclass(frozen=True)
class Size:
    idle: int
    folders: int
    times: int


FULL = Size(idle=180, folders=300, times=3)
QUICK = Size(idle=20, folders=10, times=1)


async def find_stall(work: Callable[[], Awaitable[object]]) -> float:
    """Do some work, and return the longest time in milliseconds during which the loop did nothing else."""
    longest, last = 0.0, time.perf_counter()

    async def tick() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    ticking = asyncio.create_task(tick())
    try:
        await asyncio.sleep(0)
        await work()
    finally:
        ticking.cancel()
    return 1000 * longest


async def wait_for_subprocess() -> None:
    process = await asyncio.create_subprocess_exec("bash", "-c", "for ((i = 0; i < 200000; i++)); do :; done")
    await process.wait()


async def attack_settle(box: Sandbox, size: Size) -> float:
    await box.write("/tmp/chains.py", CHAINS.format(idle=size.idle).encode())
    await box.exec("python3 /tmp/chains.py", timeout=10)
    return await find_stall(box.settle)


async def attack_abort(box: Sandbox, size: Size) -> float:
    stall = await find_stall(lambda: box.exec(":(){ :|:& }; :; while :; do :; done", timeout=1))
    await box.settle()
    return stall


async def attack_flood(box: Sandbox, size: Size) -> float:
    stall = await find_stall(lambda: box.exec(FLOOD, timeout=5))
    await box.settle()
    return stall


async def attack_files(pool: Pool, box: Sandbox, size: Size) -> tuple[float, float]:
    await box.exec(FILES.format(folders=size.folders), timeout=120)
    await box.settle()
    found = CollectedFiles(())

    async def collect() -> None:
        nonlocal found
        found = await collect_files(box)

    collecting = await find_stall(collect)
    assert len(found.entries) >= 200 * size.folders, len(found.entries)
    async with pool.lease(SPEC) as fresh:
        return collecting, await find_stall(lambda: copy_files(found, fresh, ("tests/*",)))


async def measure(size: Size) -> int:
    stalls: dict[str, list[float]] = {name: [] for name in ("idle", "settle", "abort", "collect", "copy", "flood")}
    async with open_pool("bwrap", PoolSettings(max_slots=4)) as pool:
        for _ in range(size.times):
            stalls["idle"].append(await find_stall(wait_for_subprocess))
            async with pool.lease(SPEC) as box:
                stalls["settle"].append(await attack_settle(box, size))
                stalls["abort"].append(await attack_abort(box, size))
                stalls["flood"].append(await attack_flood(box, size))
                collecting, copying = await attack_files(pool, box, size)
            stalls["collect"].append(collecting)
            stalls["copy"].append(copying)
    print(describe_machine())
    rows = [(name, len(found), sorted(found)[len(found) // 2], max(found)) for name, found in stalls.items()]
    print(render_table([("", "times", "median ms", "longest ms"), *rows]))
    checks = [Check(f"longest stall, {name}", max(stalls[name]), AIM_MS, "ms") for name in stalls if name != "idle"]
    return print_verdict("stall", checks)


def main() -> int:
    lines = (__doc__ or "").split("\n", 2)
    parser = argparse.ArgumentParser(
        description=lines[0], epilog=lines[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small run, as a test of the script")
    return asyncio.run(measure(QUICK if parser.parse_args().quick else FULL))


if __name__ == "__main__":
    sys.exit(main())
