"""Environments: rows of tasks, a conversation with the model in turns, and a rubric.

    init_state ──> setup_state ──> until a @stop says so: get_prompt_messages ──> the model ──> add_model_response
               ──> @cleanup ──> the rubric

`MultiTurnEnv` asks `env_response` what comes after each reply. `SingleTurnEnv` ends after one.
"""

# Values of foreign code have no types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

import asyncio
import copy
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ludus.compat.verifiers_env.v0_standin.decorators import (
    cleanup,
    discover_decorated,
    maybe_await,
    maybe_call_with_named_args,
    stop,
)
from ludus.compat.verifiers_env.v0_standin.errors import Error, OverlongPromptError
from ludus.compat.verifiers_env.v0_standin.parsers import Parser, get_field
from ludus.compat.verifiers_env.v0_standin.rows import Rows
from ludus.compat.verifiers_env.v0_standin.rubrics import Rubric, RubricGroup
from ludus.compat.verifiers_env.v0_standin.values import (
    AssistantMessage,
    RolloutTiming,
    State,
    TimeSpan,
    Tool,
    normalize_messages,
)
from ludus.errors import ConfigError


class Environment:
    """Rows, a parser and a rubric. How a rollout goes is defined by its subclasses."""

    def __init__(
        self,
        dataset: Any = None,
        eval_dataset: Any = None,
        system_prompt: str | None = None,
        few_shot: Sequence[Any] | None = None,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        sampling_args: Mapping[str, Any] | None = None,
        message_type: str = "chat",
        tool_defs: Sequence[Any] | None = None,
        max_workers: int = 512,
        env_id: str | None = None,
        env_args: dict[str, Any] | None = None,
        map_kwargs: Mapping[str, Any] | None = None,
        max_seq_len: int | None = None,
        score_rollouts: bool = True,
        pass_threshold: float = 0.5,
        **more: Any,
    ) -> None:
        if "oai_tools" in more:
            raise ValueError("oai_tools: use tool_defs: [{'name': …, 'description': …, 'parameters': {…}}]")
        if dataset is None and eval_dataset is None:
            raise ValueError("dataset: neither it nor eval_dataset is given")
        self.logger = logging.getLogger(f"verifiers.envs.{type(self).__name__}")
        self.message_type = message_type
        self.tool_defs = normalize_tools(tool_defs)
        self.system_prompt = system_prompt
        self.few_shot = few_shot
        self.parser = parser or Parser()
        self.rubric = rubric or Rubric()
        self.sampling_args = {"n": 1, "extra_body": {}, **(sampling_args or {})}
        self.max_workers = max_workers
        self.env_id, self.env_args = env_id or "", env_args or {}
        self.map_kwargs = dict(map_kwargs or {})
        self.max_seq_len = max_seq_len
        self.pass_threshold = pass_threshold
        self.set_score_rollouts(score_rollouts)
        self.dataset_source, self.dataset = _split_source(dataset)
        self.eval_dataset_source, self.eval_dataset = _split_source(eval_dataset)
        self.dataset = self._format(self.dataset)
        self.eval_dataset = self._format(self.eval_dataset)
        for name, value in more.items():
            setattr(self, name, value)
        self.__post_init__()

    def __post_init__(self) -> None:
        self._stop_conditions = discover_decorated(self, "stop")
        self._cleanup_handlers = discover_decorated(self, "cleanup")
        self._teardown_handlers = discover_decorated(self, "teardown")

    # ---- rows -----------------------------------------------------------------------------------------------------

    def build_dataset(self) -> Any:
        if self.dataset is None and self.dataset_source is not None:
            self.dataset = self._format(self.dataset_source())
        return self.dataset

    def build_eval_dataset(self) -> Any:
        if self.eval_dataset is None and self.eval_dataset_source is not None:
            self.eval_dataset = self._format(self.eval_dataset_source())
        return self.eval_dataset

    def get_dataset(self, n: int = -1, seed: int | None = None) -> Any:
        if self.build_dataset() is None:
            raise ValueError("the environment has no dataset to train on")
        return _take_rows(self.dataset, n, seed)

    def get_eval_dataset(self, n: int = -1, seed: int | None = None) -> Any:
        if self.build_eval_dataset() is None:
            return self.get_dataset(n, seed)
        return _take_rows(self.eval_dataset, n, seed)

    def _format(self, rows: Any) -> Any:
        """The rows with the columns `example_id` and `prompt`."""
        if rows is None:
            return None
        rows = Rows.from_list(rows) if isinstance(rows, list | tuple) else rows
        names = rows.column_names
        if "env_id" in names:
            rows = rows.remove_columns(["env_id"])
        if "example_id" in names and not isinstance(rows["example_id"][0], int):
            rows = rows.rename_column("example_id", "src_id")
        if "example_id" not in rows.column_names:
            rows = rows.add_column("example_id", range(len(rows)))
        return self._format_prompts(rows)

    def _format_prompts(self, rows: Any) -> Any:
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        if "prompt" not in rows.column_names:
            before = [*system, *(self.few_shot or ())]
            return rows.map(
                lambda row: {"prompt": [*before, {"role": "user", "content": row["question"]}]}, **self.map_kwargs
            )
        text = self.system_prompt
        if text is None:
            return rows
        return rows.map(lambda row: {"prompt": _add_system(row["prompt"], text)}, **self.map_kwargs)

    # ---- a rollout ------------------------------------------------------------------------------------------------

    @property
    def requires_group_rollouts(self) -> bool:
        return self.rubric.has_group_rewards

    async def init_state(self, input: Mapping[str, Any], client: Any, model: str, sampling_args: Any = None) -> State:
        """The state of a rollout of this row, before its first turn."""
        row = copy.deepcopy(dict(input))
        if isinstance(row.get("info"), str):
            row["info"] = json.loads(row["info"])
        state = State(input=row, task=row, client=client, model=model, sampling_args=sampling_args)
        if isinstance(row.get("prompt"), str | list):
            state["prompt"] = normalize_messages(row["prompt"], field_name="input.prompt")
        info = state.get("info")
        tools = info["tool_defs"] if isinstance(info, dict) and "tool_defs" in info else self.tool_defs
        state.update(_make_first_fields(tools))
        return state

    async def rollout(self, input: Mapping[str, Any], client: Any, model: str, sampling_args: Any = None) -> State:
        raise NotImplementedError(f"{type(self).__name__} does not define rollout")

    async def run_rollout(
        self, input: Mapping[str, Any], client: Any, model: str, sampling_args: Any, **_: Any
    ) -> dict[str, Any]:
        """One rollout with its reward."""
        state = await self.rollout(input, client, model, sampling_args)
        with _measure(state["timing"].scoring):
            await (self.rubric.score_rollout if self.score_rollouts else self.rubric.dummy_score_rollout)(state)
        await self.rubric.cleanup(state)
        return make_output(state)

    async def get_model_response(
        self,
        state: State,
        prompt: Any,
        client: Any = None,
        model: str | None = None,
        tool_defs: Sequence[Any] | None = None,
        sampling_args: Any = None,
        **_: Any,
    ) -> Any:
        """Ask the model, by default that of the rollout."""
        tools = state.get("tool_defs") if tool_defs is None else tool_defs
        response = await (client or state["client"]).get_response(
            prompt=normalize_messages(prompt),
            model=model or state["model"],
            tools=list(tools) if tools else None,
            sampling_args=sampling_args or state["sampling_args"] or {},
            state=state,
        )
        if (used := response.usage) is not None:
            self.increment_state_usage(state, used.prompt_tokens, used.completion_tokens)
        return response

    def increment_state_usage(self, state: State, input_tokens: float = 0, output_tokens: float = 0) -> None:
        used = state["usage"]
        used["input_tokens"] += input_tokens
        used["output_tokens"] += output_tokens

    def get_state_usage(self, state: State) -> dict[str, float] | None:
        return dict(state["usage"]) if state.get("usage") else None

    async def is_completed(self, state: State, **more: Any) -> bool:
        """Whether one of the stop conditions holds. The first one is noted."""
        for condition in self._stop_conditions:
            if await maybe_call_with_named_args(condition, state=state, env=self, **more):
                cut = any(step.get("is_truncated", False) for step in state.get("trajectory", []))
                state["is_completed"], state["stop_condition"] = True, condition.__name__
                state["is_truncated"] = state.get("is_truncated", False) or cut
                return True
        return False

    async def cleanup(self, state: State, **more: Any) -> None:
        for handler in self._cleanup_handlers:
            await maybe_call_with_named_args(handler, state=state, env=self, **more)

    async def _teardown(self) -> None:
        await self.rubric.teardown()
        for handler in self._teardown_handlers:
            await maybe_await(handler)

    # ---- settings -------------------------------------------------------------------------------------------------

    def add_rubric(self, rubric: Rubric) -> None:
        if isinstance(self.rubric, RubricGroup):
            self.rubric.rubrics.append(rubric)
        else:
            self.rubric = RubricGroup(rubrics=[self.rubric, rubric])

    def set_kwargs(self, **values: Any) -> None:
        for name, value in values.items():
            setter: Callable[[Any], None] | None = getattr(self, f"set_{name}", None)
            if setter is None:
                setattr(self, name, value)
            else:
                setter(value)

    def set_max_seq_len(self, max_seq_len: int | None) -> None:
        self.max_seq_len = max_seq_len

    def set_score_rollouts(self, score_rollouts: bool) -> None:
        self.score_rollouts = score_rollouts

    def evaluate(self, *_: Any, **__: Any) -> Any:
        raise ConfigError("verifiers.Environment.evaluate: use ludus evaluate verifiers:NAME")

    generate = evaluate_sync = generate_sync = evaluate


def _split_source(data: Any) -> tuple[Callable[[], Any] | None, Any]:
    """A function that makes rows, or the rows."""
    return (data, None) if callable(data) else (None, data)


def _take_rows(rows: Any, count: int, seed: int | None) -> Any:
    rows = rows if seed is None else rows.shuffle(seed=seed)
    return rows.select(range(min(count, len(rows)))) if count > 0 else rows


def _add_system(prompt: Any, text: str) -> list[Any]:
    assert isinstance(prompt, list), f"a prompt is a list of messages if there is a system_prompt, not {type(prompt)}"
    has_one = bool(prompt) and get_field(prompt[0], "role") == "system"
    return prompt if has_one else [{"role": "system", "content": text}, *prompt]


def normalize_tools(tools: Sequence[Any] | None) -> list[Any] | None:
    """Definitions of tools as values."""
    for tool in tools or ():
        if isinstance(tool, Mapping) and "function" in tool:
            raise ValueError("tool_defs: write {'name': …, 'description': …, 'parameters': {…}}, without 'function'")
    return None if tools is None else [Tool.model_validate(tool) for tool in tools]


def _make_first_fields(tools: Sequence[Any] | None) -> dict[str, Any]:
    return {
        "is_completed": False,
        "is_truncated": False,
        "tool_defs": normalize_tools(tools) or [],
        "trajectory": [],
        "completion": None,
        "usage": {"input_tokens": 0.0, "output_tokens": 0.0},
        "trajectory_id": uuid.uuid4().hex,
        "reward": None,
        "metrics": None,
        "error": None,
        "final_env_response": None,
        "timing": RolloutTiming(),
    }


def make_output(state: State) -> dict[str, Any]:
    """What is reported of a rollout."""
    names = ("example_id", "prompt", "completion", "answer", "info", "reward", "metrics", "is_completed")
    output = {name: state.get(name) for name in (*names, "is_truncated", "stop_condition", "tool_defs")}
    if (error := state.get("error")) is not None:
        output["error"] = {"error": type(error).__name__, "error_chain_repr": describe_chain(error)}
    return output


def describe_chain(error: BaseException) -> str:
    """An error and those that caused it."""
    cause = error.__cause__
    own = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return own if cause is None else f"{own} ({describe_chain(cause)})"


@contextmanager
def _measure(span: TimeSpan):
    span.start = time.time()
    try:
        yield
    finally:
        span.end = time.time()


class TurnsRubric(Rubric):
    """Counts turns."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_metric(self.num_turns)

    async def num_turns(self, state: State) -> int:
        return len(state["trajectory"])


class MultiTurnEnv(Environment):
    """A conversation: after each reply the environment says something, until it stops."""

    def __init__(self, max_turns: int = -1, timeout_seconds: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_turns = max_turns
        self.timeout_seconds = timeout_seconds
        self.max_total_completion_tokens = -1
        self.add_rubric(TurnsRubric())

    async def env_response(self, messages: list[Any], state: State, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define env_response")

    async def setup_state(self, state: State) -> Any:
        """Further fields of the state."""

    def set_max_total_completion_tokens(self, max_total_completion_tokens: int) -> None:
        self.max_total_completion_tokens = max_total_completion_tokens

    @stop(priority=100)
    async def has_error(self, state: State, **kwargs: Any) -> bool:
        return state.get("error") is not None

    @stop
    async def prompt_too_long(self, state: State) -> bool:
        return state.get("prompt_too_long", False)

    @stop
    async def max_turns_reached(self, state: State) -> bool:
        return 0 < self.max_turns <= len(state["trajectory"])

    @stop
    async def max_total_completion_tokens_reached(self, state: State) -> bool:
        return 0 < self.max_total_completion_tokens <= state["usage"]["output_tokens"]

    @stop
    async def has_final_env_response(self, state: State) -> bool:
        return state.get("final_env_response") is not None

    async def get_prompt_messages(self, state: State) -> list[Any]:
        """The next prompt: the conversation so far, and what the environment says."""
        if not state["trajectory"]:
            return state["prompt"]
        last = state["trajectory"][-1]
        messages = [*last["prompt"], *last["completion"]]
        said = await maybe_await(self.env_response, messages, state)
        return [*messages, *normalize_messages(said, field_name="env_response")]

    async def render_completion(self, state: State) -> None:
        """Everything that was said after the first prompt."""
        if not state["trajectory"]:
            state["completion"] = []
            return
        last = state["trajectory"][-1]
        final = normalize_messages(state.get("final_env_response") or [], field_name="final_env_response")
        state["completion"] = [*last["prompt"], *last["completion"], *final][len(state["prompt"]) :]

    @cleanup(priority=100)
    async def render_state(self, state: State) -> None:
        state["timing"].generation.end = time.time()
        await self.render_completion(state)

    async def add_trajectory_step(self, state: State, trajectory_step: dict[str, Any]) -> None:
        state["trajectory"].append(trajectory_step)

    async def add_model_response(self, state: State, prompt_messages: list[Any], response: Any) -> None:
        """Add a reply to the trajectory."""
        said = response.message
        names = ("content", "reasoning_content", "thinking_blocks", "tool_calls")
        step = {
            "prompt": prompt_messages,
            "completion": [AssistantMessage(**{name: said.get(name) for name in names})],
            "response": response,
            "tokens": None,
            "reward": None,
            "advantage": None,
            "is_truncated": bool(said.is_truncated),
            "trajectory_id": state["trajectory_id"],
            "extras": {},
        }
        await self.add_trajectory_step(state, step)

    async def rollout(self, input: Mapping[str, Any], client: Any, model: str, sampling_args: Any = None) -> State:
        state = await self.init_state(input, client, model, sampling_args)
        try:
            await asyncio.wait_for(self._take_turns(state), self.timeout_seconds)
        except TimeoutError:
            state.update(timed_out=True, is_completed=True, stop_condition="timeout_reached")
        finally:
            await self.cleanup(state)
        return state

    async def _take_turns(self, state: State) -> None:
        state["timing"].generation.start = time.time()
        try:
            with _measure(state["timing"].setup):
                await maybe_await(self.setup_state, state)
        except Error as error:
            state["error"] = error
        while not await self.is_completed(state):
            try:
                await self._take_turn(state)
            except OverlongPromptError:
                state["prompt_too_long"] = state["is_truncated"] = True
            except Error as error:
                state["error"] = error

    async def _take_turn(self, state: State) -> None:
        started = time.time()
        prompt = normalize_messages(await self.get_prompt_messages(state), field_name="prompt_messages")
        if state["trajectory"]:
            state["timing"].env.spans.append(TimeSpan(start=started, end=time.time()))
        if state.get("final_env_response") is not None:
            return
        asked = time.time()
        response = await self.get_model_response(state, prompt)
        state["timing"].model.spans.append(TimeSpan(start=asked, end=time.time()))
        await self.add_model_response(state, prompt, response)


class SingleTurnEnv(MultiTurnEnv):
    """One reply."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_turns=1, **kwargs)
