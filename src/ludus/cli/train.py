"""`ludus train`: settings in; a better skill, and the story of how it came about, out.

Everything that can be wrong with settings and data is found before the run directory is touched and before any model
is asked. `--dry-run` stops there and says what the run would take. The trainer yields records; here they are written
(`ludus.reflact.report.run_files`), drawn and printed. The first Ctrl-C finishes what is under way, the second drops it. Either
way, and when a budget is spent or the world breaks, the run can be resumed and goes on as if nothing had been.

The record of the settings has a section `content`: hashes of the skill, the prompts and the tasks that the settings
point at. A resumed run in which any of these changed is refused like one with other settings.
"""

import asyncio
import json
import shlex
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from ludus.agent import Policy
from ludus.cli import Arguments, skillopt
from ludus.cli.batches import LEDGER, draining, out_of, say, settings, spent
from ludus.cli.plans import Plan, content, dry_run, estimated, planned, skill_head
from ludus.cli.training import TrainingBar, print_training
from ludus.config import FREE, Config, to_record, to_yaml
from ludus.config.build_agent import build_policy
from ludus.config.build_models import build_ledger, build_models
from ludus.config.build_sandboxes import open_sandboxes
from ludus.config.build_tools import open_registry
from ludus.config.build_training import has_optimizer
from ludus.config.tree import CONTENT, EmbeddedConfig, EnvConfig, RunConfig, SameConfig
from ludus.config.secrets import secrets
from ludus.config.token_mode import make_ready
from ludus.errors import BudgetExhausted, ConfigError, ModelError
from ludus.models import Model
from ludus.models.ledger import Ledger
from ludus.reflact.journal import Progress, Watch
from ludus.reflact.lab import Outage
from ludus.reflact.records import Record, Summary
from ludus.reflact.report import run_files as files
from ludus.reflact.report.run_files import Recorder
from ludus.reflact.trainer import train
from ludus.reflact.training_run import Engine
from ludus.sandbox.pool import Pool
from ludus.show import compact, money
from ludus.store import RunDir
from ludus.types import Completion, Message, Sampling, ToolSpec, to_json

Status = Literal["completed", "interrupted", "budget", "broken"]
EXIT: dict[Status, int] = {"completed": 0, "interrupted": 130, "budget": 3, "broken": 1}


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    status: Status
    records: tuple[Record, ...]
    message: str = ""


def run(arguments: Arguments) -> int:
    config = settings(arguments, skillopt.base_layers(arguments))
    if arguments.print_config:
        print(to_yaml(config), end="")
        return 0
    if not config.env.name and config.run.resume:
        raise ConfigError(
            f"{config.run.out or '--out'}: there is no run to go on with; without --resume, one is started"
        )
    if not config.env.name:
        raise ConfigError("which environment? For example: ludus train gsm8k (see: ludus envs)")
    _check_use(config)
    with skillopt.prints_apart(config.env.name):
        plan = planned(config)
    if arguments.dry_run:
        return asyncio.run(dry_run(config, plan, arguments))
    config = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, out=str(out_of(config))))
    if not arguments.quiet:
        _hints(config)
    return asyncio.run(_whole(config, plan, arguments))


def _check_use(config: Config) -> None:
    """Refuse what other commands read and this one would pass over in silence."""
    instead = {
        "split": "data.pool, or data.mode 'splits' with data.train, data.selection and data.test",
        "limit": "data.limit",
        "ids": "data.mode 'folder'",
        "group_size": "train.selection_replicates and train.test_replicates",
    }
    if config.run.seed != RunConfig().seed:
        raise ConfigError("run.seed is for process and evaluate; to train, use train.seed and data.seed")
    for name, other in instead.items():
        if getattr(config.env, name) != getattr(EnvConfig(), name):
            raise ConfigError(f"env.{name} is for process and evaluate; to train, use {other}")
    if config.tools.distribution:
        raise ConfigError(
            "tools.distribution draws toolsets at random, which training cannot: name them (tools.enabled)"
        )


def _hints(config: Config) -> None:
    if isinstance(config.model, EmbeddedConfig):
        say("model: the small embedded one, for trying things. A real one: --model.base_url URL --model.name NAME")
    if isinstance(config.optimizer, SameConfig) and has_optimizer(config):
        say("optimizer: the agent's own model. Another one: --optimizer.base_url URL --optimizer.name NAME")
    elif not has_optimizer(config) and (config.train.slow.enabled or config.train.memory):
        say("no optimizer's model: slow update and optimizer memory, which need one, are off")


# ---- running ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Session:
    """Everything that a run needs, alive."""

    config: Config
    plan: Plan
    ledger: Ledger
    policy: Policy
    optimizer: Model | None
    pool: Pool | None


async def _whole(config: Config, plan: Plan, arguments: Arguments) -> int:
    """Build, train, report."""
    out = Path(config.run.out)
    ledger = build_ledger(config, spent(out) if config.run.resume else None)
    async with _built(config, plan, ledger) as session:
        record = {**to_record(config), CONTENT: content(plan, session.policy)}
        directory = RunDir.open(out, record, resume=config.run.resume, ignore=FREE, secrets=secrets(config))
        with directory, skillopt.prints_apart(config.env.name):
            outcome = await _train(session, directory, arguments)
    _report(outcome, config, plan, arguments, ledger)
    return EXIT[outcome.status]


@asynccontextmanager
async def _built(config: Config, plan: Plan, ledger: Ledger) -> AsyncGenerator[Session, None]:
    agent, optimizer = build_models(config, ledger, say)
    agent = skillopt.acting(plan.env) or agent
    async with AsyncExitStack() as stack:
        stack.push_async_callback(agent.close)
        if optimizer is not None and not isinstance(config.optimizer, SameConfig):
            stack.push_async_callback(optimizer.close)
        registry = await stack.enter_async_context(open_registry(config.tools))
        pool = await stack.enter_async_context(open_sandboxes(config, plan.env))
        policy = build_policy(config, plan.env, agent, registry)
        await make_ready(policy, plan.env, say)
        yield Session(config, plan, ledger, policy, optimizer, pool)


async def _train(session: Session, directory: RunDir, arguments: Arguments) -> Outcome:
    """Train until the run is over, stopped, out of money or broken. Whatever was finished is in the files."""
    recorder = Recorder(directory, session.plan.settings, _facts(session), skill_head(session.plan.env))

    def book() -> None:
        directory.append(LEDGER, to_json(session.ledger.roles))

    def heard(progress: Progress) -> None:
        if progress.total:
            book()
        bar(progress, _spent_words(session.config, session.ledger))

    def ended(status: Status, message: str = "") -> Outcome:
        return Outcome(status, tuple(recorder.records), message)

    with draining() as stop, _bar(session, arguments) as bar:
        records = _records(session, directory, stop, heard, book)
        try:
            async with aclosing(records):
                async for record in records:
                    recorder.add(record)
                    bar.record(record, quiet=len(recorder.records) <= recorder.known)
        except BudgetExhausted as error:
            return ended("budget", str(error))
        except (Outage, ModelError) as error:
            return ended("broken", str(error))
        except asyncio.CancelledError:
            if not stop.is_set():
                raise
            return ended("interrupted", "interrupted; what was under way was dropped")
        finally:
            book()
            recorder.report()
    if recorder.records and isinstance(recorder.records[-1], Summary):
        return ended("completed")
    return ended("interrupted", "interrupted; what was under way was finished")


def _records(
    session: Session, directory: RunDir, stop: asyncio.Event, heard: Watch, book: Callable[[], None]
) -> AsyncGenerator[Record, None]:
    config, plan = session.config, session.plan
    return train(
        plan.env,
        session.policy,
        plan.splits,
        plan.settings,
        optimizer=session.optimizer and _Booked(session.optimizer, book),
        sampling=config.train.sampling,
        proposer=plan.proposer,
        prompts=plan.prompts,
        engine=Engine(
            pool=session.pool,
            store=directory,
            concurrency=config.run.concurrency,
            optimizer_concurrency=config.run.concurrency,
            retries=config.run.retries,
            stop=stop,
            watch=heard,
        ),
    )


@dataclass(frozen=True)
class _Booked:
    """A model after whose replies the ledger is written down: a killed run must not get its budget twice."""

    model: Model
    book: Callable[[], None]

    @property
    def name(self) -> str:
        return self.model.name

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        completion = await self.model.complete(messages, tools, sampling)
        self.book()
        return completion

    async def close(self) -> None:
        await self.model.close()


def _facts(session: Session) -> dict[str, str]:
    plan, sizes = session.plan, session.plan.sizes
    return {
        "environment": f"{plan.env.name} {plan.env.version}",
        "model": session.policy.model.name,
        "optimizer": session.optimizer.name if session.optimizer else "none",
        "proposer": plan.proposer.name,
        "tasks": f"{sizes.train} train, {sizes.selection} selection, {sizes.test} test",
        "prompts": plan.prompts.digest,
    }


@contextmanager
def _bar(session: Session, arguments: Arguments) -> "Generator[TrainingBar | _Silent]":
    if arguments.quiet or arguments.json:
        yield _Silent()
        return
    guess = estimated(session.config, session.plan, session.policy)
    with TrainingBar(session.plan.settings.gate, guess.steps, guess.calls("agent").likely) as bar:
        yield bar


class _Silent:
    def __call__(self, stage: Progress, spent: str) -> None: ...

    def record(self, record: Record, *, quiet: bool = False) -> None: ...


def _spent_words(config: Config, ledger: Ledger) -> str:
    """What is spent, and of how much where that is limited."""
    total, budget = ledger.total, config.budget
    words = [f"{compact(total.usage.tokens)}{_of(budget.tokens and compact(budget.tokens))} tokens"]
    if total.usage.dollars or budget.dollars:
        words.append(f"{money(total.usage.dollars)}{_of(budget.dollars and money(budget.dollars))}")
    if budget.calls:
        words.append(f"{total.calls} of {budget.calls} calls")
    return ", ".join(words)


def _of(limit: str | float | None) -> str:
    return f" of {limit}" if limit else ""


# ---- reporting ----------------------------------------------------------------------------------------------------


def _report(outcome: Outcome, config: Config, plan: Plan, arguments: Arguments, ledger: Ledger) -> None:
    out = Path(config.run.out)
    resume = shlex.join(["ludus", "train", "--resume", "--out", str(out)])
    if outcome.message:
        more = " (with a larger budget: --budget.…)" if outcome.status == "budget" else ""
        say(f"{outcome.message}\ngo on with: {resume}{more}")
    if arguments.json:
        print(json.dumps(_machine(outcome, out, resume, ledger), ensure_ascii=False))
    elif arguments.quiet:
        print(out)
    else:
        print_training(outcome.records, plan.settings.gate)
        print(f"\n{out}\n  ludus show {shlex.quote(str(out))}   the steps again; add a task id for a transcript")
        for name, words in ((files.BEST, "the best skill"), (files.REPORT, "the whole story in a browser")):
            if (out / name).exists():
                print(f"  {(out / name).resolve().as_uri() if name == files.REPORT else out / name}   {words}")


def _machine(outcome: Outcome, out: Path, resume: str, ledger: Ledger) -> dict[str, Any]:
    names = {"steps": files.STEPS, "summary": files.SUMMARY, "report": files.REPORT}
    names |= {"best": files.BEST, "final": files.FINAL}
    last = outcome.records[-1] if outcome.records else None
    summary = json.loads(files.summary(last, outcome.records)) if isinstance(last, Summary) else None
    return {
        "command": "train",
        "run": str(out),
        "status": outcome.status,
        "message": outcome.message,
        "resume": "" if outcome.status == "completed" else resume,
        "steps": last.state.step if last else 0,
        "summary": summary,
        "ledger": json.loads(to_json(ledger.roles)),
        "files": {key: str(out / name) for key, name in names.items() if (out / name).exists()},
    }
