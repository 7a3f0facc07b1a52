"""Environments of `verifiers` 0.1: a module with `load_environment`, or a class. They own their rollout and rubric."""

import importlib
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from ludus.chat_form import read_message, write_content
from ludus.compat.verifiers_env.package_release import (
    KEY_VARIABLE,
    PlayedRollout,
    PlayerModel,
    RolloutOutcome,
    find_model_error,
    list_numbers,
)
from ludus.compat.verifiers_env.v0_groups import GroupPlays, has_empty_rubric, scores_groups
from ludus.compat.verifiers_env.verdicts import PAGE, explain_missing
from ludus.config.references import load_object
from ludus.encoding import to_json
from ludus.errors import (
    ConfigError,
    LudusError,
    ModelError,
    RolloutError,
    SandboxError,
    SetupError,
    ToolBroken,
    VerifierError,
    boundary,
    describe_error,
)
from ludus.gateway.service import Route
from ludus.types import JsonObject, Message, StopReason, Task

MakeClient = Callable[[str], Any]
"""Makes the client of a rollout, for the URL of its session."""
ERRORS: dict[str, type[RolloutError]] = {
    "ModelError": ModelError,
    "InvalidModelResponseError": ModelError,
    "EmptyModelResponseError": ModelError,
    "ToolError": ToolBroken,
    "ToolParseError": ToolBroken,
    "ToolCallError": ToolBroken,
    "InfraError": SandboxError,
    "TunnelError": SandboxError,
    "SandboxError": SandboxError,
    "BrowserSandboxError": SandboxError,
}
"""Our errors by the package's; any other is code of the environment."""


def make_package_client(url: str) -> Any:
    """A client of the installed package."""
    kinds: Any = importlib.import_module("verifiers.types")
    clients: Any = importlib.import_module("verifiers.clients")
    return clients.resolve_client(kinds.ClientConfig(api_base_url=url, api_key_var=KEY_VARIABLE, max_retries=0))


class EnvironmentRelease:
    """An environment of release 0.1. Implements `VerifiersRelease`."""

    routes: tuple[Route, ...] = ()

    def __init__(self, id: str, args: Mapping[str, Any], make_client: MakeClient = make_package_client) -> None:
        """
        Raises:
            ConfigError: the environment is not installed, or cannot be made.
        """
        self._id = id
        self._make_client = make_client
        make = _find_factory(id)
        try:
            self.environment = make(**args)
        except Exception as error:
            raise ConfigError(f"env.id: {id}: {describe_error(error)}") from error
        self.judges_groups = scores_groups(self.environment)
        self._groups = GroupPlays(self.environment)

    def load_tasks(self, split: str) -> Iterable[Task]:
        """The rows of its training set, or of its evaluation set for any other split."""
        data = self.environment.get_dataset() if split == "train" else self.environment.get_eval_dataset()
        return [_make_task(dict(row), number, split) for number, row in enumerate(data)]

    def make_opening(self, task: Task) -> tuple[Message, ...]:
        return tuple(Message(one["role"], str(one.get("content") or "")) for one in task.answer["prompt"])

    async def play(self, task: Task, opening: Sequence[Message], player: PlayerModel) -> PlayedRollout:
        gateway, model, sampling, together = player
        session = gateway.open(model=model, sampling=sampling, name=task.id)
        prompt = [{"role": message.role, "content": write_content(message)} for message in opening]
        row, what = {**task.answer, "prompt": prompt}, f"verifiers {self._id}, task '{task.id}'"
        client, output, problem = self._make_client(session.url), dict[str, Any](), None
        try:
            with boundary(VerifierError, what):
                output = await self._run(row, client, model.name, together)
        except VerifierError as error:
            problem = error if session.replies else SetupError(str(error))
            problem.retryable = not session.replies  # the agent has acted: it gets no second chance
        finally:
            await _close(client)
            record = await gateway.close(session)
        problem = problem or find_problem(output, what)
        if problem and output.get("member"):
            self._groups.drop(output["member"])
        outcome = find_model_error(record) or problem or _make_outcome(output)
        return PlayedRollout(record, outcome, read_answers(output.get("completion")))

    async def score(self, names: Sequence[str]) -> list[RolloutOutcome | LudusError]:
        outputs = [_read_state(state) for state in await self._groups.score(names)]
        return [find_problem(output, f"verifiers {self._id}") or _make_outcome(output) for output in outputs]

    async def close(self) -> None: ...

    async def _run(self, row: JsonObject, client: Any, model: str, together: Any) -> Mapping[str, Any]:
        """One rollout of the environment, with its reward if that does not depend on others."""
        if not self.judges_groups and not has_empty_rubric(self.environment):
            return await self.environment.run_rollout(row, client, model, {})
        member, state = await self._groups.play(row, client, model, together)
        if not self.judges_groups:
            (state,) = await self._groups.score([member])
            return _read_state(state)
        return {**_read_state(state), "member": member}


async def _close(client: Any) -> None:
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
        name = re.search(r"cannot import name '(\w+)' from 'verifiers", str(error))
        advice = explain_missing(name[1]) if name else ""
        advice = advice or f"Is the environment installed? Is a module missing? See {PAGE}"
        raise ConfigError(f"env.id: {id} cannot be imported: {error}. {advice}") from None
    except Exception as error:  # foreign code
        raise ConfigError(f"env.id: {id} cannot be imported: {describe_error(error)}") from error
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


# ---- what comes out -----------------------------------------------------------------------------------------------


def _read_state(state: Any) -> JsonObject:
    """What is known of a rollout that the environment has not written as an output."""
    error = state.get("error")
    if error is not None and not isinstance(error, Mapping):
        error = {"error": type(error).__name__, "error_chain_repr": describe_error(error)}
    names = ("reward", "metrics", "is_truncated", "stop_condition", "completion")
    return {"error": error, **{name: state.get(name) for name in names}}


def find_problem(output: Mapping[str, Any], what: str = "verifiers") -> RolloutError | None:
    """Why an output is no measurement; None if it is one. That of a rollout that waits for the others of its group is
    one without a reward."""
    if error := output.get("error"):
        named = cast("Mapping[str, Any]", error) if isinstance(error, Mapping) else dict[str, Any]()
        kind = ERRORS.get(str(named.get("error")), VerifierError)
        return kind(f"{what}: {named.get('error_chain_repr') or error}")
    reward = output.get("reward")
    if not output.get("member") and (not isinstance(reward, int | float) or not math.isfinite(reward)):
        return VerifierError(f"{what}: its reward is {reward!r}", retryable=False)
    return None


def _make_outcome(output: Mapping[str, Any]) -> RolloutOutcome:
    member = str(output.get("member") or "")
    return RolloutOutcome(
        reward=0.0 if member else float(output["reward"]),
        parts={} if member else list_numbers(output.get("metrics") or {}),
        stop=StopReason.LENGTH if output.get("is_truncated") else StopReason.FINISHED,
        condition=str(output.get("stop_condition") or ""),
        member=member,
    )


def read_answers(completion: Any) -> dict[str, str]:
    """What tools said in a completion of the package, by the id of the call. The result of a call that ends a rollout
    is only here: no request to the model has it."""
    found: dict[str, str] = {}
    messages = cast("list[Any]", completion) if isinstance(completion, list) else []
    for message in messages:
        raw = cast("JsonObject", message) if isinstance(message, dict) else message.model_dump()
        if raw.get("role") == "tool" and raw.get("tool_call_id"):
            found[str(raw["tool_call_id"])] = read_message(raw).content
    return found
