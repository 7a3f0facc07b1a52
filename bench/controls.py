"""Measure what controls cost: the time that it takes to judge what an agent left, with and without them.

    python bench/controls.py                # bundled Harbor tasks and repairs, 3 times in turns
    python bench/controls.py --quick        # once, as a test of the script

harbor   judging the reference solution (paid) and nothing (not paid): a fresh slot, the copy, the script
repair   hidden tests in a fresh slot: controls run among them, for every result

Controls are run for results that are paid. So what they cost in a run depends on how many are: the target is for as
many paid ones as not.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from common import Check, describe_machine, print_verdict, render_table

import ludus.verify.pytest as hidden_tests
from ludus.env import Env
from ludus.env_checks import make_rollout
from ludus.envs.harbor import Harbor
from ludus.envs.repair import Repair
from ludus.judging import Judge, collect, set_up
from ludus.policy import Limits
from ludus.runner import Runner
from ludus.sandbox.pool import Pool, PoolSettings
from ludus.sandbox.profiles import open_pool
from ludus.types import Task
from ludus.verify.control_tests import Controls

MOST_RATIO = 1.5
WITH_SLOT = ("longest-line", "service-settings")
"""The bundled tasks of Harbor's form, whose controls run in a further slot. Those of the others run among the tests."""


@dataclass
class Times:
    """Seconds of judging, with and without controls."""

    on: list[float] = field(default_factory=list[float])
    off: list[float] = field(default_factory=list[float])


@contextmanager
def without_controls() -> Generator[None]:
    """Hidden tests as they are, without controls among them."""

    def add_none(sources: Mapping[str, str]) -> tuple[dict[str, str], Controls]:
        return {}, Controls()

    module: Any = hidden_tests
    add = module.add_controls
    module.add_controls = add_none
    try:
        yield
    finally:
        module.add_controls = add


async def time_judging(env: Env, pool: Pool, task: Task, *, solved: bool) -> float:
    """The seconds from the agent's end to the score."""
    runner, limits = Runner(env, pool), Limits()
    async with pool.lease(runner.make_spec(task)) as box:
        await set_up(env, task, box, limits)
        if solved:
            await env.solve(task, box)
        files = await collect(env, box)
        acted = make_rollout(task, "Done.")
        started = time.perf_counter()
        judged = await Judge(runner, limits).judge_files(acted, box, files)
        seconds = time.perf_counter() - started
    assert judged.score is not None
    assert judged.score.passed == solved, judged.score
    return seconds


async def measure(env: Env, pool: Pool, repeats: int, *, solved: bool, task_count: int) -> Times:
    times = Times()
    tasks = [task for task in env.tasks("train") if not isinstance(env, Harbor) or task.id in WITH_SLOT][:task_count]
    for repeat in range(repeats + 1):
        on, off = 0.0, 0.0
        for task in tasks:
            on += await time_judging(env, pool, task, solved=solved)
            plain = msgspec.structs.replace(env, controls=False) if isinstance(env, Harbor) else env
            with without_controls():
                off += await time_judging(plain, pool, task, solved=solved)
        if repeat or not repeats:  # the first one fills caches
            times.on.append(on / len(tasks))
            times.off.append(off / len(tasks))
    return times


async def run_bench(repeats: int, task_count: int) -> dict[str, Times]:
    with tempfile.TemporaryDirectory(prefix="ludus-bench-") as folder:
        Path(folder).chmod(0o755)  # noqa: ASYNC240 - before anything runs
        harbor = Harbor(cache=folder)
        async with open_pool("bwrap", PoolSettings(max_slots=2)) as pool:
            return {
                "harbor, paid": await measure(harbor, pool, repeats, solved=True, task_count=task_count),
                "harbor, not paid": await measure(harbor, pool, repeats, solved=False, task_count=task_count),
                "repair, paid": await measure(Repair(), pool, repeats, solved=True, task_count=task_count),
                "repair, not paid": await measure(Repair(), pool, repeats, solved=False, task_count=task_count),
            }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one task, once")
    quick = parser.parse_args().quick
    found = asyncio.run(run_bench(0 if quick else 3, 1 if quick else 3))
    rows: list[Sequence[object]] = [("what is judged", "ms without", "with controls", "ratio")]
    for name, each in found.items():
        rows.append([name, 1000 * median(each.off), 1000 * median(each.on), _compute_ratio(each)])
    print(describe_machine())
    print(render_table(rows))
    checks: list[Check] = []
    for kind in ("harbor", "repair"):
        both = Times(
            [a + b for a, b in zip(found[f"{kind}, paid"].on, found[f"{kind}, not paid"].on, strict=True)],
            [a + b for a, b in zip(found[f"{kind}, paid"].off, found[f"{kind}, not paid"].off, strict=True)],
        )
        checks.append(Check(f"{kind}: time with / without", _compute_ratio(both), MOST_RATIO, "x"))
    return print_verdict("controls", checks)


def _compute_ratio(times: Times) -> float:
    return median(on / off for on, off in zip(times.on, times.off, strict=True))


if __name__ == "__main__":
    raise SystemExit(main())
