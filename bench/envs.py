"""Measure how long a task of each environment takes without a model: the column `speed` of docs/environments.md.

    python bench/envs.py                                   # every environment whose packages and data are here
    python bench/envs.py gsm8k alfworld --path alfworld=json_2.1.1
    python bench/envs.py --quick                           # few tasks, as a test of the script

For each task, `solve` acts in a slot and `verify` judges in another one, as in `ludus validate`, one task after the
other. The figure is the median over tasks of the best of three times: what other programs of the machine take is not
the environment's. Tasks without a slot are measured once. Images, games and repositories are made before. Environments
without tasks of their own get a few rows in their format, or the data that `--path` names.
"""

import argparse
import asyncio
import base64
import importlib
import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from common import describe_machine, render_table

from ludus.config.references import load_env_class
from ludus.env import Env
from ludus.env_checks import make_rollout
from ludus.envs import BUILTIN
from ludus.errors import LudusError
from ludus.judging import open_judging_slot
from ludus.policy import Limits
from ludus.runner import Runner
from ludus.sandbox.profiles import open_pool
from ludus.types import Task

TASKS = 12
TIMES = 3
SPLITS = ("train", "test")
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAG7buVgAAAABJRU5ErkJggg==")


def write_data(name: str, folder: Path) -> Path | None:
    """Rows in the format of an environment that comes without tasks; None if it needs none, or more than rows."""
    choices = [{"label": label, "text": f"answer {label}"} for label in "ABCD"]
    rows: dict[str, dict[str, Any]] = {
        "searchqa": {"question": "Who?", "context": "[DOC] A page about her. " * 200, "answers": ["Ada Lovelace"]},
        "docvqa": {"question": "When?", "answer": ["4 May"], "image_path": "a.png"},
        "officeqa": {"question": "How much?", "ground_truth": "1,234 million"},
        "livemathematicianbench": {"question": "Which?", "choices": choices, "correct_choice": choices[1]},
        "spreadsheetbench": {"instruction": "Add.", "spreadsheet_path": "sheets", "answer_position": "A1:C20"},
    }
    if name not in rows:
        return None
    (folder / "docs").mkdir()
    (folder / "docs" / "report.txt").write_text("a line of a report\n" * 5000)
    (folder / "a.png").write_bytes(PIXEL)
    if name == "spreadsheetbench":
        write_workbooks(folder / "sheets")
    path = folder / "rows.json"
    path.write_text(json.dumps([{"id": str(number), **rows[name]} for number in range(TASKS)]))
    return path


def write_workbooks(folder: Path) -> None:
    """Three test cases of 200 rows, as the published set has three per task."""
    openpyxl: Any = importlib.import_module("openpyxl")
    folder.mkdir()
    for number in range(1, 4):
        for kind in ("input", "answer"):
            book = openpyxl.Workbook()
            for row in range(200):
                book.active.append([row, number, f"{kind} {row}"])
            book.save(folder / f"{number}_{kind}.xlsx")


def choose_tasks(env: Env, count: int) -> list[Task]:
    return list(itertools.islice((task for split in SPLITS for task in env.tasks(split)), count))


async def measure_task(task: Task, runner: Runner) -> float:
    """The seconds of one task, with a perfect agent."""
    env, started = runner.env, time.perf_counter()
    if env.sandbox is None:
        score = await env.verify(make_rollout(task, await env.solve(task, None)), None)
    else:
        assert runner.pool is not None
        async with runner.pool.lease(runner.make_spec(task)) as box:
            await env.setup(task, box)
            answer = await env.solve(task, box)
            async with open_judging_slot(task, box, runner, Limits()) as judge_box:
                score = await env.verify(make_rollout(task, answer), judge_box)
    seconds = time.perf_counter() - started
    if not score.passed:
        raise SystemExit(f"{env.name}: the solution of {task.id} did not pass: {score.feedback}")
    return seconds


async def measure_env(env: Env, tasks: Sequence[Task], times: int) -> float:
    """The median over tasks of the best time of each."""
    async with open_pool("bwrap") as pool:
        runner = Runner(env, pool)
        for task in tasks if env.sandbox else ():
            await env.prepare(task)
        await measure_task(tasks[0], runner)  # processes start, and packages are imported
        if env.sandbox is None:
            tasks, times = tasks[1:] or tasks, 1  # a scoring process may keep what it has computed, such as a game
        return median([min([await measure_task(task, runner) for _ in range(times)]) for task in tasks])


def describe_env(name: str, path: str, count: int, times: int) -> tuple[str, str, str]:
    """A line of the table: the environment, its tasks, and the time per task or why there is none."""
    kind = load_env_class(name)
    if kind.graded:
        return name, "", "that of the judge"
    with tempfile.TemporaryDirectory() as folder:
        try:
            data = path or write_data(name, Path(folder))
            env = kind(path=str(data)) if data else kind()  # pyright: ignore[reportCallIssue]
            tasks = choose_tasks(env, count)
        except (LudusError, ImportError) as error:
            return name, "", f"not measured: {error}"
        seconds = asyncio.run(measure_env(env, tasks, times))
    return name, str(len(tasks)), format_seconds(seconds)


def format_seconds(seconds: float) -> str:
    """Two digits at most: finer differences are the machine's."""
    if seconds < 0.001:
        return "below 1 ms"
    return f"{float(f'{1000 * seconds:.2g}'):g} ms" if seconds < 0.995 else f"{seconds:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("envs", nargs="*", metavar="ENV", help="which ones; default: all that come with Ludus")
    parser.add_argument("--path", action="append", default=[], metavar="ENV=PATH", help="the data of an environment")
    parser.add_argument("--quick", action="store_true", help="few tasks, as a test of the script")
    arguments = parser.parse_args()
    paths = dict(each.split("=", 1) for each in arguments.path)
    count, times = (2, 1) if arguments.quick else (TASKS, TIMES)
    print(describe_machine())
    names = arguments.envs or list(BUILTIN)
    rows = [describe_env(name, paths.get(name, ""), count, times) for name in names]
    print(render_table([("environment", "tasks", "per task"), *rows]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
