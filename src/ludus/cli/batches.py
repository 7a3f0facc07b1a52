"""`ludus process` and `ludus evaluate`: settings in, a run directory out.

Everything that can be wrong with the settings is found before the run directory is touched. The first Ctrl-C drains:
what runs is finished and recorded. The second cancels what runs. Either way, and when a budget is spent, the run can be
resumed: the line to type is printed. What a run spent so far is kept in `ledger.jsonl`, so that a resumed run does not
get its budget twice.
"""

import asyncio
import json
import shlex
import signal
import sys
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from ludus.batch import (
    GROUPS,
    PAGE,
    SAMPLES,
    SUMMARY,
    Batch,
    OnRollout,
    Progress,
    evaluate,
    groups,
    load_tasks,
    process,
)
from ludus.cli import Arguments
from ludus.cli.tokens import training_fields
from ludus.config import FREE, Config, assemble, to_record, to_yaml
from ludus.config.build_agent import build_env, build_policy
from ludus.config.build_models import build_ledger, build_model
from ludus.config.build_sandboxes import open_sandboxes
from ludus.config.build_tools import build_distribution, open_registry
from ludus.config.reading import Layer, file_layer, flag_layer, is_tree
from ludus.config.tree import CONTENT, TRAINING, EmbeddedConfig
from ludus.config.references import load_env_class
from ludus.config.secrets import secrets
from ludus.config.token_mode import make_ready
from ludus.errors import BudgetExhausted, ConfigError, StoreError
from ludus.models.ledger import Ledger, Totals
from ludus.sandbox.pool import Pool
from ludus.show import ProgressBar, print_summary
from ludus.stats import Summary, summarize
from ludus.store import CONFIG, RunDir, safe_name
from ludus.types import Rollout, to_json

LEDGER = "ledger.jsonl"
"""What each role had spent, a line per finished rollout; the last line counts."""

Status = Literal["completed", "interrupted", "budget"]
EXIT: dict[Status, int] = {"completed": 0, "interrupted": 130, "budget": 3}


@dataclass(frozen=True)
class Outcome:
    """How a batch ended."""

    status: Status
    summary: Summary
    message: str = ""


def run(arguments: Arguments) -> int:
    config = settings(arguments)
    if arguments.print_config:
        print(to_yaml(config), end="")
        return 0
    if not config.env.name and config.run.resume:
        raise ConfigError(f"{config.run.out}: there is no run to go on with; without --resume, one is started")
    if not config.env.name:
        raise ConfigError(f"which environment? For example: ludus {arguments.command} terminal-test (see: ludus envs)")
    config = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, out=str(out_of(config))))
    if isinstance(config.model, EmbeddedConfig) and not arguments.quiet:
        say("model: the small embedded one, for trying things. A real one: --model.base_url URL --model.name NAME")
    return asyncio.run(_whole(config, arguments))


# ---- settings -----------------------------------------------------------------------------------------------------


def settings(arguments: Arguments, base: Sequence[Layer] = ()) -> Config:
    """The settings of a command, over those of `base`. A resumed run's own are the base for whatever else is given."""
    flags = list(arguments.flags)
    if arguments.env:
        flags.append(("env.name", arguments.env))
    if arguments.out:
        flags.append(("run.out", arguments.out))
    if arguments.resume:
        flags.append(("run.resume", "true"))
    layers = [*base, *map(file_layer, map(Path, arguments.config)), *(flag_layer(path, words) for path, words in flags)]
    if not arguments.resume:
        return assemble(layers)
    out = arguments.out or assemble([layer for layer in layers if "run" in layer.tree]).run.out
    if not out:
        raise ConfigError("run.out: which run should be resumed? Name its directory with --out")
    return assemble([*_earlier(Path(out), arguments.env), *layers])


def _earlier(out: Path, env: str | None) -> list[Layer]:
    """The settings of the run in `out`, which is one of the environment that was typed, if one was; none if there is no
    run yet."""
    if not (out / CONFIG).is_file():
        return []
    source, tree = file_layer(out / CONFIG)  # JSON is YAML
    before = tree["env"].get("name") if is_tree(tree.get("env")) else None
    if env and before and env != before:
        raise ConfigError(f"{out} is a run of {before}, not of {env}: leave the environment out, or name another --out")
    return [Layer(source, {name: value for name, value in tree.items() if name != CONTENT})]


def _record(config: Config) -> dict[str, Any]:
    """The settings that a batch depends on: not those of training."""
    return {name: value for name, value in to_record(config).items() if name not in TRAINING}


def out_of(config: Config) -> Path:
    if config.run.out:
        return Path(config.run.out)
    name = safe_name(load_env_class(config.env.name).name)
    base = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    taken = (n for n in range(2, 1000) if not base.with_name(f"{base.name}-{n}").exists())
    return base.with_name(f"{base.name}-{next(taken)}") if base.exists() else base


# ---- running ------------------------------------------------------------------------------------------------------


async def _whole(config: Config, arguments: Arguments) -> int:
    """Build, run, report."""
    out = Path(config.run.out)
    ledger = build_ledger(config, spent(out) if config.run.resume else None)
    async with _built(config, ledger) as (batch, pool):
        directory = RunDir.open(out, _record(config), resume=config.run.resume, ignore=FREE, secrets=secrets(config))
        with directory:
            outcome = await _run(config, arguments, batch, pool, directory, ledger)
    _report(outcome, config, arguments, ledger)
    if outcome.status == "completed" and outcome.summary.overall.scored == 0:
        return 1
    return EXIT[outcome.status]


@asynccontextmanager
async def _built(config: Config, ledger: Ledger) -> AsyncGenerator[tuple[Batch, Pool | None], None]:
    """Everything that the batch needs, alive."""
    env = build_env(config)
    tasks = load_tasks(env, config.env.split, config.env.limit, config.env.ids)
    model = build_model(config.model, ledger, tell=say)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(model.close)
        registry = await stack.enter_async_context(open_registry(config.tools))
        pool = await stack.enter_async_context(open_sandboxes(config, env))
        policy = build_policy(config, env, model, registry)
        await make_ready(policy, env, say)
        batch = Batch(
            env,
            tasks,
            policy,
            config.env.group_size,
            config.run.seed,
            build_distribution(config, env, registry),
            config.tools.disabled,
        )
        yield batch, pool


async def _run(
    config: Config, arguments: Arguments, batch: Batch, pool: Pool | None, directory: RunDir, ledger: Ledger
) -> Outcome:
    """Run the batch until it is done, stopped or out of money. Whatever happened is in the summary."""

    def ended(status: Status, message: str = "") -> Outcome:
        return Outcome(status, summarize(groups(batch, directory)), message)

    def landed(rollout: Rollout, progress: Progress) -> None:
        directory.append(LEDGER, to_json(ledger.roles))
        bar(rollout, progress)

    command = (
        partial(process, more=training_fields(batch.policy.model, say)) if arguments.command == "process" else evaluate
    )
    with draining() as stop, _bar(arguments, batch.env.name) as bar:
        running = command(
            batch,
            pool,
            directory,
            concurrency=config.run.concurrency,
            retries=config.run.retries,
            stop=stop,
            on_rollout=landed,
        )
        try:
            await running
        except BudgetExhausted as error:
            return ended("budget", str(error))
        except asyncio.CancelledError:
            if not stop.is_set():
                raise
            return ended("interrupted", "interrupted; what was under way was dropped")
        finally:
            directory.append(LEDGER, to_json(ledger.roles))
    outcome = ended("completed")
    if stop.is_set() and outcome.summary.overall.rollouts < len(batch.tasks) * batch.group_size:
        return ended("interrupted", "interrupted; what was under way was finished")
    return outcome


@contextmanager
def draining() -> Generator[asyncio.Event]:
    """An event that the first Ctrl-C (or SIGTERM) sets; the second cancels the task that waits here."""
    loop, task, stop = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
    assert task is not None

    def interrupted() -> None:
        if stop.is_set():
            task.cancel()
        else:
            say("stopping: what runs is finished first; Ctrl-C again drops it")
            stop.set()

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupted)
    except (ValueError, RuntimeError):  # not the main thread: whoever runs us there handles signals
        yield stop
        return
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@contextmanager
def _bar(arguments: Arguments, title: str) -> Generator[OnRollout]:
    if arguments.quiet or arguments.json:
        yield lambda rollout, progress: None
        return
    with ProgressBar(title) as bar:
        yield bar


def spent(out: Path) -> dict[str, Totals]:
    """What each role had spent when the run in `out` last wrote it down."""
    try:
        lines = (out / LEDGER).read_bytes().split(b"\n")[:-1]  # without a torn last line
    except FileNotFoundError:
        return {}
    try:
        return msgspec.json.decode(lines[-1], type=dict[str, Totals]) if lines else {}
    except msgspec.MsgspecError as error:
        raise StoreError(
            f"{out / LEDGER} is damaged ({error}): cut off its last line, or raise the budget and remove it"
        ) from None


# ---- reporting ----------------------------------------------------------------------------------------------------


def _report(outcome: Outcome, config: Config, arguments: Arguments, ledger: Ledger) -> None:
    out = Path(config.run.out)
    resume = shlex.join(["ludus", arguments.command, "--resume", "--out", str(out)])
    if outcome.message:
        say(f"{outcome.message}\ngo on with: {resume}")
    if arguments.json:
        print(json.dumps(_machine(outcome, arguments, out, resume, ledger), ensure_ascii=False))
    elif arguments.quiet:
        print(out)
    else:
        print_summary(outcome.summary)
        print("\n" + next_steps(out, outcome.summary, resume))


def _machine(outcome: Outcome, arguments: Arguments, out: Path, resume: str, ledger: Ledger) -> dict[str, Any]:
    names = {"groups": GROUPS, "samples": SAMPLES, "summary": SUMMARY, "page": PAGE}
    return {
        "command": arguments.command,
        "run": str(out),
        "status": outcome.status,
        "message": outcome.message,
        "resume": "" if outcome.status == "completed" else resume,
        "summary": json.loads(to_json(outcome.summary)),
        "ledger": json.loads(to_json(ledger.roles)),
        "files": {key: str(out / name) for key, name in names.items() if (out / name).exists()},
    }


def next_steps(out: Path, summary: Summary, resume: str) -> str:
    """What to do with a run."""
    shown = shlex.quote(str(out))
    lines = [f"{out}"]
    if summary.overall.rollouts > summary.overall.scored:
        failed = summary.overall.rollouts - summary.overall.scored
        lines.append(f"  {resume}   {failed} rollouts have no score: run them again")
    lines.append(f"  ludus show {shown}   the rollouts; add a task id for a transcript")
    if (out / PAGE).exists():
        lines.append(f"  {(out / PAGE).resolve().as_uri()}   the same in a browser")
    return "\n".join(lines)


def say(text: str) -> None:
    print(f"ludus: {text}", file=sys.stderr)
