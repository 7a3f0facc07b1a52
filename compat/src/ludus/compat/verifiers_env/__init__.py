"""Environments of the package `verifiers`, as they are: `ludus evaluate verifiers:NAME`.

    env = VerifiersEnv(id="my-env", args={"difficulty": 2})
    policy = Policy(model, agent=env.make_agent(model))

Such an environment owns the rollout: it talks to a model, runs its tools and scores the result. Here its model is a
session of the gateway, so every request and reply is recorded, budgeted and, in token mode, exact, like a rollout of
our own loop. Its reward is the score, its metrics are the parts. A rollout that it ends with an error is a failure of
the world, not a zero, unless the agent caused it. The skill is put before its prompt as system text.

The installed release and the name decide the interface: environments with `load_environment` (`v0_environments`), with
release 0.1 or without it (`v0_standin`), or tasksets of release 0.4 (`v1_tasksets`).
"""

import asyncio
import importlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from ludus.compat.verifiers_env.package_release import PlayedRollout, PlayerModel, RolloutOutcome, VerifiersRelease
from ludus.env import Env
from ludus.errors import ConfigError, LudusError, VerifierError
from ludus.gateway.service import Gateway
from ludus.gateway.session import make_turns
from ludus.models import Model
from ludus.policy import Agent, AgentResult, Scene, seed_sampling
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import JsonObject, Message, Rollout, Score, StopReason, Task, ToolResult, Turn

INSTALL = "pip install 'verifiers==0.4.0' for tasksets; environments with load_environment need no verifiers"
Interface = Literal["v0", "v1", "standin"]
"""Environments of the installed 0.1, tasksets of the installed 0.4, or environments of 0.1 without their package."""


class VerifiersEnv(Env, frozen=True, kw_only=True, dict=True):
    """Tasks and rewards of an environment of `verifiers`. It brings its agent too."""

    name: ClassVar[str] = "verifiers"
    sandbox: ClassVar[SandboxSpec | None] = None

    id: str
    """An installed environment or taskset (`my-env`); with release 0.1 a class too: `module:Class`."""
    args: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Release 0.1: arguments of `load_environment` or of the class. Release 0.4: the block `env` of the package's
    configuration, such as `{"taskset": {"game": "Hangman-v0"}}`, and `select`."""
    splits: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict[str, Mapping[str, Any]])
    """Release 0.4: arguments of a split that are put over `args`, such as `{"test": {"taskset": {"split": "test"}}}`. A
    split that is not named has all tasks."""

    @cached_property
    def live(self) -> VerifiersRelease:
        """The environment itself.

        Raises:
            ConfigError: it, or the package, is not installed, or it cannot be made.
        """
        interface = choose_interface(_read_version(), self.id)
        if interface == "v1":
            from ludus.compat.verifiers_env.v1_tasksets import TasksetRelease

            return TasksetRelease(self.id, self.args, self.splits)
        if self.splits:
            raise ConfigError("env.splits is for tasksets of verifiers 0.4: environments of 0.1 have their own splits")
        if interface == "standin":
            from ludus.compat.verifiers_env.v0_standin.release import StandInRelease

            return StandInRelease(self.id, self.args)
        from ludus.compat.verifiers_env.v0_environments import EnvironmentRelease

        return EnvironmentRelease(self.id, self.args)

    def make_agent(self, model: Model) -> "VerifiersAgent":
        return VerifiersAgent(self, model)

    def tasks(self, split: str) -> Iterable[Task]:
        return self.live.load_tasks(split)

    def opening(self, task: Task) -> tuple[Message, ...]:
        return self.live.make_opening(task)

    @property
    def judges_groups(self) -> bool:
        return self.live.judges_groups

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        """The reward that the environment gave."""
        output = _read_output(rollout)
        if "member" in output:
            (score,) = await self.verify_group([rollout])
            return score
        return Score.of(float(output["reward"]), output.get("fault", ""), parts=output.get("metrics"))

    async def verify_group(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """The rewards that the environment gives to all rollouts of a task."""
        names = [_read_output(rollout)["member"] for rollout in rollouts]
        try:
            outcomes = await self.live.score(names)
        except KeyError:
            raise VerifierError(
                "the reward was given together with that of the other rollouts, and cannot be given again",
                retryable=False,
            ) from None
        for outcome in outcomes:
            if isinstance(outcome, LudusError):
                raise outcome
        return [Score.of(each.reward, parts=each.parts) for each in outcomes if not isinstance(each, LudusError)]


def _read_output(rollout: Rollout) -> Mapping[str, Any]:
    """What the environment said about a rollout."""
    output = (rollout.details or {}).get("output")
    if output is None and rollout.stop is StopReason.TIMEOUT:
        raise VerifierError("the environment gave no reward within limits.rollout_seconds", retryable=False)
    if output is None:
        raise VerifierError("no output: the policy's agent must be that of this environment")
    return output


def _read_version() -> str:
    """The installed release; empty if there is none."""
    try:
        return metadata.version("verifiers")
    except metadata.PackageNotFoundError:
        pass
    try:
        package: Any = importlib.import_module("verifiers")
    except ImportError:
        return ""
    return "" if getattr(package, "PROVIDED_BY_LUDUS", False) else str(package.__version__)


def choose_interface(version: str, id: str) -> Interface:
    """How an environment is run. `version`: the installed release; empty if there is none.

    Raises:
        ConfigError: the release is not supported.
    """
    release = ".".join(version.split(".")[:2])
    if release == "0.1":
        return "v0"
    if not version or is_v0_environment(id):
        return "standin"
    if release == "0.4":
        return "v1"
    raise ConfigError(f"env: verifiers {version} is installed, which is not supported: {INSTALL}")


def is_v0_environment(id: str) -> bool:
    """Whether the name is a class, or a module that speaks of `load_environment`. It is not imported: under a later
    release it could not be."""
    if ":" in id:
        return True
    module = id.replace("-", "_").rpartition("/")[2]
    spec = None if _find_spec(f"verifiers.v1.tasksets.{module}") else _find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return False
    return "load_environment" in Path(spec.origin).read_text(encoding="utf-8", errors="replace")


def _find_spec(module: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None


class VerifiersAgent(Agent):
    """Lets the environment run its rollout, with a gateway session as its model."""

    def __init__(self, env: VerifiersEnv, model: Model, *, shared: "_SharedGateway | None" = None) -> None:
        self._env = env
        self._model = model
        self._shared = shared or _SharedGateway(env, model)

    @property
    def name(self) -> str:
        return f"verifiers/{self._env.id}/{self._model.name}"

    @property
    def brings_model(self) -> bool:
        return True

    async def act(self, scene: Scene) -> StopReason:
        sampling = seed_sampling(scene.policy.sampling, scene.seed)
        player = PlayerModel(await self._shared.start(), self._model, sampling, scene.together)
        return scene.keep(_make_result(await self._env.live.play(scene.task, scene.opening, player)))

    def use_model(self, model: Model) -> "VerifiersAgent":
        return VerifiersAgent(self._env, model, shared=self._shared)

    async def close(self) -> None:
        await self._shared.close()


class _SharedGateway:
    """The gateway of an environment. It starts with the first rollout."""

    def __init__(self, env: VerifiersEnv, model: Model) -> None:
        self._env = env
        self._model = model
        self._gateway: Gateway | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> Gateway:
        async with self._starting:
            if self._gateway is None:
                self._gateway = await Gateway(self._model, routes=self._env.live.routes).__aenter__()
        return self._gateway

    async def close(self) -> None:
        if self._gateway is not None:
            gateway, self._gateway = self._gateway, None
            await self._env.live.close()
            await gateway.__aexit__(None, None, None)


def _make_result(played: PlayedRollout) -> AgentResult:
    """What the environment and the model did. A rollout without an outcome keeps its turns."""
    record, outcome, answers = played
    tools = tuple(tool.name for tool in record.exchanges[0].tools) if record.exchanges else ()
    failed = isinstance(outcome, LudusError)
    stop = StopReason.FAILED if failed else outcome.stop
    turns = add_results(make_turns(record, stop), answers)
    if failed:
        return AgentResult(record.opening, tools, turns, stop, exit=None, error=outcome)
    details = {"output": _write_output(outcome)}
    return AgentResult(record.opening, tools, turns, stop, exit=None, error=None, details=details)


def _write_output(outcome: RolloutOutcome) -> JsonObject:
    if outcome.member:
        return {"member": outcome.member, "stop_condition": outcome.condition}
    output = {"reward": outcome.reward, "metrics": dict(outcome.parts), "stop_condition": outcome.condition}
    return {**output, "fault": outcome.fault} if outcome.fault else output


def add_results(turns: Sequence[Turn], answers: Mapping[str, str]) -> tuple[Turn, ...]:
    """The turns with the results of calls that no later request has, such as one that ends the rollout."""
    return tuple(_add_results(turn, answers) for turn in turns)


def _add_results(turn: Turn, answers: Mapping[str, str]) -> Turn:
    known = {result.call.id: result for result in turn.results}
    calls = turn.completion.message.calls
    if all(call.id in known or call.id not in answers for call in calls):
        return turn
    found = (
        known.get(call.id) or ToolResult(call, answers[call.id]) for call in calls if call.id in {*known, *answers}
    )
    return msgspec.structs.replace(turn, results=tuple(found))
