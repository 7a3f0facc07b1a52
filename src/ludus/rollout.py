"""Run one rollout, or many at once.

`run` shows the steps of a rollout in order: lease a slot, set it up, take turns, judge what the agent left
(`ludus.judging`), record. It raises no `RolloutError` but `ModelUnusable`, which stops the run: it is the only
place where such an error becomes a recorded `Failure`. An unexpected exception becomes one too, with its traceback.
`run_many` is the only place that runs rollouts side by side. The pool limits slots, the model client limits requests,
and the ledger limits money.
"""

import asyncio
import hashlib
import platform
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

import msgspec

from ludus import __version__
from ludus.agent import Actor, NextMessage, Policy, Spill, ToolHandler, seed_sampling, take_turns
from ludus.causes import Phase
from ludus.env import Env, FollowUp, can_follow_up
from ludus.errors import (
    BudgetExhausted,
    LudusError,
    ModelUnusable,
    RolloutError,
    SandboxError,
    SetupError,
    ToolBroken,
    boundary,
    describe_bug,
    find_first,
)
from ludus.harness import AgentResult, Harness, resolve_path, run_harness
from ludus.judging import Judge, KeepFiles, set_up
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.file_tree import CollectedFiles, KeptSizes
from ludus.sandbox.pool import Pool
from ludus.settings import Settings
from ludus.tools import Tool
from ludus.tools.toolsets import make_tools
from ludus.types import (
    Count,
    Exit,
    Failure,
    Group,
    JsonObject,
    Message,
    Provenance,
    Rollout,
    StopReason,
    Task,
    Turn,
    Whole,
)

RESULTS = "/tmp/ludus-results"
"""The folder in a slot for tool results that are too long to show."""


@dataclass(frozen=True)
class Job:
    """One rollout to run."""

    task: Task
    policy: Policy
    replicate: int = 0
    seed: int = 0


OnTurn = Callable[[Turn], None]
"""Called with each turn when it is complete. Those of a command-line agent are known when it ends."""


@dataclass
class _Trace:
    """What has happened so far. It is kept outside the loop, so a failure loses none of it."""

    opening: tuple[Message, ...] = ()
    tools: tuple[str, ...] = ()
    turns: list[Turn] = field(default_factory=list[Turn])
    exit: Exit | None = None
    details: JsonObject | None = None
    files: str = ""
    on_turn: OnTurn | None = None

    def add(self, turn: Turn) -> None:
        self.turns.append(turn)
        if self.on_turn is not None:
            self.on_turn(turn)


@dataclass(frozen=True)
class _Offer:
    """The tools that the agent can call: those of the toolsets, and the environment's own."""

    shared: tuple[Tool, ...]
    own: tuple[Tool, ...]

    @property
    def tools(self) -> tuple[Tool, ...]:
        return (*self.shared, *self.own)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools)


async def run(
    job: Job,
    env: Env,
    pool: Pool | None,
    *,
    attempt: int = 1,
    retries: int = 0,
    handler: ToolHandler | None = None,
    keep_files: KeepFiles | None = None,
    on_turn: OnTurn | None = None,
) -> Rollout:
    """Run one rollout once. The result has a score, or a failure that names the boundary that failed.

    `retries`: how often `verify` is repeated, on the same files, after a failure. `keep_files` is called with what the
    agent left, before it is verified. The rollout's time begins when it has its slot: how long it waited for one says
    nothing about it.
    """
    trace = _Trace(on_turn=on_turn)
    started = time.monotonic()

    def keep(files: CollectedFiles) -> str:
        trace.files = keep_files(files) if keep_files is not None else ""
        return trace.files

    judge = Judge(env, pool, job.policy.limits, retries, keep)

    def record(stop: StopReason, failure: Failure | None = None) -> Rollout:
        return Rollout(
            task=job.task,
            provenance=_make_provenance(job, env, trace.tools, attempt),
            opening=trace.opening,
            turns=tuple(trace.turns),
            stop=stop,
            failure=failure,
            seconds=time.monotonic() - started,
            exit=trace.exit,
            details=trace.details,
            files=trace.files,
        )

    try:
        async with _lease_slot(job, env, pool) as box:
            started = time.monotonic()
            if box is not None and env.sandbox is not None:
                await set_up(env, job.task, box, job.policy.limits)
            await _place_skill(job.policy, box)
            tools, trace.opening = _prepare_opening(job, env, box)
            trace.tools = tools.names
            try:
                stop = await _act(job, env, tools, trace, handler, box)
            except SandboxError as error:
                acted = record(StopReason.BROKEN)
                return await judge.blame(acted, box, error, Phase.ACTING, has_acted=bool(box and trace.turns))
            return await judge.judge(record(stop), box if env.sandbox is not None else None)
    except Exception as error:  # a failure of the world, or a bug: neither must stop the other rollouts
        return record(StopReason.FAILED, _make_failure(error))


def _make_failure(error: Exception) -> Failure:
    """The failure that an exception is. Raises the errors that stop the run: budget, store, settings, an unusable
    model."""
    first = find_first(error)
    if isinstance(first, RolloutError) and not isinstance(first, ModelUnusable):
        return first.as_failure()
    if isinstance(first, LudusError):
        raise first
    return describe_bug(first)


@asynccontextmanager
async def _lease_slot(job: Job, env: Env, pool: Pool | None) -> AsyncGenerator[Sandbox | None, None]:
    """A leased slot, or None if neither the environment nor the agent needs one."""
    harness = job.policy.harness
    if env.sandbox is None and harness is None:
        yield None
        return
    if pool is None:
        who = harness.name if harness and env.sandbox is None else env.name
        raise SetupError(f"{who} needs a sandbox, but the run has no pool", retryable=False)
    with boundary(SetupError, f"{env.name}: the slot of task '{job.task.id}'"):
        if env.sandbox is not None:
            await env.prepare(job.task)
        spec = SandboxSpec() if env.sandbox is None else env.slot(job.task)
    async with pool.lease(spec if harness is None else harness.extend_spec(spec)) as box:
        yield box


async def _place_skill(policy: Policy, box: Sandbox | None) -> None:
    """Write the skill's file to the path that the system text names."""
    if policy.skill_file is None:
        return
    if box is None:
        raise SetupError(
            "agent.skill_as: the environment has no slot for the skill's file: use agent.skill_as text", retryable=False
        )
    path, skill = policy.skill_file
    with boundary(SetupError, f"{path} could not be written"):
        await box.write(await resolve_path(path, box), skill.text.encode())


def _prepare_opening(job: Job, env: Env, box: Sandbox | None) -> tuple[_Offer, tuple[Message, ...]]:
    """The tools of the agent and the conversation before its first turn."""
    toolsets = env.toolsets if job.policy.toolsets is None else job.policy.toolsets
    agent = job.policy.agent_name
    with boundary(SetupError, f"{env.name}: tools and opening of task '{job.task.id}'"):
        own = make_own_tools(env, job.task, box)
        shared = () if agent else tuple(make_tools(toolsets, box, job.policy.registry))
        opening = (*job.policy.example_messages, *make_opening(env, job.task))
    if agent and own:
        names = ", ".join(tool.name for tool in own)
        raise SetupError(
            f"{env.name} brings tools of its own ({names}), which {agent} cannot call: leave agent.harness out",
            retryable=False,
        )
    if agent and can_follow_up(env):
        raise SetupError(
            f"the user of {env.name} goes on after a reply, which {agent} cannot hear: leave agent.harness out",
            retryable=False,
        )
    system = job.policy.build_system_text(env.system)
    offer = _check_offer(_Offer(shared, own), env)
    return offer, ((Message("system", system), *opening) if system else opening)


def _check_offer(offer: _Offer, env: Env) -> _Offer:
    twice = [name for name, count in Counter(offer.names).items() if count > 1]
    if twice:
        raise SetupError(f"{env.name}: two tools are called '{twice[0]}': rename the environment's", retryable=False)
    return offer


def make_own_tools(env: Env, task: Task, box: Sandbox | None) -> tuple[Tool, ...]:
    """The environment's own tools. Raises TypeError if they are of another type: an environment is foreign code."""
    return _check_tools(env.tools(task, box), "tools()")


def _check_tools(tools: Sequence[Tool], source: str) -> tuple[Tool, ...]:
    for each in tools:
        if not isinstance(each, Tool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{source} returns {type(each).__name__}, not Tool: make one with @tool (and bind it)")
    return tuple(tools)


def make_opening(env: Env, task: Task) -> tuple[Message, ...]:
    """The environment's messages before the first turn. Raises TypeError if they are of another type."""
    opening = tuple(env.opening(task))
    for message in opening:
        if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"opening() returns {type(message).__name__}, not ludus.types.Message")
        if not isinstance(message.content, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"opening() returns a message whose content is {type(message.content).__name__}, not text")
    return opening


async def _act(
    job: Job, env: Env, offer: _Offer, trace: _Trace, handler: ToolHandler | None, box: Sandbox | None
) -> StopReason:
    """Let the agent act: the loop, a command-line agent or another one."""
    if job.policy.actor is not None:
        return await _run_actor(job, job.policy.actor, trace)
    if box is not None and job.policy.harness is not None:
        return await _run_harness(job, job.policy.harness, trace, box)
    next_message = _make_next_message(job, env, offer, trace, box) if can_follow_up(env) else None
    loop = take_turns(
        job.policy,
        trace.opening,
        offer.tools,
        seed=job.seed,
        handler=handler,
        spill=_make_spill(box) if box else None,
        next_message=next_message,
    )
    return await _take_turns(job, loop, trace)


async def _take_turns(job: Job, loop: AsyncGenerator[Turn, None], trace: _Trace) -> StopReason:
    """Take turns until the agent stops or its time is over."""
    clock = asyncio.timeout(job.policy.limits.rollout_seconds)
    try:
        async with clock, aclosing(loop):
            async for turn in loop:
                trace.add(turn)
    except TimeoutError:
        if not clock.expired():
            raise
        return StopReason.TIMEOUT
    # A loop that ends without a reason has reached a prompt that does not fit the context.
    return (trace.turns[-1].stop if trace.turns else None) or StopReason.CONTEXT


async def _run_actor(job: Job, actor: Actor, trace: _Trace) -> StopReason:
    """Let another agent act in place of the loop, within the same time limit."""
    clock = asyncio.timeout(job.policy.limits.rollout_seconds)
    try:
        async with clock:
            acted = await actor.act(job.task, trace.opening, seed_sampling(job.policy.sampling, job.seed))
    except TimeoutError:
        if not clock.expired():
            raise
        return StopReason.TIMEOUT
    return _keep_acted(acted, trace)


async def _run_harness(job: Job, harness: Harness, trace: _Trace, box: Sandbox) -> StopReason:
    """Let a command-line agent act in the slot."""
    policy = job.policy
    acted = await run_harness(
        harness,
        policy.model,
        trace.opening,
        box,
        sampling=msgspec.structs.replace(policy.sampling, seed=((policy.sampling.seed or 0) + job.seed) % 2**31),
        turns=policy.limits.turns,
        seconds=policy.limits.rollout_seconds,
        name=job.task.id,
    )
    return _keep_acted(acted, trace)


def _keep_acted(acted: AgentResult, trace: _Trace) -> StopReason:
    """Put what an agent did on the trace, then raise its error if it has one."""
    trace.opening = acted.opening or trace.opening
    trace.tools, trace.exit, trace.details = acted.tools, acted.exit, acted.details
    for turn in acted.turns:
        trace.add(turn)
    if acted.error is not None:
        raise acted.error
    return acted.stop


def _make_next_message(job: Job, env: Env, offer: _Offer, trace: _Trace, box: Sandbox | None) -> NextMessage:
    """Ask the environment what the user says next. Its errors are failures of the world: the agent only spoke."""
    current = offer

    async def ask(turns: Sequence[Turn]) -> tuple[Message, Sequence[Tool]] | None:
        nonlocal current
        with boundary(ToolBroken, f"{env.name}: follow_up of task '{job.task.id}'"):
            said = await env.follow_up(job.task, turns, box)
            if said is None:
                return None
            if not isinstance(said, FollowUp):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"follow_up returns {type(said).__name__}, not ludus.env.FollowUp or None")
            if said.tools is not None:
                current = _check_offer(_Offer(offer.shared, _check_tools(said.tools, "follow_up")), env)
        trace.tools = tuple(dict.fromkeys((*trace.tools, *current.names)))
        return Message("user", said.text), current.tools

    return ask


def _make_spill(box: Sandbox) -> Spill:
    async def spill(name: str, data: bytes) -> str:
        path = f"{RESULTS}/{name}"
        try:
            await box.write(path, data)
        except OSError:  # the agent filled the slot's disk: it gets the preview alone
            return ""
        return box.resolve(path)  # the agent's commands must find the file

    return spill


def _make_provenance(job: Job, env: Env, tools: tuple[str, ...], attempt: int) -> Provenance:
    policy = job.policy
    return Provenance(
        policy=policy.fingerprint,
        model=policy.model_name,
        skill=policy.skill.hash if policy.skill else "",
        sampling=policy.sampling,
        seed=job.seed,
        replicate=job.replicate,
        attempt=attempt,
        toolsets=() if policy.agent_name else env.toolsets if policy.toolsets is None else policy.toolsets,
        skipped=() if policy.agent_name else policy.skipped,
        tools=tools,
        versions={**_read_versions(), "env": f"{env.name}@{env.version}", **_list_agent_version(policy)},
    )


def _list_agent_version(policy: Policy) -> dict[str, str]:
    return {"agent": policy.harness.label} if policy.harness else {}


@cache
def _read_versions() -> dict[str, str]:
    return {"ludus": __version__, "python": platform.python_version()}


# ---- many ---------------------------------------------------------------------------------------------------------


async def run_retrying(
    job: Job,
    env: Env,
    pool: Pool | None,
    *,
    retries: int = 2,
    handler: ToolHandler | None = None,
    keep_files: KeepFiles | None = None,
    on_turn: OnTurn | None = None,
) -> Rollout:
    """Run one rollout. After a failure that is not the agent's, run it again in a fresh slot, up to `retries` times. If
    the agent has finished, only `verify` is run again."""
    rollout = await run(job, env, pool, retries=retries, handler=handler, keep_files=keep_files, on_turn=on_turn)
    for attempt in range(2, retries + 2):
        if rollout.failure is None or not rollout.failure.retryable:
            break
        rollout = await run(
            job, env, pool, attempt=attempt, retries=retries, handler=handler, keep_files=keep_files, on_turn=on_turn
        )
    return rollout


@dataclass(frozen=True)
class RunOptions:
    """How jobs are run: how many at once, how often again, and when to stop. It does not change what comes out."""

    concurrency: int = 16
    """Rollouts at a time."""
    retries: int = 2
    """How often a rollout is run again after a failure that is not the agent's."""
    stop: asyncio.Event | None = None
    """Setting it drains the run: nothing new starts, and what runs is finished and recorded."""
    keep_files: KeptSizes = KeptSizes()
    """How much of what agents leave a store keeps."""

    @property
    def is_stopping(self) -> bool:
        return self.stop is not None and self.stop.is_set()


class RunSettings(Settings, frozen=True):
    """How the run is done. `--out` and `--resume` are short for the first two."""

    out: str = ""
    """The run directory; empty: `runs/<env>-<time>`."""
    resume: bool = False
    """Continue the run in `out`: what is finished there is not run again."""
    seed: int = 0
    """The seed from which every rollout derives its own."""
    concurrency: Count = 16
    """The number of rollouts that run at once."""
    retries: Whole = 2
    """How often a rollout is run again, in a fresh slot, after a failure that is not the agent's."""

    keep_files_mb: Whole = 8
    """How many megabytes of the files that the agent of one rollout leaves are kept, at most, for `ludus rescore`. The
    files of a rollout that left more are not kept. 0: keep none."""
    keep_files_total_mb: Whole = 2048
    """How many megabytes of such files a run keeps, at most. Equal files count once."""

    may_change: ClassVar[tuple[str, ...]] = (
        "out",
        "resume",
        "concurrency",
        "retries",
        "keep_files_mb",
        "keep_files_total_mb",
    )
    added_later: ClassVar[tuple[str, ...]] = ("keep_files_mb", "keep_files_total_mb")

    def make_options(self, stop: asyncio.Event | None = None) -> RunOptions:
        sizes = KeptSizes(self.keep_files_mb * 2**20, self.keep_files_total_mb * 2**20)
        return RunOptions(self.concurrency, self.retries, stop, sizes)


async def run_many(
    jobs: Iterable[Job],
    env: Env,
    pool: Pool | None,
    options: RunOptions = RunOptions(),
    *,
    record: Callable[[Job, Rollout], None],
    keep_files: KeepFiles | None = None,
) -> None:
    """Run jobs, at most `options.concurrency` at a time, started in their order. `record` is called with each job and
    its rollout when the rollout ends; `keep_files` as in `run`.

    Setting `options.stop` drains: nothing new starts, what runs is finished and recorded. A spent budget and an
    unusable model drain in the same way; the error is raised at the end. Other errors of the user (settings, store)
    cancel everything. A bug in a rollout is that rollout's failure; a bug in `record` cancels everything.
    """
    queue = iter(jobs)
    stopped: list[LudusError] = []

    async def work() -> None:
        for job in queue:
            try:
                record(job, await run_retrying(job, env, pool, retries=options.retries, keep_files=keep_files))
            except (BudgetExhausted, ModelUnusable) as error:
                stopped.append(error)
            if stopped or options.is_stopping:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(options.concurrency):
            group.create_task(work())
    if stopped:
        raise stopped[0]


async def run_group(
    task: Task, env: Env, policy: Policy, pool: Pool | None, *, size: int, seed: int = 0, retries: int = 2
) -> Group:
    """All rollouts of one task, side by side."""
    rollouts: list[Rollout] = []
    jobs, options = make_group_jobs(task, policy, size, seed), RunOptions(concurrency=size, retries=retries)
    await run_many(jobs, env, pool, options, record=lambda _, rollout: rollouts.append(rollout))
    return make_group(task, rollouts, size)


def make_group_jobs(task: Task, policy: Policy, size: int, seed: int) -> list[Job]:
    return [Job(task, policy, r, derive_seed(seed, task.id, r)) for r in range(size)]


def make_group(task: Task, rollouts: Iterable[Rollout], size: int) -> Group:
    ordered = sorted(rollouts, key=lambda r: r.provenance.replicate)
    return Group(task=task, rollouts=tuple(ordered), size=size)


def derive_seed(seed: int, task_id: str, replicate: int) -> int:
    """The seed of one rollout. It differs between rollouts and is the same in every process."""
    digest = hashlib.sha256(f"{seed}/{task_id}/{replicate}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
