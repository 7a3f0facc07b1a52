"""Environments of the `verifiers` package (release 0.1.14), as they are: `ludus evaluate verifiers:NAME`.

    env = VerifiersEnv(id="my-env", args={"difficulty": 2})
    policy = Policy(model, actor=VerifiersActor(env, model))

Such an environment owns the rollout: it talks to a model, runs its tools and scores with its rubric. Here it is given a
gateway session as its model, so every request and reply is recorded, budgeted and, in token mode, exact, like a rollout
of our own loop. Its reward is the score, its metrics are the parts. A rollout that it ends with an error is a failure
of the world, not a zero. The skill is put before its prompt as system text.
"""

import asyncio
import importlib
import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import msgspec

from ludus.config.references import load_object
from ludus.env import Env
from ludus.errors import ConfigError, ModelError, VerifierError, boundary, describe_error
from ludus.gateway.service import Gateway
from ludus.harness import AgentResult
from ludus.models import Model
from ludus.models.openai import write_content
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import JsonObject, Message, Rollout, Sampling, Score, StopReason, Task, to_json

KEY_VARIABLE = "LUDUS_NO_KEY"
"""A variable that is not set: the address of a session is its key."""


class VerifiersEnv(Env, frozen=True, kw_only=True, dict=True):
    """Tasks and rewards of an environment of `verifiers`. It acts too: give the policy a `VerifiersActor`."""

    name: ClassVar[str] = "verifiers"
    sandbox: ClassVar[SandboxSpec | None] = None

    id: str
    """An installed module with `load_environment` (`my-env`), or a class: `module:Class`."""
    args: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Arguments of `load_environment` or of the class."""

    @cached_property
    def live(self) -> Any:
        """The environment itself.

        Raises:
            ConfigError: it, or the package, is not installed, or it cannot be made.
        """
        make = _find_factory(self.id)
        try:
            return make(**self.args)
        except Exception as error:
            raise ConfigError(f"env.id: {self.id}: {describe_error(error)}") from error

    def tasks(self, split: str) -> Iterable[Task]:
        return [_make_task(row, number, split) for number, row in enumerate(self.load_rows(split))]

    def load_rows(self, split: str) -> list[JsonObject]:
        """The rows of its training set, or of its evaluation set for any other split."""
        data = self.live.get_dataset() if split == "train" else self.live.get_eval_dataset()
        return [dict(row) for row in data]

    def opening(self, task: Task) -> tuple[Message, ...]:
        return tuple(Message(one["role"], str(one.get("content") or "")) for one in task.answer["prompt"])

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        """The reward that the environment gave."""
        output = (rollout.details or {}).get("output")
        if output is None:
            raise VerifierError("no output: the policy's actor must be the VerifiersActor of this environment")
        reward = float(output["reward"])
        return Score(reward, reward >= 1.0, min(1.0, max(0.0, reward)), "", output.get("metrics") or {})


def _find_factory(id: str) -> Any:
    """The function or class that makes the environment."""
    try:
        importlib.import_module("verifiers")
    except ImportError:
        raise ConfigError("env: the package is missing: pip install 'verifiers==0.1.14'") from None
    if ":" in id:
        return load_object(id, "env.id")
    module = id.replace("-", "_").rpartition("/")[2]
    try:
        found = getattr(importlib.import_module(module), "load_environment", None)
    except ImportError as error:
        raise ConfigError(f"env.id: {id} cannot be imported: {error}. Is the environment installed?") from None
    if found is None:
        raise ConfigError(f"env.id: the module {module} has no function load_environment")
    return found


def _make_task(row: JsonObject, number: int, split: str) -> Task:
    prompt = row.get("prompt")
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt or ())
    kept = msgspec.json.decode(to_json({**row, "prompt": messages}))
    text = str(messages[-1].get("content") or "") if messages else ""
    kind = str(row.get("task") or "")
    return Task(id=str(row.get("example_id", number)), prompt=text, split=split, kind=kind, answer=kept)


class VerifiersActor:
    """Lets the environment run its rollout, with a gateway session as its model. Implements `ludus.agent.Actor`."""

    def __init__(self, env: VerifiersEnv, model: Model) -> None:
        self._env = env
        self._model = model
        self._gateway: Gateway | None = None
        self._starting = asyncio.Lock()

    @property
    def name(self) -> str:
        return f"verifiers/{self._env.id}/{self._model.name}"

    async def act(self, task: Task, opening: Sequence[Message], sampling: Sampling) -> AgentResult:
        gateway = await self._start_gateway()
        session = gateway.open(sampling=sampling, name=task.id)
        prompt = [{"role": message.role, "content": write_content(message)} for message in opening]
        try:
            with boundary(ModelError, f"verifiers {self._env.id}, task '{task.id}'"):
                output = await self._run(session.url, {**task.answer, "prompt": prompt})
        finally:
            record = await gateway.close(session)
        if record.failure is not None:
            raise ModelError(record.failure.message, retryable=record.failure.retryable)
        if problem := find_problem(output):
            raise ModelError(f"verifiers {self._env.id}, task '{task.id}': {problem}")
        turns = record.make_turns()
        stop = StopReason.LENGTH if output.get("is_truncated") else StopReason.FINISHED
        details = {"output": {name: output.get(name) for name in ("reward", "metrics", "stop_condition")}}
        return AgentResult(record.opening, (), turns, stop, exit=None, error=None, details=details)

    def for_stage(self, stage: str) -> "VerifiersActor":
        return self

    async def close(self) -> None:
        if self._gateway is not None:
            await self._gateway.__aexit__(None, None, None)

    async def _start_gateway(self) -> Gateway:
        async with self._starting:
            if self._gateway is None:
                self._gateway = await Gateway(self._model).__aenter__()
        return self._gateway

    async def _run(self, url: str, row: JsonObject) -> Any:
        """One rollout of the environment. Its client is closed at the end."""
        kinds: Any = importlib.import_module("verifiers.types")
        clients: Any = importlib.import_module("verifiers.clients")
        config = kinds.ClientConfig(api_base_url=url, api_key_var=KEY_VARIABLE, max_retries=0)
        client = clients.resolve_client(config)
        try:
            return await self._env.live.run_rollout(row, client, self._model.name, {})
        finally:
            closing = client.close()
            if inspect.isawaitable(closing):
                await closing


def find_problem(output: Mapping[str, Any]) -> str:
    """Why an output is no measurement; empty if it is one."""
    if error := output.get("error"):
        return str(error)
    reward = output.get("reward")
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        return f"its reward is {reward!r}"
    return ""
