"""`ludus rl`: train the weights of a policy.

Settings and data are checked before the run directory is made. The loop (`ludus.rl.rl_loop`) yields the record of each
step; this module writes them, shows the progress and prints the result.

    steps.jsonl      a line for the start and for each step, without times
    summary.json     the result of the run
    report.html      the curve and the steps as a page
    checkpoints/     the last states of the trainer; the newest has the trained policy
"""

import asyncio
import json
import shlex
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ludus.batch import load_tasks
from ludus.cli.acting_envs import make_actor, redirect_prints
from ludus.cli.command import RUN_TAKES, Command, RunArguments, make_argument
from ludus.cli.common import (
    AgentParts,
    RunOutcome,
    RunReport,
    choose_exit_code,
    count_bugs,
    open_agent,
    open_ledger,
    print_notice,
    print_report,
    read_settings,
    refuse_batch_settings,
    require_env,
    run_to_end,
    set_out,
    write_spent,
)
from ludus.cli.output.rl_page import render_rl_page
from ludus.cli.output.rl_tables import RlBar, describe_step, plot_rewards
from ludus.cli.output.terminal import format_duration
from ludus.config import MAY_CHANGE, Config, to_record, to_yaml
from ludus.config.build_agent import build_env
from ludus.config.build_models import open_judges
from ludus.config.build_trainer import build_trainer
from ludus.config.secrets import list_secrets, read_secret
from ludus.config.tree import TRAINING, WEIGHTS
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.models import Model
from ludus.models.ledger import Ledger, MeteredModel
from ludus.rl.atropos_client import AtroposClient
from ludus.rl.group_feed import RunParts
from ludus.rl.rl_loop import RlRun, check_settings, run_rl
from ludus.rl.rl_records import RlStep, encode_step
from ludus.rl.rl_settings import RlSettings
from ludus.rl.server_exchange import ServerExchange
from ludus.rl.trainers import Trainer, TrainingDiverged
from ludus.store import RunDir
from ludus.types import Rollout, Task, to_json

STEPS, SUMMARY, REPORT, CHECKPOINTS = "steps.jsonl", "summary.json", "report.html", "checkpoints"
FILES = {"steps": STEPS, "summary": SUMMARY, "report": REPORT, "checkpoints": CHECKPOINTS}
OWN = frozenset({"rl", "trainer"})
"""The sections that decide an RL run: they may not change when it is resumed, except where the settings say so."""

_SETTINGS = """\
settings (list them: ludus config; explained in docs/rl.md):
  --rl.steps 60 --rl.groups 12 --rl.group_size 16          updates, and the rollouts of each
  --rl.staleness 1                                         sample while the trainer is busy; 0 is on-policy
  --rl.eval_every 10 --rl.eval_split validation            measure on tasks that are not trained on
  --trainer.weights FOLDER --trainer.lora_rank 16          the policy, and what of it is trained
  --trainer.type tinker --trainer.base_model NAME          train on Tinker, or on SkyRL
  --run.concurrency 192 --sampling.max_tokens 64 --agent.skill SKILL.md"""


class RlArguments(RunArguments):
    dry_run: bool
    server: str


@dataclass(frozen=True)
class RlData:
    """The environment and the tasks of a run."""

    env: Env
    tasks: tuple[Task, ...]
    held_out: tuple[Task, ...]


def run(arguments: RlArguments) -> int:
    if arguments.server:
        arguments.flags = [*arguments.flags, ("rl.server", arguments.server)]
    config = read_settings(arguments)
    if arguments.print_config:
        print(to_yaml(config), end="")
        return 0
    require_env(config, "ludus rl parcels")
    _refuse_other_settings(config)
    data = _load_data(config)
    if arguments.dry_run:
        _print_dry_run(config, data, as_json=arguments.json)
        return 0
    return asyncio.run(_run(set_out(config), data, arguments))


INSTEAD = {
    "env.split": "rl.split",
    "env.limit": "rl.limit",
    "env.group_size": "rl.group_size",
    "env.ids": "rl.limit",
    "run.seed": "rl.seed",
}
"""What to set in place of settings of other commands."""


def _refuse_other_settings(config: Config) -> None:
    """Raise `ConfigError` for settings that other commands use."""
    refuse_batch_settings(config, "for rl", INSTEAD)
    if config.tools.distribution:
        raise ConfigError("tools.distribution draws toolsets at random, which rl does not: name them (tools.enabled)")


def _load_data(config: Config) -> RlData:
    with redirect_prints(config.env.name):
        return _load_tasks(config)


def _load_tasks(config: Config) -> RlData:
    env, settings = build_env(config), config.rl
    tasks = load_tasks(env, settings.split, settings.limit)
    if not settings.eval_every:
        return RlData(env, tasks, ())
    try:
        return RlData(env, tasks, load_tasks(env, settings.eval_split, settings.eval_limit))
    except ConfigError as error:
        raise ConfigError(f"rl.eval_split: {error}; rl.eval_every 0 turns evaluation off") from error


# ---- a dry run ------------------------------------------------------------------------------------------------------


def estimate_rollouts(settings: RlSettings, held_out: int) -> dict[str, int]:
    """The rollouts of a run: those that are trained on, and those of evaluations."""
    evaluations = 0
    if settings.eval_every and held_out:
        evaluations = 1 + settings.steps // settings.eval_every + bool(settings.steps % settings.eval_every)
    return {
        "train": settings.steps * settings.groups * settings.group_size,
        "evaluate": evaluations * held_out * settings.eval_size,
    }


def _print_dry_run(config: Config, data: RlData, *, as_json: bool) -> None:
    settings = config.rl
    rollouts = estimate_rollouts(settings, len(data.held_out))
    passes = settings.steps * settings.groups / len(data.tasks)
    if as_json:
        sizes = {"train": len(data.tasks), "held_out": len(data.held_out)}
        print(json.dumps({"steps": settings.steps, "tasks": sizes, "rollouts": rollouts, "passes": passes}))
        return
    mode = f"asynchronous, at most {settings.staleness} updates behind" if settings.staleness else "on-policy"
    print(f"{len(data.tasks)} tasks to train on, {len(data.held_out)} held out; {settings.steps} steps, {mode}")
    print(
        f"rollouts: {rollouts['train']} to train on ({passes:.1f} passes over the tasks), "
        f"{rollouts['evaluate']} in evaluations"
    )
    print("Nothing was started. How long it takes depends on the policy: the first step of a run shows its time.")


# ---- running --------------------------------------------------------------------------------------------------------


async def _run(config: Config, data: RlData, arguments: RlArguments) -> int:
    ledger = open_ledger(config)
    async with _open_parts(config, data, ledger) as parts:
        with _open_directory(config) as directory, redirect_prints(config.env.name):
            outcome, records = await _train(parts, directory, ledger, arguments)
            bugs = count_bugs(directory)
    facts = {"steps": records[-1].step if records else 0, "summary": _summarize(records)}
    report = RunReport(outcome, Path(config.run.out), ledger, facts, FILES, bugs)
    print_report(report, arguments, lambda: _print_result(records, config.rl.steps, report.out))
    return choose_exit_code(report)


def _open_directory(config: Config) -> RunDir:
    left_out = TRAINING | (WEIGHTS - OWN)
    record = {name: value for name, value in to_record(config).items() if name not in left_out | {"model"}}
    out, secrets = Path(config.run.out), list_secrets(config)
    return RunDir.open(out, record, resume=config.run.resume, ignore=MAY_CHANGE - OWN, secrets=secrets)


@dataclass(frozen=True)
class _Parts:
    """What a run needs, open."""

    config: Config
    data: RlData
    trainer: Trainer
    agent: AgentParts
    wrap: Callable[[Model], Model]
    exchange: ServerExchange | None

    def make_run(self, directory: RunDir, stop: asyncio.Event, on_rollout: Callable[[Rollout], None]) -> RlRun:
        options = self.config.run.make_options(stop)
        return RlRun(
            policy=self.agent.policy,
            trainer=self.trainer,
            settings=self.config.rl,
            tasks=self.data.tasks,
            held_out=self.data.held_out,
            parts=RunParts(self.data.env, self.agent.pool, directory, options, on_rollout),
            checkpoints=directory.path / CHECKPOINTS,
            wrap=self.wrap,
            exchange=self.exchange,
        )


@asynccontextmanager
async def _open_parts(config: Config, data: RlData, ledger: Ledger) -> AsyncGenerator[_Parts, None]:
    """The trainer, the tools and the sandboxes, open."""

    def wrap(model: Model) -> Model:
        return MeteredModel(model, ledger, "agent")

    async with AsyncExitStack() as stack:
        trainer = build_trainer(config, print_notice)
        stack.push_async_callback(trainer.close)
        first = wrap(await trainer.get_model(trainer.name))
        actor = make_actor(data.env, first)
        agent = await stack.enter_async_context(open_agent(config, data.env, first, ledger, actor))
        await stack.enter_async_context(open_judges(config, data.env, ledger, print_notice))
        check_settings(config.rl, agent.policy.sampling)
        exchange = _open_exchange(config)
        if exchange is not None:
            stack.push_async_callback(exchange.close)
        yield _Parts(config, data, trainer, agent, wrap, exchange)


def _open_exchange(config: Config) -> ServerExchange | None:
    settings = config.rl
    if not settings.server:
        return None
    client = AtroposClient(settings.server, token=read_secret(settings.token_var, "rl.token_var"))
    return ServerExchange(
        client,
        Path(config.run.out).resolve().name,
        groups=settings.groups,
        group_size=settings.group_size,
        steps=settings.steps,
        scale=settings.scale,
        tell=print_notice,
    )


async def _train(
    parts: _Parts, directory: RunDir, ledger: Ledger, arguments: RlArguments
) -> tuple[RunOutcome, Sequence[RlStep]]:
    settings = parts.config.rl
    recorder = RlRecorder(directory, _list_facts(parts))

    async def work(stop: asyncio.Event) -> bool:
        def on_rollout(rollout: Rollout) -> None:
            write_spent(directory, ledger)
            bar(rollout)

        records = run_rl(parts.make_run(directory, stop, on_rollout))
        try:
            async with aclosing(records):
                async for record in records:
                    bar.record(record, quiet=record.step <= recorder.known)
                    recorder.add(record)
        finally:
            write_spent(directory, ledger)
            recorder.finish()
        return bool(recorder.records) and recorder.records[-1].step >= settings.steps

    with _show_progress(settings, arguments) as bar:
        outcome = await run_to_end(work, (TrainingDiverged,))
    return outcome, tuple(recorder.records)


class RlRecorder:
    """Writes the files of a run as its records arrive."""

    _EVERY = 5.0
    """Seconds between two pages while the run is going on."""

    def __init__(self, run: RunDir, facts: dict[str, str]) -> None:
        self.records: list[RlStep] = []
        self._run = run
        self._facts = facts
        run.repair(STEPS)
        lines = list(run.read_lines(STEPS))
        self.known = len(lines) - 1
        """The last step that an earlier process had written; -1: there was none."""
        self._written: list[bytes] = lines
        self._reported = 0.0

    def add(self, record: RlStep) -> None:
        self.records.append(record)
        line, place = encode_step(record), len(self.records) - 1
        if self._written[place : place + 1] != [line]:
            if place < len(self._written):  # computed again after a resume, with other groups
                self._written = self._written[:place]
                self._run.write(STEPS, (old + b"\n" for old in self._written))
            self._written.append(line)
            self._run.append(STEPS, line)
        if time.monotonic() - self._reported > self._EVERY:
            self._write_page()

    def finish(self) -> None:
        """Write the page and the summary. Called also after an error."""
        self._write_page()
        self._run.write(SUMMARY, msgspec.json.format(to_json(_summarize(self.records)), indent=2) + b"\n")

    def _write_page(self) -> None:
        self._run.write(REPORT, render_rl_page(self._run.path.resolve().name, self._facts, self.records))
        self._reported = time.monotonic()


def _list_facts(parts: _Parts) -> dict[str, str]:
    env, settings, skill = parts.data.env, parts.config.rl, parts.agent.policy.skill
    return {
        "environment": f"{env.name} {env.version}",
        "policy": parts.trainer.name,
        "trainer": str(type(parts.config.trainer).__struct_config__.tag),
        "each step": f"{settings.groups} tasks × {settings.group_size} rollouts",
        "staleness": str(settings.staleness) if settings.staleness else "on-policy",
        "skill": skill.hash if skill else "",
    }


def _summarize(records: Sequence[RlStep]) -> dict[str, Any]:
    """The result of a run: the first and the last numbers, and the totals."""
    updates = [record for record in records if record.step]
    held = [record for record in records if record.held_out is not None]
    return {
        "steps": len(updates),
        "version": records[-1].version if records else 0,
        "reward": {"first": updates[0].reward, "last": updates[-1].reward} if updates else None,
        "held_out": [{"step": record.step, **msgspec.to_builtins(record.held_out)} for record in held],
        "rollouts": sum(record.rollouts for record in updates),
        "failed": sum(record.failed for record in updates),
        "seconds": sum(record.seconds.get("whole", 0.0) for record in records),
    }


@contextmanager
def _show_progress(settings: RlSettings, arguments: RlArguments) -> "Generator[RlBar | _NoBar]":
    if arguments.quiet or arguments.json:
        yield _NoBar()
        return
    with RlBar(settings.steps, settings.groups * settings.group_size) as bar:
        yield bar


class _NoBar:
    """In place of an `RlBar` where nothing is shown."""

    def __call__(self, rollout: Rollout) -> None: ...

    def record(self, record: RlStep, *, quiet: bool = False) -> None: ...


def _print_result(records: Sequence[RlStep], steps: int, out: Path) -> None:
    if plot := plot_rewards(records):
        print(f"\n{plot}")
    if records:
        print(f"\n{describe_step(records[-1], steps)}")
        print(f"took {format_duration(sum(record.seconds.get('whole', 0.0) for record in records))}")
    print(f"\n{out}\n  ludus show {shlex.quote(str(out))}   the steps again; add a task id for a transcript")
    if (out / REPORT).exists():
        print(f"  {(out / REPORT).resolve().as_uri()}   the whole run in a browser")
    sys.stdout.flush()


COMMAND = Command(
    run,
    "ludus rl parcels --dry-run        # how many rollouts it will take\n"
    "ludus rl parcels --rl.steps 60 --run.concurrency 192 --sampling.max_tokens 16 --out runs/rl\n"
    "ludus rl --resume --out runs/rl   # after a stop, a crash or a kill",
    (
        *RUN_TAKES,
        make_argument("--dry-run", action="store_true", help="say how many rollouts the run takes, and stop"),
        make_argument(
            "--server", metavar="URL", default="", help="a trajectory server through which groups go to the trainer"
        ),
    ),
    RlArguments,
    _SETTINGS,
)
