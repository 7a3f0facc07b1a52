"""`HermesAgentLoop`: the agent loop that Hermes files build themselves, over the loop of Ludus.

    loop = HermesAgentLoop(server=self.server, tool_schemas=schemas, valid_tool_names=names, max_turns=30, task_id=id)
    result = await loop.run(messages)

The turns, the mistakes of the model and the lengths of results are those of `ludus.agent.take_turns`. Tools run in the
slot of `task_id`. If the model's server or the slot fails, `run` raises: there is nothing to score.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import msgspec

from ludus.agent import take_turns
from ludus.chat_form import read_messages, read_tools, write_message, write_tools
from ludus.compat.atropos_env.call_journal import get_scope
from ludus.compat.atropos_env.file_host import await_if_needed
from ludus.compat.atropos_env.server_view import FileServer, FileServers, ManagedView
from ludus.compat.hermes_env.config import HermesBudget
from ludus.compat.hermes_env.context import get_slots
from ludus.parsers import Parser
from ludus.policy import Limits, Policy
from ludus.tools import Tool
from ludus.types import Call, Completion, Finish, JsonObject, Message, Observation, Sampling, StopReason, ToolSpec, Turn

TOOL_SECONDS = 660.0
"""The longest time of one tool call. Commands have limits of their own."""
OWN_SERVERS = (FileServer, FileServers, ManagedView)


@dataclass
class HermesToolError:
    """`environments.agent_loop.ToolError`: one failed call."""

    turn: int
    tool_name: str
    arguments: str
    error: str
    tool_result: str


@dataclass
class HermesAgentResult:
    """`environments.agent_loop.AgentResult`: what an agent did."""

    messages: list[dict[str, Any]]
    managed_state: dict[str, Any] | None = None
    turns_used: int = 0
    finished_naturally: bool = False
    reasoning_per_turn: list[str | None] = field(default_factory=list[str | None])
    tool_errors: list[HermesToolError] = field(default_factory=list[HermesToolError])


class HermesAgentLoop:
    """One agent with tools, for one rollout."""

    def __init__(
        self,
        server: Any,
        tool_schemas: Sequence[Any] = (),
        valid_tool_names: Collection[str] = (),
        max_turns: int = 30,
        task_id: str | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        extra_body: dict[str, Any] | None = None,
        budget_config: Any = None,
        tool_handler: Callable[[str, dict[str, Any], str], Any] | None = None,
    ) -> None:
        self.server = server
        self.task_id = task_id or str(uuid4())
        self._specs = [spec for spec in read_tools(tool_schemas) if spec.name in set(valid_tool_names)]
        self._sampling = Sampling(temperature=temperature, max_tokens=max_tokens, extra=extra_body or {})
        self._budget: HermesBudget = budget_config or HermesBudget()
        self._turns = max_turns
        self._handler = tool_handler

    async def run(self, messages: list[Any]) -> HermesAgentResult:
        """Act until the model answers without a call, or has had its turns. The messages are added to the list."""
        result = HermesAgentResult(messages)
        stop: StopReason | None = None
        note_tools(spec.name for spec in self._specs)
        turns = self._take_turns(read_messages(messages))
        async with aclosing(turns):
            async for turn in turns:
                result.turns_used += 1
                messages.extend(write_message(message) for message in turn.messages)
                reasoning = turn.completion.message.reasoning
                result.reasoning_per_turn.append(reasoning.text if reasoning else None)
                result.tool_errors += _list_errors(turn, result.turns_used)
                note_errors(turn)
                stop = turn.stop
        result.finished_naturally = stop in (StopReason.FINISHED, StopReason.EMPTY, StopReason.SUBMITTED)
        result.managed_state = self.server.get_state() if hasattr(self.server, "get_state") else None
        return result

    async def _take_turns(self, opening: Sequence[Message]) -> AsyncGenerator[Turn, None]:
        tools = await self._make_tools()
        limits: Limits = self._budget.make_limits(self._turns, TOOL_SECONDS)
        policy = Policy(ServerModel(self.server), sampling=self._sampling, limits=limits)
        by_name = {tool.name: tool for tool in tools}

        async def handle(call: Call, arguments: JsonObject) -> str | Observation:
            if self._handler is not None:
                return str(await await_if_needed(self._handler(call.name, arguments, self.task_id)))
            slots = get_slots()
            return await slots.call(slots.run_tool(by_name[call.name], arguments))

        async def spill(name: str, data: bytes) -> str:
            slots = get_slots()
            return await slots.call(slots.spill(self.task_id, name, data))

        turns = take_turns(policy, opening, tools, handler=handle, spill=spill if tools else None)
        async with aclosing(turns):
            async for turn in turns:
                yield turn

    async def _make_tools(self) -> list[Tool]:
        """The tools that are offered. Those that Ludus does not have need a `tool_handler`."""
        if not self._specs:
            return []
        if self._handler is not None:
            return [Tool(spec, refuse_run) for spec in self._specs]
        slots = get_slots()
        usable = [each.name for each in slots.registry.toolsets if each.make and not each.missing]
        lengths = self._budget.tool_overrides or {}
        made = {tool.name: tool for tool in await slots.call(slots.make_tools(self.task_id, usable, lengths))}
        return [made[spec.name] for spec in self._specs if spec.name in made]


async def refuse_run(arguments: JsonObject) -> str:
    """For tools whose calls a handler runs."""
    raise AssertionError("the tool handler runs the calls")


def note_tools(names: Iterable[str]) -> None:
    """Remember the tools of an agent for the record of its rollout."""
    scope = get_scope()
    scope.offer = scope.offer._replace(tools=tuple(names))


def note_errors(turn: Turn) -> None:
    """Remember the tool errors of a turn for the record of its rollout: its messages do not have them."""
    get_scope().tool_errors.update({(each.call.id, each.content): each.error for each in turn.results if each.error})


def _list_errors(turn: Turn, number: int) -> list[HermesToolError]:
    return [
        HermesToolError(number, each.call.name, each.call.arguments[:200], each.error, each.content)
        for each in turn.results
        if each.error
    ]


class ServerModel:
    """A server of a file as a model of Ludus."""

    def __init__(self, server: Any) -> None:
        self._server = server

    @property
    def name(self) -> str:
        return "file"

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        if isinstance(self._server, OWN_SERVERS):
            completion = await self._server.complete(messages, tools, sampling)
        else:
            completion = await self._ask(messages, tools, sampling)
        return read_calls(completion, tools)

    async def _ask(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        """Ask a server of the author's own."""
        given: dict[str, Any] = {
            "messages": [write_message(message) for message in messages],
            "n": 1,
            "temperature": sampling.temperature,
        }
        if tools:
            given["tools"] = write_tools(tools)
        if sampling.max_tokens:
            given["max_tokens"] = sampling.max_tokens
        if sampling.extra:
            given["extra_body"] = dict(sampling.extra)
        choice = (await self._server.chat_completion(**given)).choices[0]
        finish = Finish(choice.finish_reason) if choice.finish_reason in list(Finish) else Finish.STOP
        return Completion(read_messages([choice.message])[0], finish)

    async def close(self) -> None:
        """The server is the file's."""


def read_calls(completion: Completion, tools: Sequence[ToolSpec]) -> Completion:
    """A completion whose calls are in its text, with the calls. Some chat servers leave them there."""
    message = completion.message
    if message.calls or not tools or "<tool_call>" not in message.content:
        return completion
    parsed = Parser("hermes").parse(message.content, tools)
    if not parsed.calls:
        return completion
    unique = tuple(Call(f"call_{uuid4().hex[:8]}", call.name, call.arguments) for call in parsed.calls)
    changed = msgspec.structs.replace(message, content=parsed.content, calls=unique)
    return msgspec.structs.replace(completion, message=changed, finish=Finish.CALLS)
