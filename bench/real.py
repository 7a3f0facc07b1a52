"""Train skills with a real model: Qwen2.5-Coder-1.5B as agent and as optimizer, on four environments. Takes hours.

    $ python bench/real.py --out runs/real                        all cells, in order; finished cells are skipped
    $ python bench/real.py --out runs/real --minutes 60           stop after this time; the next call goes on
    $ python bench/real.py --out runs/real --cells tickets/1      only cells that begin like this: environment/seed/arm
    $ python bench/real.py --minutes 0 --report                   run nothing; write the table into docs/optimizer.md

The environments are in `real_tasks/`: `tickets` and `guests` (who is responsible for what: only feedback tells),
`functions` (Python functions with hidden tests and conventions) and `shop` (questions that need SQL, with a tool).
Tasks are made by code: 24 to train, 16 to select, 40 sealed ones to test.

A cell is one arm in one environment with one seed, and a folder below `--out`. The arms:

    initial     the initial skill, once per test task
    best-of-5   five samples of the initial skill per test task, and the verifier chooses. That is what the rollouts
                of a training would buy without training
    ledger      `ludus train --train.proposer plain`, the ledger with short questions, for small optimizers; then its
                skill once per test task
    analysts    the ledger with its usual analysts
    examples    the ledger with worked examples (`--train.proposer exemplars`), without an optimizer
    reflact     `ludus train --recipe reflact`, with its usual analysts
    gepa        GEPA 0.1.4 in an environment of its own, with the same agent, optimizer and number of rollouts

Every training has 160 rollouts. Differences are paired by test task and seed; intervals are 95 %, by bootstrap over
tasks.

A finished cell is kept twice: below `--out`, and as a line of `real_results.jsonl` beside this script (scores by task,
skill, seconds, commit). The table is made of both, so that later runs add to it. A cell that has a line is finished:
remove the line to run it again.
The model is served by `ludus gateway` with one thread (`--threads`), to all arms alike. Another server of the same
weights may stand in for it where no tools are used, for example a llama.cpp that was built for the machine, which is
faster: `--url http://127.0.0.1:8080/v1`.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from common import CACHE, ROOT, CommandFailed, describe_machine, make_venv, render_table

PAGE = ROOT / "docs" / "optimizer.md"
BEGIN, END = "<!-- made by bench/real.py: begin -->", "<!-- made by bench/real.py: end -->"
TASKS = ROOT / "bench" / "real_tasks"
KEPT = ROOT / "bench" / "real_results.jsonl"
GEPA = ("gepa==0.1.4",)
MODEL = "qwen2.5-coder-1.5b"
INITIAL = "Read the task with care.\n"
ENVS = {"tickets": 16, "guests": 16, "functions": 120, "shop": 120}
"""The environments, and the longest reply in each, in tokens."""
WITH_TOOLS = ("shop",)
"""Environments that need the gateway: it writes tools and calls as this model follows them."""
SEEDS = (1, 2, 3)
SAMPLES = 5
ARMS = ("initial", f"best-of-{SAMPLES}", "ledger", "reflact", "gepa", "examples", "analysts")
PROPOSERS = {"ledger": "plain", "examples": "exemplars"}
"""By arm, where it is not the analysts."""
ROLLOUTS = 160
"""The rollouts of a training, with those for selection and shipping. Five samples of 40 tasks are 160 more than one."""
REPLY_TOKENS = 500
LONGEST_WAIT = 1e6
"""Seconds. Longer time limits overflow in the operating system's calls."""
BATCH = 16
"""Train tasks per step of a training."""
BOOTSTRAPS = 2000


@dataclass(frozen=True)
class Cell:
    """One arm in one environment with one seed."""

    env: str
    seed: int
    arm: str

    @property
    def name(self) -> str:
        return f"{self.env}/{self.seed}/{self.arm}"


def list_cells(prefixes: Sequence[str]) -> list[Cell]:
    """All cells: every environment with the first seed, then with the next one."""
    cells = [Cell(env, seed, arm) for seed in SEEDS for env in ENVS for arm in ARMS]
    return [cell for cell in cells if not prefixes or any(cell.name.startswith(prefix) for prefix in prefixes)]


# ---- running --------------------------------------------------------------------------------------------------------


class TimeIsUp(Exception):
    """The session has reached its limit. The cell is continued by the next one."""


@dataclass(frozen=True)
class Bench:
    """Where cells are run, and until when."""

    out: Path
    url: str
    ends: float
    cache: Path
    kept: Path
    """The file with the results of all sessions."""

    def run(self, command: Sequence[str], text: str = "") -> str:
        """Run a command to its end, or until the time is up. Returns what it printed."""
        left = min(self.ends - time.time(), LONGEST_WAIT)
        if left <= 0:
            raise TimeIsUp
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                printed, errors = process.communicate(text, timeout=left)
            except subprocess.TimeoutExpired:
                raise TimeIsUp from None
            finally:
                process.terminate()  # it finishes what runs, and can be resumed
        if process.returncode:
            raise CommandFailed(f"{' '.join(command)}: exit {process.returncode}\n{errors.strip()[-3000:]}")
        return printed

    def describe_agent(self, env: str, arm: str = "") -> list[str]:
        """The flags of the environment, the model and its sampling."""
        examples = ["--agent.examples_as", "turns"] if arm == "examples" else []
        return [
            *examples,
            str(TASKS / f"{env}.py"), "--model.base_url", self.url, "--model.name", MODEL, "--run.concurrency", "1",
            "--sampling.temperature", "0.5", "--sampling.max_tokens", str(ENVS[env]), "--limits.turns", "4",
        ]  # fmt: skip

    def test(self, cell: Cell, folder: Path, skill: Path, samples: int = 1) -> dict[str, list[float]]:
        """The scores of a skill on the sealed tasks: one for each sample, by task."""
        command = [*LUDUS, "evaluate", *self.describe_agent(cell.env, cell.arm), "--env.split", "test", "--agent.skill"]
        command += [str(skill), "--env.group_size", str(samples), "--run.seed", str(cell.seed), "--out", str(folder)]
        self.run([*command, "--resume"] if folder.exists() else command)
        scores: dict[str, list[tuple[int, float]]] = {}
        for line in (folder / "samples.jsonl").read_text().splitlines():
            row = json.loads(line)
            if row["score"] is None:
                raise CommandFailed(f"{folder}: {row['task']['id']} has no score; run again to retry it")
            scores.setdefault(row["task"]["id"], []).append((row["replicate"], row["score"]["value"]))
        return {task: [value for _, value in sorted(found)] for task, found in scores.items()}


LUDUS = (str(Path(sys.executable).with_name("ludus")),)


def run_cell(bench: Bench, cell: Cell) -> dict[str, Any]:
    """Run what is missing of a cell. Returns its result."""
    folder = bench.out / cell.name
    folder.mkdir(parents=True, exist_ok=True)
    initial = bench.out / "initial.md"
    initial.write_text(INITIAL)
    if cell.arm == "initial":
        return {"scores": bench.test(cell, folder / "test", initial), "skill": INITIAL}
    if cell.arm == ARMS[1]:
        found = bench.test(cell, folder / "test", initial, SAMPLES)
        return {"scores": {task: [max(values)] for task, values in found.items()}, "skill": INITIAL}
    skill = folder / "best.md"
    if not skill.exists():
        text = train_gepa(bench, cell, folder, initial) if cell.arm == "gepa" else train(bench, cell, folder, initial)
        skill.write_text(text)
    text = skill.read_text()
    if text.strip() == INITIAL.strip():  # nothing was shipped: the result is that of the initial skill
        scores = read_scores(bench, Cell(cell.env, cell.seed, "initial"))
    else:
        scores = bench.test(cell, folder / "test", skill)
    return {"scores": scores, "skill": text}


def train(bench: Bench, cell: Cell, folder: Path, initial: Path) -> str:
    """Train with a recipe of Ludus. Returns the skill that it ships."""
    out = folder / "train"
    recipe = "reflact" if cell.arm == "reflact" else "ledger"
    command = [*LUDUS, "train", *bench.describe_agent(cell.env, cell.arm), "--recipe", recipe]
    command += ["--agent.skill", str(initial)]
    command += ["--data.mode", "splits", "--data.selection", "selection", "--train.test", "false"]
    command += ["--train.seed", str(cell.seed), "--train.epochs", "40", "--budget.rollouts", str(ROLLOUTS)]
    command += ["--train.reply_tokens", str(REPLY_TOKENS), "--out", str(out)]
    if recipe == "reflact":
        command += ["--train.batch_size", str(BATCH), "--train.slow.enabled", "false", "--train.memory", "false"]
    else:
        command += ["--train.ledger.batch_size", str(BATCH), "--train.edit_budget", "6"]
        command += ["--train.sampling.temperature", "0.5", "--train.ledger.tuning.slip", "0.3"]
    if cell.arm in PROPOSERS:
        command += ["--train.proposer", PROPOSERS[cell.arm]]
    bench.run([*LUDUS, "train", "--resume", "--out", str(out)] if (out / "config.json").exists() else command)
    from ludus.skill import parse_file

    return parse_file((out / "best" / "SKILL.md").read_text()).text  # without its head


def train_gepa(bench: Bench, cell: Cell, folder: Path, initial: Path) -> str:
    """Train with GEPA, in its own environment. Returns its best candidate."""
    python = make_venv(bench.cache / "gepa", GEPA)
    job = {
        "out": str(folder), "url": bench.url, "seed": cell.seed, "rollouts": ROLLOUTS, "reply_tokens": REPLY_TOKENS,
        "initial": initial.read_text(), "evaluate": [*LUDUS, "evaluate", *bench.describe_agent(cell.env)],
        "train": list_tasks(cell.env, "train"), "selection": list_tasks(cell.env, "selection"),
    }  # fmt: skip
    bench.run([str(python), str(ROOT / "bench" / "peers" / "run_gepa_real.py")], json.dumps(job))
    return (folder / "best.md").read_text()


def list_tasks(env: str, split: str) -> list[dict[str, str]]:
    """The tasks of a split, as GEPA gets them."""
    from ludus.config import load
    from ludus.config.build_agent import build_env

    made = build_env(load(flags=[("env.name", str(TASKS / f"{env}.py"))]))
    return [{"id": task.id, "split": split} for task in made.tasks(split)]


@contextmanager
def serve_model(out: Path, threads: int, port: int, url: str = "") -> Generator[str]:
    """The model behind `ludus gateway`, until the block ends. Yields its address, or the one where it is served."""
    if url:
        yield url
        return
    folder = out / "gateway" / time.strftime("%Y%m%d-%H%M%S")
    command = [*LUDUS, "gateway", "--model.name", MODEL, "--model.threads", str(threads), "--model.context", "6144"]
    command += ["--gateway.port", str(port), "--json", "--out", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            line = process.stdout.readline()
            if not line:
                raise CommandFailed("the gateway did not start")
            yield f"{json.loads(line)['url']}/v1"
        finally:
            process.terminate()


def run_cells(cells: Sequence[Cell], out: Path, minutes: float, arguments: argparse.Namespace) -> None:
    """Run the cells that have no result yet, until the time is up."""
    done = read_results(out, arguments.kept)
    left = [cell for cell in cells if cell.name not in done]
    if not left or minutes <= 0:
        return
    with serve_model(out, arguments.threads, arguments.port, arguments.url) as url:
        bench = Bench(out, url, time.time() + 60 * minutes, arguments.cache, arguments.kept)
        commit = describe_commit()
        for cell in left:
            print(f"{time.strftime('%H:%M:%S')} {cell.name}", file=sys.stderr, flush=True)
            try:
                with count_seconds(out / cell.name / "seconds") as spent:
                    result = run_cell(bench, cell)
            except TimeIsUp:
                print("the time is up; run it again to go on", file=sys.stderr)
                return
            except CommandFailed as error:
                print(f"{cell.name}: {error}", file=sys.stderr, flush=True)  # the others do not depend on it
                continue
            keep_result(out, arguments.kept, cell, {**result, "seconds": spent(), "commit": commit})


# ---- results --------------------------------------------------------------------------------------------------------


@contextmanager
def count_seconds(path: Path) -> Generator[Callable[[], int]]:
    """Add the seconds of the block to those in a file, which earlier sessions have written. Yields what reads them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before, began = float(path.read_text()) if path.exists() else 0.0, time.time()

    def read() -> int:
        return round(before + time.time() - began)

    try:
        yield read
    finally:
        path.write_text(str(read()))


def describe_commit() -> str:
    """What was run. Results that earlier cells have added are no change of it."""
    git = ("git", "-C", str(ROOT))
    found = subprocess.run((*git, "describe", "--always"), capture_output=True, text=True).stdout.strip()
    others = (".", f":!{KEPT.relative_to(ROOT)}")
    changed = subprocess.run((*git, "diff", "--quiet", "HEAD", "--", *others), capture_output=True).returncode
    return f"{found}-dirty" if changed else found


def keep_result(out: Path, kept: Path, cell: Cell, result: dict[str, Any]) -> None:
    """Write the result of a cell below `out`, where it is there as a whole or not at all, and as a line of `kept`."""
    path = out / cell.name / "result.json"
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(result))
    draft.replace(path)
    with kept.open("a") as file:
        file.write(json.dumps({"cell": cell.name, **result}) + "\n")


def read_results(out: Path | None, kept: Path) -> dict[str, dict[str, Any]]:
    """The results of all finished cells, by name. Those below `out` come before kept ones."""
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    found: dict[str, dict[str, Any]] = {row["cell"]: row for row in rows}
    for cell in list_cells(()) if out else ():
        path = out / cell.name / "result.json"
        if path.exists():
            found[cell.name] = json.loads(path.read_text())
    return found


def read_scores(bench: Bench, cell: Cell) -> dict[str, list[float]]:
    result = read_results(bench.out, bench.kept).get(cell.name)
    if result is None:
        raise CommandFailed(f"{cell.name} is needed first")
    return result["scores"]


# ---- the report -----------------------------------------------------------------------------------------------------


def compare(first: dict[str, float], second: dict[str, float]) -> tuple[float, float, float]:
    """The mean paired difference over tasks, with a 95 % interval by bootstrap over tasks."""
    differences = [second[task] - first[task] for task in sorted(first.keys() & second.keys())]
    rng = Random(0)
    means = sorted(fmean(rng.choices(differences, k=len(differences))) for _ in range(BOOTSTRAPS))
    return fmean(differences), means[int(0.025 * BOOTSTRAPS)], means[int(0.975 * BOOTSTRAPS) - 1]


def average(results: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The mean score of each task over seeds."""
    scores: dict[str, list[float]] = {}
    for result in results:
        for task, values in result["scores"].items():
            scores.setdefault(task, []).append(fmean(values))
    return {task: fmean(values) for task, values in scores.items()}


def render_report(results: Mapping[str, dict[str, Any]]) -> tuple[str, str]:
    """The table of what was run, and a sentence about it."""
    rows: list[tuple[object, ...]] = [("environment", "arm", "seeds", "solved", "minus initial", "shipped")]
    done = [cell for cell in list_cells(()) if cell.name in results]
    for env in ENVS:
        for arm in ARMS:
            own = [cell for cell in done if (cell.env, cell.arm) == (env, arm)]
            paired = [c for c in own if Cell(env, c.seed, "initial") in done]
            if paired:
                rows.append(render_arm(results, arm, paired))
    total = len(list_cells(()))
    trained = [cell.name for cell in done if cell.arm in ARMS[2:]]
    sentence = f"{len(done)} of {total} cells were run, {len(trained)} of them trainings"
    return render_table(rows) if len(rows) > 1 else "No cell is finished yet.", sentence


def render_arm(found: Mapping[str, dict[str, Any]], arm: str, cells: Sequence[Cell]) -> tuple[object, ...]:
    results = [found[cell.name] for cell in cells]
    initial = [found[Cell(cell.env, cell.seed, "initial").name] for cell in cells]
    seeds = ", ".join(str(cell.seed) for cell in cells)
    score = f"{fmean(average(results).values()):.1%}"
    if arm == "initial":
        return cells[0].env, arm, seeds, score, "", ""
    gain, low, high = compare(average(initial), average(results))
    changed = sum(result["skill"].strip() != INITIAL.strip() for result in results)
    shipped = "" if arm == ARMS[1] else f"{changed} of {len(results)}"
    name = f"{arm} (the verifier chooses)" if arm == ARMS[1] else arm
    return cells[0].env, name, seeds, score, f"{100 * gain:+.0f} points [{100 * low:+.0f}, {100 * high:+.0f}]", shipped


def write_page(text: str) -> None:
    """Replace the part of docs/optimizer.md that the script makes."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise CommandFailed(f"{PAGE} has no part between {BEGIN} and {END}")
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def _stop(number: int, frame: object) -> None:
    """End with an exception, so that what was started ends too."""
    raise SystemExit("stopped; run it again to go on")


def main() -> int:
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="the folder for all cells; not needed if nothing is run")
    parser.add_argument("--cells", default="", help="only cells that begin like one of these: tickets/1,shop")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after this time (default: when all is done)")
    parser.add_argument("--threads", type=int, default=1, help="cores of the model (default 1)")
    parser.add_argument("--port", type=int, default=8177, help="where the model is served; the same in each session")
    parser.add_argument("--url", default="", help="where the model is served already; not for environments with tools")
    parser.add_argument("--report", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--kept", type=Path, default=KEPT, help=f"results of all sessions (default {KEPT.name})")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"folder for GEPA (default {CACHE})")
    arguments = parser.parse_args()
    out = arguments.out.resolve() if arguments.out else None
    signal.signal(signal.SIGTERM, _stop)
    cells = list_cells([prefix for prefix in arguments.cells.split(",") if prefix])
    if not cells:
        parser.error(f"--cells: no cell begins with {arguments.cells}; an example: tickets/1/ledger")
    if arguments.url and (tools := sorted({cell.env for cell in cells if cell.env in WITH_TOOLS})):
        parser.error(f"--url: {', '.join(tools)} needs tools, which only the gateway writes as this model follows them")
    if out:
        run_cells(cells, out, arguments.minutes, arguments)
    elif arguments.minutes > 0:
        parser.error("--out: name the folder for all cells, or run nothing: --minutes 0")
    table, sentence = render_report(read_results(out, arguments.kept))
    print(f"{MODEL} as agent and optimizer, {ROLLOUTS} rollouts per training, on {describe_machine()}\n\n{table}\n")
    if arguments.report:
        write_page(f"{sentence}.\n\n{table}")
    print(f"real: {sentence}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
