"""Measure what it costs to keep the files that agents leave (`run.keep_files_mb`), for `ludus rescore`.

    python bench/keep_files.py                # 200 rollouts per run, 5 runs of each kind in turns
    python bench/keep_files.py --quick        # few rollouts, as a test of the script

small   the agent writes one small file with a tool; a scripted model, slots of this machine
folder  the same, with 20 files of 2 KB beside it that are equal in every rollout, as a checked-out project has

Runs with and without kept files alternate; the ratio is that of the median times per rollout. Disk is the difference of
the sizes of the run's store.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import ClassVar

from common import Check, describe_machine, print_verdict, render_table

from ludus.batch import Batch, evaluate
from ludus.env import Env
from ludus.models.scripted import ScriptedModel, call
from ludus.policy import Policy
from ludus.runner import Runner, RunOptions
from ludus.sandbox import Sandbox
from ludus.sandbox.file_tree import KeptSizes
from ludus.sandbox.pool import PoolSettings
from ludus.sandbox.profiles import choose_builtin, open_pool
from ludus.store import STORE, RunDir
from ludus.types import Completion, Message, Rollout, Sampling, Score, Task, ToolSpec

MOST_RATIO = 1.15
MOST_BYTES = 2_000


class Writing(Env, frozen=True):
    """Write a word into a file, beside other files."""

    name: ClassVar[str] = "writing"
    toolsets: ClassVar[tuple[str, ...]] = ("file",)
    count: int = 10
    others: int = 0

    def tasks(self, split: str) -> list[Task]:
        files = {f"src/f{n}.py": f"# {n}\n" + "x = 1\n" * 340 for n in range(self.others)}
        return [Task(id=str(n), prompt=f"word-{n}", files=files, answer=f"word-{n}") for n in range(self.count)]

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        return Score.of(float((await box.read("word.txt")).decode() == rollout.task.answer))


def act(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion | str:
    if messages[-1].role == "tool":
        return "Done."
    return call("write_file", path="word.txt", content=messages[-1].content)


@dataclass(frozen=True)
class Measured:
    seconds: float
    """Per rollout."""
    bytes: int
    """Of the store, per rollout."""


async def measure(env: Writing, sizes: KeptSizes) -> Measured:
    settings, options = PoolSettings(max_slots=8, warm=4), RunOptions(concurrency=4, keep_files=sizes)
    with tempfile.TemporaryDirectory() as folder:
        async with open_pool({"": choose_builtin("bwrap")}, settings) as pool:
            batch = Batch(tuple(env.tasks("train")), Policy(model=ScriptedModel(act)))
            with RunDir.open(Path(folder) / "run", {}) as run:
                started = time.perf_counter()
                summary = await evaluate(batch, Runner(env, pool, store=run, options=options))
                seconds = time.perf_counter() - started
        assert summary.overall.mean == 1.0
        return Measured(seconds / env.count, (Path(folder) / "run" / STORE).stat().st_size // env.count)


def compare(name: str, env: Writing, times: int) -> tuple[list[object], float, int]:
    kept, none = list[Measured](), list[Measured]()
    for _ in range(times):
        none.append(asyncio.run(measure(env, KeptSizes(rollout=0))))
        kept.append(asyncio.run(measure(env, KeptSizes())))
    with_files, without = median(m.seconds for m in kept), median(m.seconds for m in none)
    ratio, more = with_files / without, kept[-1].bytes - none[-1].bytes
    return [name, 1000 * without, 1000 * with_files, ratio, more], ratio, more


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what it costs to keep the files that agents leave.")
    parser.add_argument("--quick", action="store_true", help="few rollouts, as a test of the script")
    quick = parser.parse_args().quick
    count, times, more_files = (4, 1, 2) if quick else (200, 5, 20)
    print(describe_machine())
    rows: list[Sequence[object]] = [("tasks", "ms per rollout without", "with", "ratio", "bytes of disk per rollout")]
    checks: list[Check] = []
    for name, others in {"small": 0, "folder": more_files}.items():
        row, ratio, more = compare(name, Writing(count=count, others=others), times)
        rows.append(row)
        checks.append(Check(f"{name}: time with / without", ratio, MOST_RATIO, "x"))
        if not others:
            checks.append(Check(f"{name}: disk", more, MOST_BYTES, "bytes per rollout"))
    print(render_table(rows))
    return print_verdict("keep_files", checks)


if __name__ == "__main__":
    raise SystemExit(main())
