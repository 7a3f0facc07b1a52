"""A run: opened once, in one order, and closed in the reverse one.

    settings, trackers ──> ledger ──> model ──> tools, slots, policy ──> judges ──> directory ──> Run

`open_run` is the only way in which commands open what rollouts are run with, and Python users have it too. Settings are
checked before the run directory is made. `run_to_end` does the work of a run until it is complete, interrupted, out of
budget, stalled, failing or broken. What a run is and how it ended is in its `run.json` (`ludus.run_info`).

The first Ctrl-C drains: what runs is finished and recorded. The second drops what runs. After either, and after a spent
budget, the run can be resumed. `ledger.jsonl` keeps what the run has spent, so that a resumed run does not get its
budget a second time.
"""

import asyncio
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ludus.activity import ActivityReport
from ludus.config import MAY_CHANGE, Config, to_record
from ludus.config.build_agent import build_env, build_policy, build_slot
from ludus.config.build_engine import open_engine
from ludus.config.build_models import build_judges, build_ledger, build_model, build_vision
from ludus.config.build_sandboxes import open_sandboxes
from ludus.config.build_tools import open_registry
from ludus.config.build_trackers import build_trackers
from ludus.config.secrets import list_secrets
from ludus.config.token_mode import prepare_model
from ludus.config.tree import CATALOGUE, CONTENT, PACKAGES, PLAN, SHARDS, TRAINING, WEIGHTS
from ludus.control import RunControl
from ludus.encoding import to_json
from ludus.env import Env
from ludus.env_code import check_code, hash_code
from ludus.errors import BudgetExhausted, ConfigError, EngineLost, ModelUnusable, RunStalled, StoreError
from ludus.models import Model
from ludus.models.ledger import Ledger
from ludus.models.settings import EmbeddedSettings
from ludus.policy import Agent, Policy
from ludus.run_info import LEDGER, State, Tell, keep_info, read_info, read_spent
from ludus.runner import Runner
from ludus.store import RunDir
from ludus.tools.toolsets import Registry
from ludus.trackers import METRICS, TrackedRun, TrackerSet
from ludus.verify.grading import Judges

if TYPE_CHECKING:
    from ludus.run_events import EventKind

OPTIMIZER = "optimizer"
"""A role whose calls belong to no rollout: what they cost is kept after each of them."""

NODES = "nodes.json"
"""The machines on which the rollouts of a run have run, if it was not this process."""


def tell_nobody(message: str) -> None: ...


@dataclass(frozen=True)
class RunKind:
    """What a run is: which command made it, and what its record has."""

    name: str
    """That of its command."""
    sections: frozenset[str] = frozenset()
    """The sections that belong to its record, of those which only some kinds use."""
    fixed: frozenset[str] = frozenset()
    """Sections that may not change when it is resumed, apart from settings that say so themselves."""
    may_change: frozenset[str] = frozenset()
    """Settings that may change when it is resumed, beside those that say so themselves."""
    left_out: frozenset[str] = frozenset()
    """Sections that do not matter for it."""
    failures: tuple[type[Exception], ...] = ()
    """Errors that end its work and leave it resumable."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """The names of its files, by their keys in the JSON."""
    needs_scores: bool = True
    """Whether its rollouts must have a verdict."""
    starts_trackers: bool = True
    """Whether trackers start with the run. Otherwise its work starts them, when it knows their project."""

    def make_record(self, config: Config, content: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The settings that decide such a run, and hashes of the content that they name."""
        left_out = ((TRAINING | WEIGHTS | SHARDS | CATALOGUE | PACKAGES) - self.sections) | PLAN | self.left_out
        record = {name: value for name, value in to_record(config).items() if name not in left_out}
        return record if content is None else {**record, CONTENT: content}


Outcome = Literal["completed", "interrupted", "budget", "stalled", "failing", "broken"]
"""`stalled`: nothing moved for `limits.stall_seconds`. `failing`: more than `limits.failed_share` had no score."""
_STATES: Mapping[Outcome, State] = {
    "completed": "finished",
    "interrupted": "drained",
    "budget": "drained",
    "stalled": "drained",
    "failing": "drained",
    "broken": "failed",
}


@dataclass(frozen=True)
class RunOutcome:
    """How the work of a run ended."""

    status: Outcome
    message: str = ""


@dataclass
class Run:
    """An open run."""

    config: Config
    kind: RunKind
    parts: "RunParts"
    directory: RunDir
    trackers: TrackerSet
    tell: Tell = tell_nobody
    outcome: RunOutcome | None = None
    """How its work ended; None: it has not."""

    @property
    def env(self) -> Env:
        return self.runner.env

    @property
    def policy(self) -> Policy:
        return self.parts.policy

    @property
    def registry(self) -> Registry:
        return self.parts.registry

    @property
    def ledger(self) -> Ledger:
        return self.parts.ledger

    @cached_property
    def runner(self) -> Runner:
        """What its rollouts are run with; they are stored in its directory."""
        watch = self.trackers.trace if self.trackers.takes_rollouts else None
        return replace(self.parts.runner, store=self.directory, on_rollout=watch)

    @property
    def control(self) -> RunControl:
        """What can be changed while it runs. `control.stop` drains it."""
        return self.runner.options.control

    def write_spent(self) -> None:
        """Keep what was spent so far."""
        self.directory.append(LEDGER, to_json(self.ledger.roles))

    def tell_quiet(self, report: ActivityReport) -> None:
        """Say what the run waits for: to the user, in its record and to its trackers."""
        from ludus.watchdog import describe_wait, list_activity_values

        words = describe_wait(report)
        self.tell(words)
        self.note_event("quiet", words, facts=report)
        self.trackers.log_beside(list_activity_values(report))

    def note_event(self, kind: "EventKind", text: str, *, facts: object = None) -> None:
        """Record what happened. A directory that cannot be written ends the run when an outcome is stored, not here."""
        from ludus.run_events import append_event  # few runs have something to note

        try:
            append_event(self.directory, kind, text, facts=facts)
        except StoreError as error:
            self.tell(f"not recorded: {text} ({error})")

    def start_trackers(self, project: str = "", group: str = "") -> None:
        """Start the trackers that the settings name. Where these leave project and group open, they are as given."""
        tracking = self.config.tracking
        if tracking.use:
            self.trackers.start(
                TrackedRun(
                    name=tracking.name or self.directory.path.resolve().name,
                    project=tracking.project or project or "ludus",
                    group=tracking.group or group,
                    folder=self.directory.path,
                    config=to_record(self.config),
                    mask=self.directory.mask_text,
                )
            )


OpenModel = Callable[[Config, Ledger, AsyncExitStack, Tell], Awaitable[Model]]
"""Opens the model of the policy. It is closed with the run; what else is opened goes to the stack."""
OpenAgent = Callable[[Config, Env, Model, Ledger, AsyncExitStack, Tell], Awaitable[Agent | None]]
"""Opens the agent that acts in place of the policy's own, if there is one."""


async def open_agent_model(config: Config, ledger: Ledger, stack: AsyncExitStack, tell: Tell) -> Model:
    """The model of the settings."""
    return build_model(config.model, ledger, tell=tell)


async def open_env_agent(
    config: Config, env: Env, model: Model, ledger: Ledger, stack: AsyncExitStack, tell: Tell
) -> Agent | None:
    """The agent that the environment brings, if it brings one."""
    return env.make_agent(model)


@dataclass(frozen=True)
class RunParts:
    """What rollouts are run with, open, and who acts in them. It has no directory yet."""

    policy: Policy
    registry: Registry
    runner: Runner
    ledger: Ledger


@asynccontextmanager
async def open_parts(
    config: Config,
    env: Env,
    *,
    open_model: OpenModel = open_agent_model,
    open_agent: OpenAgent = open_env_agent,
    ledger: Ledger | None = None,
    judged: bool = True,
    starts_model: bool = True,
    tell: Tell = tell_nobody,
) -> AsyncGenerator[RunParts, None]:
    """Open model, agent, tools, slots and judges, and wait for the model. Calls of all models are in the ledger. If
    rollouts run on other machines, there are no slots here. Without `judged`, no model judges: nothing is verified with
    these parts. `starts_model`: False for one that is opened on each machine instead."""
    is_here = config.engine.type == "local"
    async with AsyncExitStack() as stack:
        if ledger is None:
            ledger = build_ledger(config, read_spent(Path(config.run.out)) if config.run.resume else None)
        model = await open_model(config, ledger, stack, tell)
        stack.push_async_callback(model.close)
        agent = await open_agent(config, env, model, ledger, stack, tell)
        if agent is not None:
            stack.push_async_callback(agent.close)
        registry = await stack.enter_async_context(open_registry(config.tools, build_vision(config, ledger)))
        slot = build_slot(config, env)
        pool = await stack.enter_async_context(open_sandboxes(config, slot, tell)) if is_here else None
        policy = build_policy(config, env, model, registry, agent)
        if starts_model:
            await prepare_model(policy, env, tell)
        judges = build_judges(config, env, ledger, tell) if judged else Judges()
        stack.push_async_callback(judges.close)
        runner = Runner(
            env,
            pool,
            slot,
            judges,
            options=replace(config.run.make_options(), failed_share=config.limits.failed_share),
            suspects=config.run.suspects,
            activity=ledger.activity,
        )
        yield RunParts(policy, registry, runner, ledger)


@asynccontextmanager
async def open_run(
    config: Config,
    kind: RunKind,
    *,
    env: Env | None = None,
    open_model: OpenModel = open_agent_model,
    open_agent: OpenAgent = open_env_agent,
    prepare: Callable[[Policy], Mapping[str, str] | None] = lambda policy: None,
    secrets: tuple[str, ...] = (),
    command: str = "",
    parent: str = "",
    tell: Tell = tell_nobody,
) -> AsyncGenerator[Run, None]:
    """Open everything that rollouts are run with, and the directory `run.out` that keeps them.

    `env`: the environment, if it is made already. `prepare` is called with the policy before the directory is made: it
    may raise, and it may return hashes of what the settings only name, such as the file of a skill. A resumed run in
    which one of these has changed is refused. `command`: the command line, for the record;
    `parent`: the run that it continues.
    """
    env = build_env(config) if env is None else env
    if kind.needs_scores and not env.scores_rollouts:
        raise ConfigError(f"{env.name} has nothing that scores rollouts, as ludus {kind.name} needs: set env.check")
    trackers = build_trackers(config.tracking, lambda line: directory.append(METRICS, line), tell)
    async with AsyncExitStack() as stack:
        relays = "model" in kind.left_out
        starts = relays or config.engine.type == "local" or not isinstance(config.model, EmbeddedSettings)
        opened = open_parts(config, env, open_model=open_model, open_agent=open_agent, starts_model=starts, tell=tell)
        parts = await stack.enter_async_context(opened)
        engine = await open_engine(config, env, parts.policy, parts.ledger, stack, tell, relays=relays)
        parts = replace(parts, runner=replace(parts.runner, engine=engine))
        record = kind.make_record(config, prepare(parts.policy))
        code, change = _check_env_code(config, env, tell)
        directory = stack.enter_context(_open_directory(config, kind, record, secrets))
        stack.callback(trackers.close)
        run = Run(config, kind, parts, directory, trackers, tell)
        parts.ledger.watch(lambda role: run.write_spent() if role == OPTIMIZER else None)
        with keep_info(directory, kind.name, command, parent, code, change) as end:
            if kind.starts_trackers:
                run.start_trackers()
            from ludus.control_server import serve_control  # settings can be read without it

            async with serve_control(run.runner, directory, tell):
                yield run
            _tell_unserved(run)
            if engine is not None:
                directory.write(NODES, to_json(engine.list_nodes()))
            if run.outcome is not None:
                end.state, end.message = _STATES[run.outcome.status], run.outcome.message


def _tell_unserved(run: Run) -> None:
    """Say which rollouts were asked for again and were not run."""
    if left := run.control.requeued:
        run.tell(f"{len(left)} rollouts were asked for again too late: resume the run, which runs all that failed")


@asynccontextmanager
async def open_judging(
    config: Config, env: Env, tell: Tell = tell_nobody, *, ledger: Ledger | None = None
) -> AsyncGenerator[Runner, None]:
    """Open what rollouts are judged with: slots and judges, but neither a model nor a directory."""
    ledger = build_ledger(config) if ledger is None else ledger
    async with AsyncExitStack() as stack:
        slot = build_slot(config, env)
        engine = await open_engine(config, env, None, ledger, stack, tell)
        pool = await stack.enter_async_context(open_sandboxes(config, slot, tell)) if engine is None else None
        judges = build_judges(config, env, ledger, tell)
        stack.push_async_callback(judges.close)
        options = config.run.make_options()
        yield Runner(env, pool, slot, judges, options=options, engine=engine, activity=ledger.activity)


def _check_env_code(config: Config, env: Env, tell: Tell) -> tuple[dict[str, str], str]:
    """The digests of the environment's files, and what has changed of them since the run began, if that is accepted."""
    code, out = hash_code(env), Path(config.run.out)
    before = read_info(out) if config.run.resume else None
    change = check_code(before.code, code, config.run.accept_code, out) if before is not None else ""
    if change:
        tell(f"the environment's code has changed since the run began, as run.accept_code accepts: {change}")
    return code, change


def _open_directory(config: Config, kind: RunKind, record: Mapping[str, Any], secrets: tuple[str, ...]) -> RunDir:
    return RunDir.open(
        Path(config.run.out),
        record,
        resume=config.run.resume,
        ignore=(MAY_CHANGE - kind.fixed) | kind.may_change,
        secrets=[*list_secrets(config), *secrets],
    )


# ---- to the end ---------------------------------------------------------------------------------------------------


async def run_to_end(run: Run, work: Callable[[Run], Awaitable[bool]]) -> RunOutcome:
    """Do the work of a run until it is complete, interrupted, out of budget or broken by an unusable model or one of
    the failures of its kind. `work` returns whether it is complete; it ends early when `run.control` is stopping."""
    try:
        run.outcome = await _work_until(run, work)
    finally:
        run.write_spent()
    return run.outcome


async def _work_until(run: Run, work: Callable[[Run], Awaitable[bool]]) -> RunOutcome:
    from ludus.watchdog import watch_for_stall  # settings can be read without it

    read, limit = run.runner.activity.report, run.config.limits.stall_seconds
    with drain_on_interrupt(run.control, run.tell):
        try:
            async with watch_for_stall(read, limit, run.tell_quiet):
                complete = await work(run)
        except BudgetExhausted as error:
            return RunOutcome("budget", str(error))
        except RunStalled as error:
            run.note_event("ended", str(error), facts=run.runner.activity.report())
            return RunOutcome("stalled", str(error))
        except (ModelUnusable, EngineLost, *run.kind.failures) as error:
            return RunOutcome("broken", str(error))
        except asyncio.CancelledError:
            if not run.control.is_stopping:
                raise
            return RunOutcome("interrupted", "interrupted; what was under way was dropped")
    if complete:
        return RunOutcome("completed")
    if run.control.is_failing:
        run.note_event("ended", run.control.reason, facts=run.runner.activity.report())
        return RunOutcome("failing", run.control.reason)
    return RunOutcome("interrupted", f"{run.control.reason or 'interrupted'}; what was under way was finished")


@contextmanager
def drain_on_interrupt(control: RunControl, tell: Tell) -> Generator[None]:
    """The first Ctrl-C (or SIGTERM) drains. The second cancels the current task."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def interrupt() -> None:
        if control.is_stopping:
            task.cancel()
        else:
            tell("stopping: what runs is finished first; Ctrl-C again drops it")
            control.stop()

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt)
    except (ValueError, RuntimeError):  # not the main thread: the caller handles signals
        yield
        return
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
