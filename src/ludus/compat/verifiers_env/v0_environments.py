"""Environments of `verifiers` 0.1: a module with `load_environment`, or a class. They own their rollout and rubric."""

import importlib
import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ludus.compat.verifiers_env.package_release import (
    KEY_VARIABLE,
    PlayedRollout,
    PlayerModel,
    RolloutOutcome,
    find_model_error,
    list_numbers,
)
from ludus.config.references import load_object
from ludus.errors import ConfigError, LudusError, ModelError, boundary, describe_error
from ludus.gateway.service import Route
from ludus.models.openai import write_content
from ludus.types import JsonObject, Message, StopReason, Task, to_json


class EnvironmentRelease:
    """An environment of release 0.1. Implements `VerifiersRelease`."""

    routes: tuple[Route, ...] = ()

    def __init__(self, id: str, args: Mapping[str, Any]) -> None:
        """
        Raises:
            ConfigError: the environment is not installed, or cannot be made.
        """
        self._id = id
        make = _find_factory(id)
        try:
            self.environment = make(**args)
        except Exception as error:
            raise ConfigError(f"env.id: {id}: {describe_error(error)}") from error

    def load_tasks(self, split: str) -> Iterable[Task]:
        """The rows of its training set, or of its evaluation set for any other split."""
        data = self.environment.get_dataset() if split == "train" else self.environment.get_eval_dataset()
        return [_make_task(dict(row), number, split) for number, row in enumerate(data)]

    def make_opening(self, task: Task) -> tuple[Message, ...]:
        return tuple(Message(one["role"], str(one.get("content") or "")) for one in task.answer["prompt"])

    async def play(self, task: Task, opening: Sequence[Message], player: PlayerModel) -> PlayedRollout:
        gateway, model, sampling = player
        session = gateway.open(model=model, sampling=sampling, name=task.id)
        prompt = [{"role": message.role, "content": write_content(message)} for message in opening]
        what = f"verifiers {self._id}, task '{task.id}'"
        outcome: RolloutOutcome | LudusError
        try:
            with boundary(ModelError, what):
                output = await self._run(session.url, model.name, {**task.answer, "prompt": prompt})
            problem = find_problem(output)
            outcome = ModelError(f"{what}: {problem}") if problem else _make_outcome(output)
        except ModelError as error:
            outcome = error
        finally:
            record = await gateway.close(session)
        return PlayedRollout(record, find_model_error(record) or outcome)

    async def close(self) -> None: ...

    async def _run(self, url: str, model: str, row: JsonObject) -> Any:
        """One rollout of the environment. Its client is closed at the end."""
        kinds: Any = importlib.import_module("verifiers.types")
        clients: Any = importlib.import_module("verifiers.clients")
        config = kinds.ClientConfig(api_base_url=url, api_key_var=KEY_VARIABLE, max_retries=0)
        client = clients.resolve_client(config)
        try:
            return await self.environment.run_rollout(row, client, model, {})
        finally:
            closing = client.close()
            if inspect.isawaitable(closing):
                await closing


def _find_factory(id: str) -> Any:
    """The function or class that makes the environment."""
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


def find_problem(output: Mapping[str, Any]) -> str:
    """Why an output is no measurement; empty if it is one."""
    if error := output.get("error"):
        return str(error)
    reward = output.get("reward")
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        return f"its reward is {reward!r}"
    return ""


def _make_outcome(output: Mapping[str, Any]) -> RolloutOutcome:
    return RolloutOutcome(
        reward=float(output["reward"]),
        parts=list_numbers(output.get("metrics") or {}),
        stop=StopReason.LENGTH if output.get("is_truncated") else StopReason.FINISHED,
        condition=str(output.get("stop_condition") or ""),
    )
