"""Environments of the package `verifiers`, as they are: `ludus evaluate verifiers:NAME`.

    env = VerifiersEnv(id="my-env", args={"difficulty": 2})
    policy = Policy(model, actor=VerifiersActor(env, model))

Such an environment owns the rollout: it talks to a model, runs its tools and scores the result. Here its model is a
session of the gateway, so every request and reply is recorded, budgeted and, in token mode, exact, like a rollout of
our own loop. Its reward is the score, its metrics are the parts. A rollout that it ends with an error is a failure of
the world, not a zero, unless the agent caused it. The skill is put before its prompt as system text.

The installed release decides the interface: environments with `load_environment` (`v0_environments`), or tasksets
(`v1_tasksets`).
"""

import asyncio
import importlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import msgspec

from ludus.compat.verifiers_env.package_release import PlayedRollout, PlayerModel, VerifiersRelease
from ludus.env import Env
from ludus.errors import ConfigError, LudusError, VerifierError
from ludus.gateway.service import Gateway
from ludus.harness import AgentResult, make_turns
from ludus.models import Model
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Message, Rollout, Sampling, Score, StopReason, Task

INSTALL = "pip install 'verifiers==0.1.14' for environments with load_environment, 'verifiers==0.4.0' for tasksets"


class VerifiersEnv(Env, frozen=True, kw_only=True, dict=True):
    """Tasks and rewards of an environment of `verifiers`. It acts too: give the policy a `VerifiersActor`."""

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
        if find_interface(_read_version()) == "v1":
            from ludus.compat.verifiers_env.v1_tasksets import TasksetRelease

            return TasksetRelease(self.id, self.args, self.splits)
        from ludus.compat.verifiers_env.v0_environments import EnvironmentRelease

        if self.splits:
            raise ConfigError("env.splits is for tasksets of verifiers 0.4: environments of 0.1 have their own splits")
        return EnvironmentRelease(self.id, self.args)

    def tasks(self, split: str) -> Iterable[Task]:
        return self.live.load_tasks(split)

    def opening(self, task: Task) -> tuple[Message, ...]:
        return self.live.make_opening(task)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        """The reward that the environment gave."""
        output = (rollout.details or {}).get("output")
        if output is None and rollout.stop is StopReason.TIMEOUT:
            raise VerifierError("the environment gave no reward within limits.rollout_seconds", retryable=False)
        if output is None:
            raise VerifierError("no output: the policy's actor must be the VerifiersActor of this environment")
        reward = float(output["reward"])
        fault, parts = output.get("fault", ""), output.get("metrics")
        return Score(reward, reward >= 1.0, min(1.0, max(0.0, reward)), fault, parts or {})


def _read_version() -> str:
    try:
        return str(importlib.import_module("verifiers").__version__)
    except ImportError:
        raise ConfigError(f"env: the package verifiers is missing: {INSTALL}") from None


def find_interface(version: str) -> str:
    """Which interface a release of the package has.

    Raises:
        ConfigError: the release is not supported.
    """
    release = ".".join(version.split(".")[:2])
    if release not in ("0.1", "0.4"):
        raise ConfigError(f"env: verifiers {version} is installed, which is not supported: {INSTALL}")
    return "v0" if release == "0.1" else "v1"


class VerifiersActor:
    """Lets the environment run its rollout, with a gateway session as its model. Implements `ludus.agent.Actor`."""

    def __init__(self, env: VerifiersEnv, model: Model, *, shared: "_SharedGateway | None" = None) -> None:
        self._env = env
        self._model = model
        self._shared = shared or _SharedGateway(env, model)

    @property
    def name(self) -> str:
        return f"verifiers/{self._env.id}/{self._model.name}"

    async def act(self, task: Task, opening: Sequence[Message], sampling: Sampling) -> AgentResult:
        player = PlayerModel(await self._shared.start(), self._model, sampling)
        return _make_result(await self._env.live.play(task, opening, player))

    def use_stage(self, stage: str) -> "VerifiersActor":
        return self

    def use_model(self, model: Model) -> "VerifiersActor":
        return VerifiersActor(self._env, model, shared=self._shared)

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
    record, outcome = played
    tools = tuple(tool.name for tool in record.exchanges[0].tools) if record.exchanges else ()
    if isinstance(outcome, LudusError):
        turns = make_turns(record, StopReason.FAILED)
        return AgentResult(record.opening, tools, turns, StopReason.FAILED, exit=None, error=outcome)
    output = {"reward": outcome.reward, "metrics": dict(outcome.parts), "stop_condition": outcome.condition}
    details = {"output": {**output, "fault": outcome.fault} if outcome.fault else output}
    turns = make_turns(record, outcome.stop)
    return AgentResult(record.opening, tools, turns, outcome.stop, exit=None, error=None, details=details)
