"""Measure the cost of a command in a container: with Ludus, and with plain `docker exec` and `podman exec`.

Starts its own Docker engine and Podman service, as the tests do (needs root and Linux), runs `true` in one container of
each, and stops them. The ratio is the time of Ludus divided by the time of the plain command: below 1, Ludus is faster.
A plain exec starts a process through the engine for every command. Ludus sends the command to a running shell.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from common import ROOT, Check, describe_machine, print_verdict, render_table

sys.path.insert(0, str(ROOT / "tests" / "sandbox" / "remote"))
import machinery

from ludus.sandbox import SandboxSpec
from ludus.sandbox.backend_settings import DockerSettings
from ludus.sandbox.profiles import open_pool


async def measure_ours(socket: Path, image: str, slots: int, count: int) -> dict[str, float]:
    """Measure `true` in a slot (median and 99th percentile) and the start of a slot, in ms."""
    profile = DockerSettings(image=image, socket=str(socket), slots=slots)
    async with open_pool(profile) as pool:
        started = time.perf_counter()
        async with pool.lease(SandboxSpec(disk_mb=64)) as box:
            first = time.perf_counter() - started
            times = [await _time_exec(box) for _ in range(count)]
            started = time.perf_counter()
            async with pool.lease(SandboxSpec(disk_mb=64)):
                second = time.perf_counter() - started
    times.sort()
    return {"p50": times[count // 2], "p99": times[count * 99 // 100], "first": first * 1e3, "second": second * 1e3}


async def _time_exec(box) -> float:
    started = time.perf_counter()
    result = await box.exec("true")
    assert result.exit_code == 0
    return (time.perf_counter() - started) * 1e3


def measure_bare(command: list[str], count: int, env: dict[str, str] | None = None) -> float:
    """Measure a program that runs `true` in a running container. Returns the median in ms."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=env)
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


def measure_docker(folder: Path, image: Path, count: int) -> Iterator[tuple[object, ...]]:
    engine = machinery.start_docker(folder, image)
    socket = next(engine)
    docker = ["docker", "--host", f"unix://{socket}"]
    try:
        run = [*docker, "run", "--detach", "--rm", "--network", "none", "--name", "bare", machinery.IMAGE]
        subprocess.run([*run, "sleep", "1000"], check=True, capture_output=True)
        theirs = measure_bare([*docker, "exec", "bare", "true"], max(10, count // 20))
        subprocess.run([*docker, "rm", "--force", "bare"], check=True, capture_output=True)
        for slots in (1, 8):
            yield make_row("docker", slots, asyncio.run(measure_ours(socket, machinery.IMAGE, slots, count)), theirs)
    finally:
        engine.close()


def measure_podman(folder: Path, image: Path, count: int) -> Iterator[tuple[object, ...]]:
    engine = machinery.start_podman(folder, image)
    socket, name = next(engine), f"localhost/{machinery.IMAGE}"
    podman, env = machinery.build_podman_command(folder)
    try:
        run = [*podman, "run", "--detach", "--rm", "--network", "none", "--name", "bare", name, "sleep", "1000"]
        subprocess.run(run, check=True, capture_output=True, env=env)
        theirs = measure_bare([*podman, "exec", "bare", "true"], max(10, count // 20), env)
        subprocess.run([*podman, "rm", "--force", "--time=0", "bare"], check=True, capture_output=True, env=env)
        for slots in (1, 8):
            yield make_row("podman", slots, asyncio.run(measure_ours(socket, name, slots, count)), theirs)
    finally:
        engine.close()


def make_row(engine: str, slots: int, times: dict[str, float], theirs: float) -> tuple[object, ...]:
    return engine, slots, times["p50"], times["p99"], theirs, times["p50"] / theirs, times["first"], times["second"]


HEAD = ("engine", "slots", "exec p50 ms", "p99 ms", "bare exec p50 ms", "ratio", "first slot ms", "next slot ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--count", type=int, default=500, help="commands with Ludus; the plain exec runs a twentieth of them"
    )
    parser.add_argument("--quick", action="store_true", help="run few commands, as a test of the script")
    given = parser.parse_args()
    count = 40 if given.quick else given.count
    rows: list[tuple[object, ...]] = [HEAD]
    measures: list[Callable[[Path, Path, int], Iterator[tuple[object, ...]]]] = [measure_docker, measure_podman]
    with tempfile.TemporaryDirectory(prefix="ludus-b-", ignore_cleanup_errors=True) as name:
        image = Path(name) / "image.tar"
        try:
            machinery.build_image(image)
        except machinery.Missing as missing:
            print(f"containers: SKIP {missing}")
            return 0
        for number, measure in enumerate(measures):
            folder = Path(name) / str(number)
            folder.mkdir()
            try:
                rows += measure(folder, image, count)
            except machinery.Missing as missing:
                print(f"{measure.__name__}: skipped: {missing}")
    print(describe_machine())
    print(render_table(rows))
    if len(rows) == 1:
        print("containers: SKIP no container engine is installed: run scripts/setup-backends")
        return 0
    worst = max(float(str(found[5])) for found in rows[1:])
    return print_verdict("containers", [Check("exec over bare exec", worst, 0.1, "x")])


if __name__ == "__main__":
    sys.exit(main())
