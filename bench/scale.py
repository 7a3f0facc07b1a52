"""Measure what a large run costs its driver: on a cluster, when it is resumed, and under kills.

    python bench/scale.py                # 10,000 rollouts, 200,000 outcomes to resume; a few minutes
    python bench/scale.py --full         # 100,000 rollouts and a million outcomes, as the targets say
    python bench/scale.py --quick        # very few, as a test of the script; no targets
    python bench/scale.py --only resume,journal,kills,local,ray
    python bench/scale.py --docs         # only write the plot and the table of docs/planning.md

local, ray  run rollouts of 20 kB, 256 at once, in this process or on a Ray cluster of three nodes on this machine
            (Ray's own cluster utility), with a scripted model. CPU is that of the driver's process with all its
            threads. It is read every thousand rollouts: the cost of a rollout is the slope, so what starting takes is
            not in it. Neither the cost nor the memory must grow with the run
resume      open a run with many outcomes, and find what is missing: until the engine is asked for the first rollout
journal     commit rows of 4 kB one by one, as every command does (`batch` has no other journal)
kills       the same prompts, the same kills (SIGKILL after the same numbers of prompts were begun), and the same number
            at once: Ludus, and a stand-in for a runner with checkpoints per batch that matches rows by their text when
            it is resumed. A tenth of the prompts are equal to others, and a fifth of the rows are filtered out
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from common import ROOT, Check, describe_machine, print_verdict, render_table
from peers.meter import read_memory_mb

PARTS = ("local", "ray", "resume", "journal", "kills")
AT_ONCE = 256
BENCH = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Size:
    rollouts: int
    outcomes: int
    rows: int
    prompts: int
    kills: int
    window: int = 1000


FULL = Size(rollouts=100_000, outcomes=1_000_000, rows=50_000, prompts=2000, kills=20)
SHORT = Size(rollouts=10_000, outcomes=200_000, rows=20_000, prompts=600, kills=8)
QUICK = Size(rollouts=300, outcomes=2_000, rows=500, prompts=60, kills=2, window=100)


def run_child(part: str, **options: object) -> dict[str, Any]:
    """Measure a part in a process of its own. Returns what it printed as JSON."""
    command = [sys.executable, str(BENCH / "scale.py"), "--child", json.dumps({"part": part, **options})]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"scale: the part {part} ended with exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


# ---- rollouts on an engine ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mark:
    """The driver after so many rollouts."""

    rollouts: int
    cpu: float
    wall: float
    mb: float


async def run_rollouts(count: int, window: int, engine: str, address: str, folder: str) -> list[Mark]:
    """Run rollouts, and look at this process after each window of them."""
    from ludus.batch import Batch, load_tasks, plan_jobs
    from ludus.batch.command import EVALUATE
    from ludus.config import assemble
    from ludus.config.reading import make_flag_layer
    from ludus.engine import address_jobs, run_missing
    from ludus.run import open_run

    flags = {
        "env.name": f"{BENCH}/scale_env.py:Letters",
        "env.count": count,
        "model.type": "scripted",
        "model.script": f"{BENCH}/scale_env.py:write",
        "run.out": f"{folder}/run",
        "run.concurrency": AT_ONCE,
        "engine.type": engine,
        **({"engine.address": address} if address else {}),
    }
    config = assemble([make_flag_layer(name, str(value)) for name, value in flags.items()])
    marks: list[Mark] = []

    def look(_: str = "", rollout: object = None) -> None:
        nonlocal done
        done += rollout is not None
        if done % window == 0:
            marks.append(Mark(done, time.process_time(), time.perf_counter(), read_memory_mb("VmRSS")))

    async with open_run(config, EVALUATE) as run:
        batch = Batch(load_tasks(run.env, "train"), run.policy)
        jobs = address_jobs(plan_jobs(batch), run.env)
        done = 0
        look()
        await run_missing(jobs, run.runner, on_outcome=look)
        rollouts, scored, mean = run.directory.measure_scores()
        assert (rollouts, scored, mean) == (count, count, 1.0), (rollouts, scored, mean)
    return marks


@contextmanager
def open_cluster(nodes: int = 3) -> Iterator[str]:
    """A Ray cluster on this machine, apart from others. Its head runs no rollouts."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder  # read when Ray is imported
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        try:
            for _ in range(nodes):
                cluster.add_node(num_cpus=1)
            yield cluster.address
        finally:
            cluster.shutdown()


def measure_engine(part: str, count: int, window: int) -> dict[str, Any]:
    """CPU of the driver for a rollout, and how it changes: the cheapest thousand in the first and in the last third of
    the run, because other programs make it dearer and never cheaper. Memory: its growth in the second half."""
    with tempfile.TemporaryDirectory(prefix="ludus-bench-") as folder:
        if part == "local":
            marks = asyncio.run(run_rollouts(count, window, "local", "", folder))
        else:
            with open_cluster() as address:
                marks = asyncio.run(run_rollouts(count, window, "ray", address, folder))
    costs = [1000 * (b.cpu - a.cpu) / (b.rollouts - a.rollouts) for a, b in itertools.pairwise(marks[1:])]
    third = max(1, len(costs) // 3)
    first, half, last = marks[1], marks[len(marks) // 2], marks[-1]
    return {
        "cpu_ms": median(costs),
        "growth": 100 * (min(costs[-third:]) / min(costs[:third]) - 1),
        "per_second": (last.rollouts - first.rollouts) / (last.wall - first.wall),
        "mb": last.mb,
        "mb_growth": 1000 * (last.mb - half.mb) / (last.rollouts - half.rollouts),
    }


# ---- resume -------------------------------------------------------------------------------------------------------


class FirstJob:
    """An engine that notes when it is asked for the first rollout, and stops the run."""

    def __init__(self) -> None:
        self.asked = 0.0

    async def run(self, jobs: Any, runner: Any, record: Any) -> None:
        from ludus.errors import StoreError

        next(iter(jobs))
        self.asked = time.perf_counter()
        raise StoreError("measured")


MISSING = 100
"""Outcomes that a resumed run lacks."""


def measure_resume(outcomes: int, folder: str, make: bool) -> dict[str, float]:
    """Resume a run of ten rollouts per task until its first rollout is asked for."""
    from scale_env import Letters

    from ludus.batch import Batch, evaluate, load_tasks, plan_jobs
    from ludus.engine import address_jobs
    from ludus.errors import StoreError
    from ludus.models.scripted import ScriptedModel
    from ludus.policy import Policy
    from ludus.runner import Runner
    from ludus.store import RunDir

    env, engine = Letters(count=outcomes // 10), FirstJob()
    began = time.perf_counter()
    with RunDir.open(Path(folder) / "run", {}, resume=True) as run:
        batch = Batch(load_tasks(env, "train"), Policy(ScriptedModel(["x"])), 10)
        if make:
            fill_store(run, list(address_jobs(plan_jobs(batch), env))[:-MISSING])
            return {}
        with suppress(StoreError):
            asyncio.run(evaluate(batch, Runner(env, store=run, engine=engine)))
    return {
        "seconds": engine.asked - began,
        "cpu": time.process_time(),
        "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def fill_store(run: Any, keys: Sequence[str]) -> None:
    """Outcomes of one kilobyte, in one transaction: how they were put there does not matter."""
    import sqlite3

    body = b"x" * 1000
    run.close()
    with sqlite3.connect(run.path / "store.sqlite") as db:
        numbers = range(1, len(keys) + 1)
        db.executemany("INSERT INTO rollouts VALUES (?, ?)", ((number, body) for number in numbers))
        db.executemany("INSERT INTO outcomes VALUES (?, 1.0, ?)", zip(keys, numbers, strict=True))


# ---- the journal --------------------------------------------------------------------------------------------------


def measure_journal(rows: int) -> dict[str, float]:
    from ludus.store import RunDir
    from ludus.types import Completion, Message, Provenance, Rollout, Score, StopReason, Task, Turn

    def make_row(number: int) -> Rollout:
        return Rollout(
            task=Task(id=f"t{number}", prompt="p" * 500),
            provenance=Provenance(policy="p", model="m"),
            turns=(Turn(Completion(Message("assistant", "word " * 700))),),
            stop=StopReason.FINISHED,
            score=Score.of(1.0),
        )

    made = [make_row(number) for number in range(1000)]
    with tempfile.TemporaryDirectory(prefix="ludus-bench-") as folder, RunDir.open(Path(folder) / "run", {}) as run:
        began, cpu = time.perf_counter(), time.process_time()
        for number in range(rows):
            run.put(f"{number:032x}", made[number % 1000])
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"rows_per_second": rows / seconds, "cpu_ms": 1000 * cpu / rows}


# ---- kills --------------------------------------------------------------------------------------------------------

BATCH_SIZE, WORKERS = 10, 4
PROMPT_SECONDS = 0.004


def list_prompts(count: int) -> list[str]:
    """A tenth of the prompts have the text of an earlier one."""
    return [f"Write about {number - 55 if number % 10 == 9 and number > 55 else number}." for number in range(count)]


def is_filtered(number: int) -> bool:
    return number % 5 == 2


def note(folder: Path, name: str, number: int) -> None:
    """One line, written at once, so that it survives a kill."""
    fd = os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{number}\n".encode())
    os.close(fd)


def read_notes(folder: Path, name: str) -> list[int]:
    path = folder / name
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


async def run_ours(count: int, folder: Path) -> None:
    """The prompts through the engine of Ludus, into a run directory."""
    from scale_env import Letters

    from ludus.engine import address_jobs, run_stored
    from ludus.models.scripted import ScriptedModel, say
    from ludus.policy import Policy
    from ludus.runner import Job, Runner, RunOptions
    from ludus.store import RunDir
    from ludus.types import Task

    async def work(messages: Any, tools: Any, sampling: Any) -> Any:
        number = sampling.seed // 1_000_000 if sampling.seed else 0
        note(folder, "begun", number)
        await asyncio.sleep(PROMPT_SECONDS)
        return say("x")

    policy, prompts = Policy(ScriptedModel(work)), list_prompts(count)
    jobs = [Job(Task(id=str(n), prompt=text), policy, seed=n * 1_000_000) for n, text in enumerate(prompts)]
    env = Letters()
    with RunDir.open(folder / "run", {}, resume=True) as run:
        runner = Runner(env, store=run, options=RunOptions(concurrency=WORKERS))
        await run_stored(address_jobs(jobs, env), runner, on_outcome=lambda key, rollout: None, read_back=False)
        kept = [int(rollout.task.id) for _, rollout in run.read_outcomes()]
    (folder / "rows").write_text("".join(f"{number}\n" for number in kept))


def run_batch(folder: Path, name: str, prompts: list[tuple[int, str]]) -> list[int]:
    """A batch of the stand-in: prompts one after the other, a row for each that is not filtered out."""
    for number, text in prompts:
        note(folder, "begun", number)
        time.sleep(PROMPT_SECONDS)
        if not is_filtered(number):
            with (folder / name).open("a") as file:
                file.write(json.dumps({"prompt_index": number, "text": text}) + "\n")
    return [number for number, _ in prompts]


def run_stand_in(count: int, folder: Path) -> None:
    """A runner with a checkpoint for each batch. When it is resumed, rows are matched by their text."""
    done = {row["text"] for path in folder.glob("batch_*.jsonl") for row in read_rows(path)}
    left = [(number, text) for number, text in enumerate(list_prompts(count)) if text not in done]
    checkpoint = folder / "checkpoint.json"
    completed: set[int] = set(json.loads(checkpoint.read_text())) if checkpoint.exists() else set()
    left = [(number, text) for number, text in left if number not in completed]
    batches = [left[start : start + BATCH_SIZE] for start in range(0, len(left), BATCH_SIZE)]
    with ProcessPoolExecutor(WORKERS) as pool:
        names = (f"batch_{place}.jsonl" for place in range(len(batches)))
        for numbers in pool.map(run_batch, [folder] * len(batches), names, batches):
            completed.update(numbers)
            temporary = folder / "checkpoint.tmp"
            temporary.write_text(json.dumps(sorted(completed)))
            temporary.replace(checkpoint)
    rows = [row["prompt_index"] for path in folder.glob("batch_*.jsonl") for row in read_rows(path)]
    (folder / "rows").write_text("".join(f"{number}\n" for number in rows))


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # cut off by a kill
            continue


def measure_kills(runner: str, prompts: int, kills: int) -> dict[str, float]:
    """Run prompts to the end, with kills after the same numbers of begun prompts for every runner."""
    chance = random.Random(7)
    moments = sorted(chance.sample(range(prompts // 20, prompts - prompts // 20), kills))
    with tempfile.TemporaryDirectory(prefix="ludus-bench-") as name:
        folder = Path(name)
        for moment in moments:
            run_until(runner, prompts, folder, moment)
        run_until(runner, prompts, folder, None)
        begun, rows = Counter(read_notes(folder, "begun")), Counter(read_notes(folder, "rows"))
    expected = [n for n in range(prompts) if runner == "ours" or not is_filtered(n)]
    return {
        "begun": begun.total(),
        "again": begun.total() - len(begun),
        "lost": sum(number not in rows for number in expected),
        "twice": sum(times - 1 for times in rows.values()),
    }


def run_until(runner: str, prompts: int, folder: Path, moment: int | None) -> None:
    """Run in a process group of its own, and kill all of it when so many different prompts have been begun."""
    options = {"part": runner, "prompts": prompts, "folder": str(folder)}
    command = [sys.executable, str(BENCH / "scale.py"), "--child", json.dumps(options)]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            if moment is not None and len(set(read_notes(folder, "begun"))) >= moment:
                break
            time.sleep(0.002)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# ---- the page -----------------------------------------------------------------------------------------------------

PAGE = ROOT / "docs" / "planning.md"
BEGIN, END = "<!-- made by bench/scale.py: begin -->", "<!-- made by bench/scale.py: end -->"


def make_example() -> Any:
    """The forecast of a run of long coding tasks: 20 turns of about 6 s and 300 tokens, 3 s of tools after each, a slot
    in 1.5 s, tests of 30 s, one core for a third of the time, 200 kB."""
    from ludus.planning.forecast import Limit, Machines, forecast
    from ludus.planning.run_profile import Calibration, RunProfile
    from ludus.planning.simulation import RolloutSample, TurnSample

    chance = random.Random(0)

    def vary(mean: float) -> float:
        return mean * chance.lognormvariate(-0.125, 0.5)

    def make_sample() -> RolloutSample:
        turns = tuple(TurnSample(vary(6.0), int(vary(300)), vary(3.0)) for _ in range(max(3, int(vary(20)))))
        return RolloutSample(vary(1.5), vary(2.0), turns, vary(30.0), int(vary(200_000)))

    measured = Calibration(core_seconds=70.0, slot_mb=600.0, base_mb=200.0)
    profile = RunProfile(
        samples=tuple(make_sample() for _ in range(50)), tokens=400_000.0, dollars=0.0, disk=230_000.0,
        decode_seconds=4e-4, store_seconds=8e-4, calibration=measured,
    )  # fmt: skip
    machines = Machines(
        per_node=64, starting=16, cores=32, server=Limit(200_000.0, "the example"), network_mbit=1000.0, engine_ms=0.5,
        node_dollars=1.5,
    )  # fmt: skip
    return forecast(profile, machines, (1, 4, 16, 64, 128, 256, 1000), 1_000_000)


def write_page() -> None:
    from ludus.planning.forecast import NODES
    from ludus.planning.throughput_plot import draw_forecast

    found = make_example()
    (PAGE.parent / "planning.svg").write_text(draw_forecast(found, "coding tasks"))
    head = ("nodes", "rollouts/h", "speedup", "first bottleneck", "hours for a million", "dollars for nodes")
    rows = [
        (r.nodes, r.per_hour, r.speedup, "none yet" if r.bottleneck == NODES else r.bottleneck, r.hours, r.dollars)
        for r in found.nodes
    ]
    changes = "\n".join(f"* {change}" for change in found.nodes[-1].changes)
    text = f"{render_table([head, *rows])}\n\nFor 1,000 nodes at full speed:\n\n{changes}"
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")


# ---- all of it ----------------------------------------------------------------------------------------------------


def be_child(options: dict[str, Any]) -> None:
    part = options.pop("part")
    if part in ("local", "ray"):
        found = measure_engine(part, **options)
    elif part == "resume":
        found = measure_resume(**options)
    elif part == "journal":
        found = measure_journal(**options)
    elif part == "ours":
        found = asyncio.run(run_ours(options["prompts"], Path(options["folder"])))
    else:
        found = run_stand_in(options["prompts"], Path(options["folder"]))
    print(json.dumps(found))


def check_engines(size: Size, parts: Sequence[str]) -> list[Check]:
    found = {
        part: run_child(part, count=size.rollouts, window=size.window) for part in ("local", "ray") if part in parts
    }
    if not found:
        return []
    head = ("engine", "driver ms/rollout", "growth %", "rollouts/s", "RSS MB", "MB per 1,000 rollouts")
    rows = [
        (name, each["cpu_ms"], each["growth"], each["per_second"], each["mb"], each["mb_growth"])
        for name, each in found.items()
    ]
    print(render_table([head, *rows]))
    checks: list[Check] = []
    for name, each in found.items():
        checks.append(Check(f"{name}: cost of a rollout grows by", each["growth"], 5, "%"))
        checks.append(Check(f"{name}: memory for 1,000 rollouts", each["mb_growth"], 0.5, "MB"))
    if len(found) == 2:
        more = found["ray"]["cpu_ms"] - found["local"]["cpu_ms"]
        checks.insert(0, Check("driver on Ray, more than local", more, 1.0, "ms/rollout"))
    return checks


def check_resume(size: Size) -> list[Check]:
    with tempfile.TemporaryDirectory(prefix="ludus-bench-") as folder:
        run_child("resume", outcomes=size.outcomes, folder=folder, make=True)
        found = run_child("resume", outcomes=size.outcomes, folder=folder, make=False)
    share = size.outcomes / 1_000_000
    return [
        make_time_check(f"resume of {size.outcomes:,}", found["seconds"], found["cpu"], 30 * share),
        Check("with", found["mb"], 1000 * max(share, 0.1), "MB"),
    ]


def make_time_check(name: str, seconds: float, cpu: float, target: float) -> Check:
    """A target in seconds. While other programs use all cores, the time of the processor counts, and it says so."""
    if is_busy():
        return Check(f"{name} ({seconds:.1f} s on a busy machine)", cpu, target, "s of CPU")
    return Check(name, seconds, target, "s")


def is_busy() -> bool:
    return os.getloadavg()[0] > (os.cpu_count() or 1)


def check_journal(size: Size) -> list[Check]:
    found = run_child("journal", rows=size.rows)
    if is_busy():
        name = f"journal ({found['rows_per_second']:.0f} rows/s on a busy machine)"
        return [Check(name, 1000 / found["cpu_ms"], 5000, "rows per second of CPU", at_least=True)]
    return [Check("journal", found["rows_per_second"], 5000, "rows/s", at_least=True)]


def check_kills(size: Size) -> list[Check]:
    found = {name: measure_kills(name, size.prompts, size.kills) for name in ("ours", "stand-in")}
    head = ("runner", "prompts", "kills", "begun", "begun again", "rows lost", "rows twice")
    rows = [
        (name, size.prompts, size.kills, each["begun"], each["again"], each["lost"], each["twice"])
        for name, each in found.items()
    ]
    print(render_table([head, *rows]))
    ours, other = found["ours"], found["stand-in"]
    return [
        Check("rows lost", ours["lost"], 0),
        Check("rows twice", ours["twice"], 0),
        Check("prompts begun again", ours["again"], WORKERS * size.kills),
        Check("with checkpoints per batch, lost", other["lost"]),
        Check("begun again", other["again"]),
    ]


def main() -> int:
    lines = (__doc__ or "").split("\n", 2)
    parser = argparse.ArgumentParser(
        description=lines[0], epilog=lines[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="as large as the targets say; takes long")
    parser.add_argument("--quick", action="store_true", help="a small run, as a test of the script; no targets")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, of {','.join(PARTS)}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--docs", action="store_true", help="write the example of docs/planning.md, and stop")
    given = parser.parse_args()
    if given.docs:
        write_page()
        return 0
    if given.child:
        be_child(json.loads(given.child))
        return 0
    size = FULL if given.full else QUICK if given.quick else SHORT
    parts = given.only.split(",")
    print(describe_machine())
    checks = check_engines(size, parts)
    checks += check_resume(size) if "resume" in parts else []
    checks += check_journal(size) if "journal" in parts else []
    checks += check_kills(size) if "kills" in parts else []
    if given.quick:
        checks = [Check(check.name, check.value, None, check.unit) for check in checks]
    return print_verdict("scale", checks)


if __name__ == "__main__":
    sys.exit(main())
