"""`ludus train`: train the skill of a frozen agent.

Settings and data are checked before the run directory is made and before a model is called. With `--dry-run` the
command prints what the run would take and stops. The trainer yields records; this module writes them
(`ludus.reflact.report.run_files`), shows the progress and prints the result.

The recorded settings have a section `content`: hashes of the skill, the prompts and the tasks that the settings refer
to. A resumed run in which one of these has changed is refused, like one with other settings.
"""

import asyncio
import json
import shlex
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.agent import Policy
from ludus.cli.acting_envs import make_actor, redirect_prints
from ludus.cli.command import FILE_TAKES, Command, RunArguments, make_argument
from ludus.cli.common import (
    RunOutcome,
    RunReport,
    choose_exit_code,
    count_bugs,
    open_agent,
    open_ledger,
    open_run,
    print_model_hint,
    print_notice,
    print_report,
    read_settings,
    refuse_batch_settings,
    require_env,
    run_to_end,
    set_out,
    write_spent,
)
from ludus.cli.file_envs import is_file_run, open_file_actor, read_file_settings
from ludus.cli.output.terminal import format_count, format_money
from ludus.cli.output.training_tables import TrainingBar, print_training
from ludus.cli.skillopt_runs import read_layers
from ludus.cli.train_estimate import estimate_run, print_dry_run
from ludus.cli.train_plan import Plan, hash_content, make_plan, make_skill_head
from ludus.config import Config, to_record, to_yaml
from ludus.config.build_models import build_models, open_judges
from ludus.config.build_training import has_optimizer
from ludus.config.tree import CONTENT, SameSettings
from ludus.errors import ConfigError, ModelError
from ludus.models import Model
from ludus.models.ledger import Ledger, LedgerReserve
from ludus.reflact.gate import Gate
from ludus.reflact.journal import StageProgress, Watch
from ludus.reflact.measure import Outage
from ludus.reflact.records import Record, Step, Summary, count_useless_replies
from ludus.reflact.report import run_files as files
from ludus.reflact.report.run_files import RunRecorder, find_tested_skills
from ludus.reflact.report.transcripts_page import TRANSCRIPTS
from ludus.reflact.trainer import train
from ludus.reflact.training_run import Resources
from ludus.sandbox.pool import Pool
from ludus.store import RunDir
from ludus.types import Completion, Message, Sampling, ToolSpec

_SETTINGS = """\
settings (list them: ludus config; explained in docs/skill-training.md):
  --data.pool train,test --data.ratio 2:1:7                how tasks are divided: train, selection, test
  --model.base_url URL --model.name NAME                   the agent's model
  --optimizer.base_url URL --optimizer.name NAME           the model that proposes changes
  --recipe ledger --train.epochs 4 --agent.skill SKILL.md --budget.rollouts 800 --budget.dollars 2"""

FILES = {
    "steps": files.STEPS,
    "summary": files.SUMMARY,
    "report": files.REPORT,
    "trajectories": TRANSCRIPTS,
    "best": files.BEST,
    "final": files.FINAL,
}


class TrainArguments(RunArguments):
    skillopt: str
    dry_run: bool
    recipe: str


def run(arguments: TrainArguments) -> int:
    if arguments.recipe:
        arguments.flags = [*arguments.flags, ("train.recipe", arguments.recipe)]
    config = _read_config(arguments)
    if arguments.print_config:
        print(to_yaml(config), end="")
        return 0
    require_env(config, "ludus train gsm8k")
    _refuse_other_settings(config)
    with redirect_prints(config.env.name):
        plan = make_plan(config)
    if arguments.dry_run:
        asyncio.run(print_dry_run(config, plan, as_json=arguments.json))
        return 0
    config = set_out(config)
    if not arguments.quiet:
        _print_hints(config, plan)
    return asyncio.run(_run(config, plan, arguments))


def _read_config(arguments: TrainArguments) -> Config:
    if not is_file_run(arguments):
        return read_settings(arguments, read_layers(arguments.skillopt, arguments.config, arguments.flags))
    config, loaded = read_file_settings(arguments)
    loaded.close()  # each part of the run loads it for itself
    return config


INSTEAD = {
    "run.seed": "train.seed and data.seed",
    "env.split": "data.pool, or data.mode 'splits' with data.train, data.selection and data.test",
    "env.limit": "data.limit",
    "env.ids": "data.mode 'folder'",
    "env.group_size": "train.selection_replicates and train.test_replicates",
}
"""What to set in place of settings of other commands."""


def _refuse_other_settings(config: Config) -> None:
    """Raise `ConfigError` for settings that other commands use."""
    refuse_batch_settings(config, "to train", INSTEAD)
    if config.tools.distribution:
        raise ConfigError(
            "tools.distribution draws toolsets at random, which training cannot: name them (tools.enabled)"
        )


FEW = 20
"""With fewer rollouts on the selection split than this, there is a warning."""


def _print_hints(config: Config, plan: Plan) -> None:
    print_model_hint(config)
    rollouts = plan.sizes.selection * plan.settings.selection_replicates
    if rollouts < FEW:
        print_notice(
            f"the selection split has {plan.sizes.selection} tasks: they tell little apart (see `ludus headroom`). "
            "A larger share: --data.ratio 1:1:1; more rollouts: --train.selection_replicates 3"
        )
    if isinstance(config.optimizer, SameSettings) and has_optimizer(config):
        print_notice("optimizer: the agent's own model. Another one: --optimizer.base_url URL --optimizer.name NAME")
    elif not has_optimizer(config) and (config.train.slow.enabled or config.train.memory):
        print_notice("no optimizer's model: slow update and optimizer memory, which need one, are off")


# ---- running ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingParts:
    """Everything that a training run needs, open."""

    config: Config
    plan: Plan
    ledger: Ledger
    policy: Policy
    optimizer: Model | None
    pool: Pool | None


async def _run(config: Config, plan: Plan, arguments: TrainArguments) -> int:
    ledger = open_ledger(config)
    async with _open_parts(config, plan, ledger) as parts:
        record = {**to_record(config), CONTENT: hash_content(plan, parts.policy)}
        with open_run(config, record) as directory, redirect_prints(config.env.name):
            outcome, records = await _train(parts, directory, arguments)
            bugs = count_bugs(directory)
    report = RunReport(outcome, Path(config.run.out), ledger, _describe_records(records), FILES, bugs)
    print_report(report, arguments, lambda: _print_result(records, plan.settings.gate, report.out))
    return _report_useless_replies(records) or choose_exit_code(report)


@asynccontextmanager
async def _open_parts(config: Config, plan: Plan, ledger: Ledger) -> AsyncGenerator[TrainingParts, None]:
    model, optimizer = build_models(config, ledger, print_notice)
    async with AsyncExitStack() as stack:
        if optimizer is not None and not isinstance(config.optimizer, SameSettings):
            stack.push_async_callback(optimizer.close)
        own = await stack.enter_async_context(open_file_actor(config, plan.env, model, ledger))
        actor = own or make_actor(plan.env, model)
        agent = await stack.enter_async_context(open_agent(config, plan.env, model, ledger, actor))
        await stack.enter_async_context(open_judges(config, plan.env, ledger, print_notice))
        yield TrainingParts(config, plan, ledger, agent.policy, optimizer, agent.pool)


async def _train(
    parts: TrainingParts, directory: RunDir, arguments: TrainArguments
) -> tuple[RunOutcome, Sequence[Record]]:
    """Train until the run is complete, interrupted, out of budget or broken. What was finished is in the files."""
    recorder = RunRecorder(directory, parts.plan.settings, _list_facts(parts), make_skill_head(parts.plan.env))

    def on_spending() -> None:
        write_spent(directory, parts.ledger)

    def on_progress(progress: StageProgress) -> None:
        if progress.total:
            on_spending()
        bar(progress, _describe_spending(parts.config, parts.ledger))

    async def work(stop: asyncio.Event) -> bool:
        records = _start_training(parts, directory, stop, on_progress, on_spending)
        try:
            async with aclosing(records):
                async for record in records:
                    recorder.add(record)
                    bar.record(record, quiet=len(recorder.records) <= recorder.known)
        finally:
            on_spending()
            recorder.write_report(ended=True)
        return bool(recorder.records) and isinstance(recorder.records[-1], Summary)

    with _show_progress(parts, arguments) as bar:
        outcome = await run_to_end(work, (Outage, ModelError))
    return outcome, tuple(recorder.records)


def _start_training(
    parts: TrainingParts, directory: RunDir, stop: asyncio.Event, on_progress: Watch, on_spending: Callable[[], None]
) -> AsyncGenerator[Record, None]:
    config, plan = parts.config, parts.plan
    return train(
        plan.env,
        parts.policy,
        plan.splits,
        plan.settings,
        optimizer=parts.optimizer and _WatchedModel(parts.optimizer, on_spending),
        proposer=plan.proposer,
        prompts=plan.prompts,
        rule=plan.rule,
        resources=Resources(
            pool=parts.pool,
            store=directory,
            options=config.run.make_options(stop),
            optimizer_concurrency=config.run.concurrency,
            watch=on_progress,
            rollouts=config.budget.rollouts,
            reserve=LedgerReserve(parts.ledger),
            tested_before=find_tested_skills(Path(config.run.out), plan.splits.test.digest),
        ),
    )


@dataclass(frozen=True)
class _WatchedModel:
    """A model that calls `on_reply` after each reply: spending is written down even if the process is killed."""

    model: Model
    on_reply: Callable[[], None]

    @property
    def name(self) -> str:
        return self.model.name

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        completion = await self.model.complete(messages, tools, sampling)
        self.on_reply()
        return completion

    async def close(self) -> None:
        await self.model.close()


def _list_facts(parts: TrainingParts) -> dict[str, str]:
    """What the report says about the run."""
    plan, sizes = parts.plan, parts.plan.sizes
    return {
        "environment": f"{plan.env.name} {plan.env.version}",
        "model": parts.policy.model_name,
        "optimizer": parts.optimizer.name if parts.optimizer else "none",
        "proposer": plan.proposer.name,
        "tasks": f"{sizes.train} train, {sizes.selection} selection, {sizes.test} test",
        "prompts": plan.prompts.compute_digest(plan.settings.recipe, plan.settings.support),
    }


@contextmanager
def _show_progress(parts: TrainingParts, arguments: TrainArguments) -> "Generator[TrainingBar | _NoBar]":
    if arguments.quiet or arguments.json:
        yield _NoBar()
        return
    guess = estimate_run(parts.config, parts.plan, parts.policy)
    with TrainingBar(parts.plan.settings.gate, guess.steps, guess.count_calls("agent").likely) as bar:
        yield bar


class _NoBar:
    """In place of a `TrainingBar` where nothing is shown."""

    def __call__(self, stage: StageProgress, spent: str) -> None: ...

    def record(self, record: Record, *, quiet: bool = False) -> None: ...


def _describe_spending(config: Config, ledger: Ledger) -> str:
    """What is spent, and the limits of the budget."""
    total, budget = ledger.total, config.budget
    words = [f"{format_count(total.usage.tokens)}{_format_limit(budget.tokens and format_count(budget.tokens))} tokens"]
    if total.usage.dollars or budget.dollars:
        words.append(
            f"{format_money(total.usage.dollars)}{_format_limit(budget.dollars and format_money(budget.dollars))}"
        )
    if budget.calls:
        words.append(f"{total.calls} of {budget.calls} calls")
    for role, limits in (("agent", budget.agent), ("optimizer", budget.optimizer)):
        spent = ledger.roles.get(role)
        if spent is not None and limits.dollars:
            words.append(f"{role} {format_money(spent.usage.dollars)} of {format_money(limits.dollars)}")
    return ", ".join(words)


def _format_limit(limit: str | float | None) -> str:
    return f" of {limit}" if limit else ""


# ---- the result ---------------------------------------------------------------------------------------------------


def _describe_records(records: Sequence[Record]) -> dict[str, Any]:
    """The part of the JSON report that is about training."""
    last = records[-1] if records else None
    summary = json.loads(files.encode_summary(last, records)) if isinstance(last, Summary) else None
    return {"steps": last.state.step if last else 0, "summary": summary}


def _report_useless_replies(records: Sequence[Record]) -> int:
    """Say so if the run is complete although the optimizer gave no usable reply. Returns 1 in this case, else 0."""
    useless = count_useless_replies(records) if records and isinstance(records[-1], Summary) else 0
    if not useless:
        return 0
    problem = next(event.problem for record in records if isinstance(record, Step) for event in record.events)
    print_notice(
        f"0 of {useless} replies of the optimizer were usable, so nothing was learned. The first problem: {problem}. "
        "Use another model (--optimizer.base_url URL --optimizer.name NAME), or give it more room (train.reply_tokens)"
    )
    return 1


def _print_result(records: Sequence[Record], gate: Gate, out: Path) -> None:
    print_training(records, gate)
    last = records[-1] if records else None
    if isinstance(last, Summary) and last.ended_early:
        print_notice(f"training ended early, so that shipping and test fit into the budget: {last.ended_early}")
    print(f"\n{out}\n  ludus show {shlex.quote(str(out))}   the steps again; add a task id for a transcript")
    shown = {
        files.BEST: "the skill that is shipped",
        files.REPORT: "the whole run in a browser",
        TRANSCRIPTS: "every rollout",
    }
    for name, words in shown.items():
        if (out / name).exists():
            print(f"  {(out / name).resolve().as_uri() if name.endswith('.html') else out / name}   {words}")


COMMAND = Command(
    run,
    "ludus train gsm8k --dry-run        # estimate the cost\n"
    "ludus train gsm8k --data.pool train,test --data.ratio 1:1:1 --out runs/skill\n"
    "ludus train --resume --out runs/skill",
    (
        *FILE_TAKES,
        make_argument(
            "--recipe",
            metavar="NAME",
            default="",
            help="how to learn: ledger (evidence for each line) or reflact (a gate for each candidate)",
        ),
        make_argument("--dry-run", action="store_true", help="estimate calls, tokens and cost, and stop"),
        make_argument(
            "--skillopt", metavar="FILE", default="", help="settings in SkillOpt's YAML; --config overrides them"
        ),
    ),
    TrainArguments,
    _SETTINGS,
)
