"""One rollout: `run` shows its life in order.

    lease a slot ──> set it up ──> the agent acts ──> judge what it left ──> Rollout

It raises no `RolloutError` but `ModelUnusable`, which stops the run: it is the only place where such an error becomes a
recorded `Failure`. An unexpected exception becomes one too, with its traceback. Judging is in `ludus.judging`; many
rollouts at once are in `ludus.engine`.
"""

import asyncio
import platform
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from ludus import __version__
from ludus.activity import enter_phase
from ludus.agent import LOOP
from ludus.causes import Phase
from ludus.env import Env, FollowUp, can_follow_up
from ludus.errors import (
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
from ludus.judging import Judge, set_up
from ludus.policy import Agent, NextMessage, Policy, Scene
from ludus.runner import Job, Runner
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.file_tree import CollectedFiles
from ludus.tools import Tool
from ludus.tools.toolsets import make_tools
from ludus.types import Failure, Message, Provenance, Rollout, StopReason, Task, Turn

if TYPE_CHECKING:
    from ludus.skill_use import PlacedSkill


async def run(job: Job, runner: Runner, *, attempt: int = 1) -> Rollout:
    """Run one rollout once. The result has a score, or a failure that names the boundary that failed.

    The rollout's time begins when it has its slot: how long it waited for one says nothing about it.
    """
    env, log = runner.env, _Log(job, runner, attempt)
    judge = Judge(runner, job.policy.limits, log.keep_files)
    try:
        async with _lease_slot(job, runner) as box:
            log.start()
            if box is not None and env.sandbox is not None:
                await set_up(env, job.task, box, job.policy.limits)
            placed = await _place_skills(job.policy, box)
            log.scene = scene = _make_scene(job, runner, box)
            told = scene.opening
            try:
                stop = await _act(job.policy.agent or LOOP, scene)
            except SandboxError as error:
                acted = log.record(StopReason.BROKEN)
                return await judge.blame(acted, box, error, Phase.ACTING, has_acted=bool(box and scene.turns))
            acted = await _add_skill_use(log.record(stop), placed, scene, told)
            if job.together is not None:
                return acted  # the engine has it judged with the others
            with enter_phase("verify"):
                return await judge.judge(acted, box if env.sandbox is not None else None)
    except Exception as error:  # a failure of the world, or a bug: neither must stop the other rollouts
        return log.record(StopReason.FAILED, _make_failure(error))


async def run_retrying(job: Job, runner: Runner) -> Rollout:
    """Run one rollout. After a failure that is not the agent's, run it again in a fresh slot, up to `options.retries`
    times. If the agent has finished, only `verify` is run again."""
    with runner.activity.follow(f"{job.task.id}#{job.replicate + 1}") as mark:
        rollout = await run(job, runner)
        for attempt in range(2, runner.options.retries + 2):
            if rollout.failure is None or not rollout.failure.retryable:
                break
            rollout = await run(job, runner, attempt=attempt)
        return msgspec.structs.replace(rollout, times=mark.make_times())


async def judge_again(job: Job, runner: Runner) -> Rollout:
    """Judge what the agent of a stored rollout left, in a fresh slot. The result has a score, or a failure."""
    assert job.acted is not None
    rollout = job.acted.rollout
    try:
        with runner.activity.follow(f"{job.task.id}#{job.replicate}"), enter_phase("verify"):
            async with _lease_slot(job, runner) as box:
                return await Judge(runner, job.policy.limits).judge_files(rollout, box, job.acted.files)
    except ModelUnusable:  # of a judge's model: every other one would fail too
        raise
    except RolloutError as error:
        return msgspec.structs.replace(rollout, stop=StopReason.FAILED, failure=error.as_failure())


def make_failed(job: Job, runner: Runner, failure: Failure) -> Rollout:
    """A rollout that could not be run, or whose process was lost."""
    return _Log(job, runner, 1).record(StopReason.FAILED, failure)


@dataclass
class _Log:
    """What is known of a rollout so far. It is kept outside of the steps, so a failure loses none of it."""

    job: Job
    runner: Runner
    attempt: int
    scene: Scene | None = None
    files: str = ""
    started: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        self.started = time.monotonic()

    def keep_files(self, files: CollectedFiles) -> str:
        self.files = self.runner.store.keep_files(files, self.runner.options.keep_files)
        return self.files

    def record(self, stop: StopReason, failure: Failure | None = None) -> Rollout:
        scene = self.scene
        return Rollout(
            task=self.job.task,
            provenance=_make_provenance(self.job, self.runner.env, scene.tools if scene else (), self.attempt),
            opening=scene.opening if scene else (),
            turns=tuple(scene.turns) if scene else (),
            stop=stop,
            failure=failure,
            seconds=time.monotonic() - self.started,
            exit=scene.exit if scene else None,
            details=scene.details if scene else None,
            files=self.files,
        )


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
async def _lease_slot(job: Job, runner: Runner) -> AsyncGenerator[Sandbox | None, None]:
    """A leased slot, or None if neither the environment nor the agent needs one."""
    env, agent = runner.env, job.policy.agent or LOOP
    if env.sandbox is None and not agent.needs_slot:
        yield None
        return
    if runner.pool is None:
        who = agent.name if env.sandbox is None else env.name
        raise SetupError(f"{who} needs a sandbox, but the run has no pool", retryable=False)
    with boundary(SetupError, f"{env.name}: the slot of task '{job.task.id}'"), enter_phase("setup"):
        if env.sandbox is not None:
            await env.prepare(job.task)
        spec = SandboxSpec() if env.sandbox is None else runner.make_spec(job.task)
    async with AsyncExitStack() as stack:
        with enter_phase("slot"):
            box = await stack.enter_async_context(runner.pool.lease(agent.extend_spec(spec)))
        yield box


async def _place_skills(policy: Policy, box: Sandbox | None) -> "Sequence[PlacedSkill]":
    """Put the files of the policy's skills into the slot, if it has any. A library needs no slot: see `_make_scene`."""
    if not policy.skill_files or (box is None and policy.library is not None):
        return ()
    from ludus.skill_use import place_skills  # most runs have no such files

    return await place_skills(policy.skill_files, box)


async def _add_skill_use(
    acted: Rollout, placed: "Sequence[PlacedSkill]", scene: Scene, told: Sequence[Message]
) -> Rollout:
    """The rollout with what became of the files of its skills."""
    library = scene.policy.library
    if library is not None and scene.box is None:
        from ludus.tools.skill_loading import read_skill_calls

        return msgspec.structs.replace(acted, library_use=read_skill_calls(library, acted.turns))
    if not placed or scene.box is None:
        return acted
    from ludus.skill_use import survey_skills

    uses = await survey_skills(placed, scene.policy, scene.box, told, acted.messages)
    if library is None:
        return msgspec.structs.replace(acted, skill_use=uses[0])
    return msgspec.structs.replace(acted, library_use=dict(zip(library.names, uses, strict=True)))


def _make_scene(job: Job, runner: Runner, box: Sandbox | None) -> Scene:
    """What the agent finds: its tools and the conversation before its first turn."""
    env, policy = runner.env, job.policy
    toolsets = env.toolsets if policy.toolsets is None else policy.toolsets
    agent = policy.agent_name
    with boundary(SetupError, f"{env.name}: tools and opening of task '{job.task.id}'"):
        own = make_own_tools(env, job.task, box)
        shared = () if agent else (*make_tools(toolsets, box, policy.registry), *_make_skill_tools(policy, box))
        opening = (*policy.example_messages, *make_opening(env, job.task))
    if policy.agent is not None and policy.agent.needs_slot and own:  # a program in a slot cannot call them
        names = ", ".join(tool.name for tool in own)
        raise SetupError(
            f"{env.name} brings tools of its own ({names}), which {agent} cannot call: leave agent.harness out",
            retryable=False,
        )
    if agent and can_follow_up(env):
        raise SetupError(
            f"the user of {env.name} goes on after a reply, and {agent} ends with its reply: leave agent.harness out",
            retryable=False,
        )
    system = policy.build_system_text(env.make_system(job.task), slot=box is not None)
    offer = _check_offer(_Offer(shared, own), env)
    opening = (Message("system", system), *opening) if system else opening
    scene = Scene(
        job.task,
        policy,
        opening,
        offer.tools,
        box,
        job.seed,
        on_turn=runner.on_turn,
        together=job.together,
        tools=offer.names,
    )
    if can_follow_up(env):
        scene.next_message = _make_next_message(env, offer, scene)
    return scene


def _make_skill_tools(policy: Policy, box: Sandbox | None) -> tuple[Tool, ...]:
    """The tool that reads the packages of a library, where they do not lie in a slot."""
    if policy.library is None or not policy.library.packages or box is not None:
        return ()
    from ludus.tools.skill_loading import make_skill_tool  # most runs have no library

    return (make_skill_tool(policy.library),)


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


def _check_offer(offer: _Offer, env: Env) -> _Offer:
    names = offer.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SetupError(f"{env.name}: two tools are called '{twice}': rename the environment's", retryable=False)
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


async def _act(agent: Agent, scene: Scene) -> StopReason:
    """Let the agent act until it stops or its time is over."""
    clock = asyncio.timeout(None if agent.needs_slot else scene.policy.limits.rollout_seconds)
    try:
        async with clock:
            with enter_phase("agent"):
                return await agent.act(scene)
    except TimeoutError:
        if not clock.expired():
            raise
        return StopReason.TIMEOUT


def _make_next_message(env: Env, offer: _Offer, scene: Scene) -> NextMessage:
    """Ask the environment what the user says next. Its errors are failures of the world: the agent only spoke."""
    current = offer

    async def ask(turns: Sequence[Turn]) -> tuple[Message, Sequence[Tool]] | None:
        nonlocal current
        with boundary(ToolBroken, f"{env.name}: follow_up of task '{scene.task.id}'"):
            said = await env.follow_up(scene.task, turns, scene.box)
            if said is None:
                return None
            if not isinstance(said, FollowUp):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"follow_up returns {type(said).__name__}, not ludus.env.FollowUp or None")
            if said.tools is not None:
                current = _check_offer(_Offer(offer.shared, _check_tools(said.tools, "follow_up")), env)
        scene.tools = tuple(dict.fromkeys((*scene.tools, *current.names)))
        return Message("user", said.text), current.tools

    return ask


def _make_provenance(job: Job, env: Env, tools: tuple[str, ...], attempt: int) -> Provenance:
    policy = job.policy
    return Provenance(
        policy=policy.fingerprint,
        model=policy.model_name,
        skill=policy.skill_hash,
        sampling=policy.sampling,
        seed=job.seed,
        replicate=job.replicate,
        attempt=attempt,
        toolsets=() if policy.agent_name else env.toolsets if policy.toolsets is None else policy.toolsets,
        skipped=() if policy.agent_name else policy.skipped,
        tools=tools,
        versions={**_read_versions(), "env": f"{env.name}@{env.version}", **_list_agent_version(policy)},
        replayed=policy.agent.replayed if policy.agent else None,
    )


def _list_agent_version(policy: Policy) -> dict[str, str]:
    return {"agent": policy.agent.label} if policy.agent and policy.agent.label else {}


@cache
def _read_versions() -> dict[str, str]:
    return {"ludus": __version__, "python": platform.python_version()}
