"""What `ludus process` and `ludus evaluate` share: run a batch into a run directory and report it."""

import asyncio
import dataclasses
import json
import shlex
from collections.abc import AsyncGenerator, Awaitable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from ludus.batch import GROUPS, PAGE, SAMPLES, SUMMARY, Batch, BatchProgress, OnRollout, load_tasks, read_groups
from ludus.cli.acting_envs import make_actor, redirect_prints
from ludus.cli.command import RunArguments
from ludus.cli.common import (
    RunReport,
    choose_exit_code,
    count_bugs,
    make_resume_command,
    open_agent,
    open_ledger,
    open_run,
    print_model_hint,
    print_notice,
    print_report,
    read_settings,
    require_env,
    run_to_end,
    set_out,
    write_spent,
)
from ludus.cli.output.run_tables import ProgressBar, print_summary
from ludus.config import Config, to_record, to_yaml
from ludus.config.build_agent import build_env
from ludus.config.build_models import build_model, open_judges
from ludus.config.build_tools import build_distribution
from ludus.config.reading import Layer
from ludus.config.tree import TRAINING, WEIGHTS
from ludus.env import Env
from ludus.models.ledger import Ledger
from ludus.rollout import RunOptions
from ludus.sandbox.pool import Pool
from ludus.stats import RunSummary, summarize
from ludus.store import RunDir
from ludus.types import Rollout, to_json

FILES = {"groups": GROUPS, "samples": SAMPLES, "summary": SUMMARY, "page": PAGE}


class RunBatch(Protocol):
    """`ludus.batch.evaluate`, or a function like it."""

    def __call__(
        self, batch: Batch, pool: Pool | None, run: RunDir, options: RunOptions, *, on_rollout: OnRollout
    ) -> Awaitable[object]: ...


def run_command(arguments: RunArguments, run_batch: RunBatch, base: Sequence[Layer] = ()) -> int:
    """Read the settings, over those of `base`, run the batch with `run_batch`, report; returns the exit code."""
    config = read_settings(arguments, base)
    if arguments.print_config:
        print(to_yaml(config), end="")
        return 0
    require_env(config, f"ludus {arguments.command} terminal-test")
    config = set_out(config)
    if not arguments.quiet:
        print_model_hint(config)
    return asyncio.run(_run(config, arguments, run_batch))


async def _run(config: Config, arguments: RunArguments, run_batch: RunBatch) -> int:
    ledger = open_ledger(config)
    async with open_batch(config, ledger) as (batch, pool):
        with (
            open_run(config, make_batch_record(config)) as directory,
            redirect_prints(config.env.name),
            _show_progress(arguments, batch.env.name) as show,
        ):

            def on_rollout(rollout: Rollout, progress: BatchProgress) -> None:
                write_spent(directory, ledger)
                show(rollout, dataclasses.replace(progress, usage=ledger.total.usage))

            async def work(stop: asyncio.Event) -> bool:
                try:
                    await run_batch(batch, pool, directory, config.run.make_options(stop), on_rollout=on_rollout)
                finally:
                    write_spent(directory, ledger)
                return not stop.is_set() or _is_complete(batch, directory)

            outcome = await run_to_end(work)
            summary, bugs = summarize(read_groups(batch, directory)), count_bugs(directory)
    facts = {"summary": json.loads(to_json(summary))}
    report = RunReport(outcome, Path(config.run.out), ledger, facts, FILES, bugs)
    print_report(report, arguments, lambda: _print_result(summary, report, arguments.command))
    if outcome.status == "completed" and summary.overall.scored == 0:
        return 1
    return choose_exit_code(report)


@asynccontextmanager
async def open_batch(config: Config, ledger: Ledger) -> AsyncGenerator[tuple[Batch, Pool | None], None]:
    """The batch, with its model, tools and sandboxes open."""
    env = build_env(config)
    with redirect_prints(config.env.name):
        tasks = load_tasks(env, config.env.split, config.env.limit, config.env.ids)
    if skipped := env.skipped(config.env.split):
        print_notice(explain_skipped(env, skipped))
    model = build_model(config.model, ledger, tell=print_notice)
    agent_parts = open_agent(config, env, model, ledger, make_actor(env, model))
    async with agent_parts as agent, open_judges(config, env, ledger, print_notice):
        distribution = build_distribution(config, env, agent.registry)
        size, seed = config.env.group_size, config.run.seed
        yield Batch(env, tasks, agent.policy, size, seed, distribution, config.tools.disabled), agent.pool


def explain_skipped(env: Env, skipped: Mapping[str, str]) -> str:
    """One line for each reason, with the tasks that it applies to."""
    reasons: dict[str, list[str]] = {}
    for id, reason in skipped.items():
        reasons.setdefault(reason, []).append(id)
    lines = [
        f"  {', '.join(ids[:3])}{f' and {len(ids) - 3} more' if len(ids) > 3 else ''}: {reason}"
        for reason, ids in reasons.items()
    ]
    return "\n".join([f"{env.name}: {len(skipped)} tasks cannot be run here and are skipped", *lines])


def make_batch_record(config: Config) -> dict[str, Any]:
    """The settings that a batch depends on: all but those of training."""
    return {name: value for name, value in to_record(config).items() if name not in TRAINING | WEIGHTS}


def _is_complete(batch: Batch, directory: RunDir) -> bool:
    rollouts = sum(len(group.rollouts) for group in read_groups(batch, directory))
    return rollouts == len(batch.tasks) * batch.group_size


@contextmanager
def _show_progress(arguments: RunArguments, title: str) -> Generator[OnRollout]:
    if arguments.quiet or arguments.json:
        yield lambda rollout, progress: None
        return
    with ProgressBar(title) as bar:
        yield bar


def _print_result(summary: RunSummary, report: RunReport, command: str) -> None:
    out = report.out
    print_summary(summary, spent=report.ledger.total.usage)
    print(f"\n{out}")
    failed = summary.overall.excluded
    if failed:
        what = "1 rollout has no score: run it" if failed == 1 else f"{failed} rollouts have no score: run them"
        print(f"  {make_resume_command(command, out)}   {what} again")
    print(f"  ludus show {shlex.quote(str(out))}   the rollouts; add a task id for a transcript")
    if (out / PAGE).exists():
        print(f"  {(out / PAGE).resolve().as_uri()}   the same in a browser")
