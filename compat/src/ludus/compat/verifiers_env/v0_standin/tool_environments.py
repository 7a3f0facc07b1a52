"""Environments whose model calls functions: `ToolEnv`, and `StatefulToolEnv`, which changes the arguments of calls."""

# Values of foreign code have no types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ludus.compat.verifiers_env.v0_standin.decorators import maybe_await, stop
from ludus.compat.verifiers_env.v0_standin.environments import MultiTurnEnv
from ludus.compat.verifiers_env.v0_standin.errors import ToolCallError, ToolParseError
from ludus.compat.verifiers_env.v0_standin.rubrics import Rubric
from ludus.compat.verifiers_env.v0_standin.tool_schema import make_tool
from ludus.compat.verifiers_env.v0_standin.values import State, ToolMessage


class CallsRubric(Rubric):
    """Counts calls: all of them, and those of each tool."""

    def __init__(self, tool_names: Sequence[str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tool_names: list[str] = []
        self.add_metric(self.total_tool_calls)
        for name in tool_names or ():
            self.add_tool_metric(name)

    async def total_tool_calls(self, completion: list[Any]) -> float:
        return float(len(_list_calls(completion)))

    def add_tool_metric(self, tool_name: str) -> None:
        if tool_name in self.tool_names:
            return

        async def count(completion: list[Any]) -> int:
            return _list_calls(completion).count(tool_name)

        count.__name__ = f"{tool_name}_calls"
        self.tool_names.append(tool_name)
        self.add_metric(count)

    def remove_tool_metric(self, tool_name: str) -> None:
        if tool_name in self.tool_names:
            self.tool_names.remove(tool_name)
            place = self._get_reward_func_names().index(f"{tool_name}_calls")
            del self.funcs[place], self.weights[place]


def _list_calls(completion: list[Any]) -> list[str]:
    """The names of the tools that a model called."""
    messages = (message for message in completion if message.role == "assistant")
    return [call.name for message in messages for call in message.get("tool_calls") or ()]


class ToolEnv(MultiTurnEnv):
    """The model calls functions until it answers without a call. What a function raises is its result."""

    def __init__(
        self,
        tools: Sequence[Callable[..., Any]] | None = None,
        max_turns: int = 10,
        error_formatter: Callable[[Exception], str] = str,
        stop_errors: Sequence[type[Exception]] | None = None,
        **kwargs: Any,
    ) -> None:
        self.tools = list(tools or ())
        self.error_formatter = error_formatter
        self.stop_errors = tuple(stop_errors or ())
        self.tool_map = {_get_name(tool): tool for tool in self.tools}
        super().__init__(tool_defs=[make_tool(tool) for tool in self.tools], max_turns=max_turns, **kwargs)
        self.tool_monitor_rubric = CallsRubric(tool_names=list(self.tool_map))
        self.add_rubric(self.tool_monitor_rubric)

    def add_tool(self, tool: Callable[..., Any]) -> None:
        self._add(tool, make_tool(tool))

    def remove_tool(self, tool: Callable[..., Any]) -> None:
        name = _get_name(tool)
        self.tools.remove(tool)
        self.tool_defs = [each for each in self.tool_defs or () if each.name != name]
        del self.tool_map[name]
        self.tool_monitor_rubric.remove_tool_metric(name)

    def _add(self, tool: Callable[..., Any], definition: Any) -> None:
        self.tools.append(tool)
        self.tool_defs = [*(self.tool_defs or ()), definition]
        self.tool_map[_get_name(tool)] = tool
        self.tool_monitor_rubric.add_tool_metric(_get_name(tool))

    def _should_stop_for_error(self, err: Exception) -> bool:
        return isinstance(err, self.stop_errors)

    @stop
    async def no_tools_called(self, state: State) -> bool:
        if not state["trajectory"]:
            return False
        last = state["trajectory"][-1]["completion"][-1]
        return last.role == "assistant" and not last.get("tool_calls")

    async def call_tool(self, tool_name: str, tool_args: dict[str, Any], tool_call_id: str, **kwargs: Any) -> Any:
        """The result of a function as a message."""
        result = await maybe_await(self.tool_map[tool_name], **tool_args)
        return ToolMessage(content=result if _is_parts(result) else str(result), tool_call_id=tool_call_id)

    def prepare_arguments(self, name: str, given: Any, messages: list[Any], state: State, **kwargs: Any) -> Any:
        """The arguments of a call."""
        return given

    async def env_response(self, messages: list[Any], state: State, **kwargs: Any) -> list[Any]:
        assert messages[-1].tool_calls is not None
        return [await self._answer(call, messages, state, **kwargs) for call in messages[-1].tool_calls]

    async def _answer(self, call: Any, messages: list[Any], state: State, **kwargs: Any) -> Any:
        try:
            given = self._read_arguments(call)
        except Exception as error:
            return self._explain(error, call, ToolParseError)
        given = self.prepare_arguments(call.name, given, messages, state, **kwargs)
        try:
            return await self.call_tool(call.name, given, call.id)
        except Exception as error:
            return self._explain(error, call, ToolCallError)

    def _read_arguments(self, call: Any) -> Any:
        return json.loads(call.arguments)

    def _explain(self, error: Exception, call: Any, ends: type[Exception]) -> ToolMessage:
        if self._should_stop_for_error(error):
            raise ends from error
        return ToolMessage(content=self.error_formatter(error), tool_call_id=call.id)


class StatefulToolEnv(ToolEnv):
    """Functions that also get what the model does not see: `update_tool_args` adds it to the arguments."""

    def __init__(self, tools: Sequence[Callable[..., Any]] | None = None, **kwargs: Any) -> None:
        self.skipped_args: dict[str, list[str]] = {}
        super().__init__(tools=tools, **kwargs)

    def add_tool(self, tool: Callable[..., Any], args_to_skip: Sequence[str] = ()) -> None:
        """Add a function. The model does not see the arguments to skip."""
        self._add(tool, make_tool(_hide_arguments(tool, args_to_skip)))
        self.skipped_args[_get_name(tool)] = list(args_to_skip)

    def remove_tool(self, tool: Callable[..., Any]) -> None:
        super().remove_tool(tool)
        self.skipped_args.pop(_get_name(tool), None)

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: list[Any], state: State, **kwargs: Any
    ) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} does not define update_tool_args")

    def prepare_arguments(self, name: str, given: Any, messages: list[Any], state: State, **kwargs: Any) -> Any:
        return self.update_tool_args(name, given, messages, state, **kwargs)

    def _read_arguments(self, call: Any) -> dict[str, Any]:
        given = super()._read_arguments(call)
        if not isinstance(given, dict):
            raise ValueError(f"Expected tool arguments to be a dict, got {type(given).__name__}: {given}")
        return given


def _get_name(tool: Any) -> str:
    return getattr(tool, "__name__", type(tool).__name__)


def _is_parts(value: Any) -> bool:
    """Whether a result is the parts of a message."""
    return isinstance(value, list) and all(
        isinstance(part, Mapping) and part.get("type") in ("text", "image_url") for part in value
    )


def _hide_arguments(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """The function with a signature that lacks these parameters, to be described."""
    signature = inspect.signature(function)
    shown = [each for each in signature.parameters.values() if each.name not in names]

    def described(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    described.__name__, described.__doc__ = _get_name(function), function.__doc__
    described.__annotations__ = {
        name: hint for name, hint in getattr(function, "__annotations__", {}).items() if name not in names
    }
    described.__signature__ = signature.replace(parameters=shown)  # pyright: ignore[reportFunctionMemberAccess]
    return described
