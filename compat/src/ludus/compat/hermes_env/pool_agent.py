"""The agent of files written for `AgentEnv`: `AgentConfig`, `AgentResult`, and the loop, over the loop of Ludus.

Tools are offered in the request, or by the model's template in token mode, and not in a system message. Calls that a
chat server leaves in the text as `<tool_call>` are read there. If the model's server or the slot fails, `run` raises:
there is nothing to score.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ludus.agent import take_turns
from ludus.chat_form import read_messages, write_message
from ludus.compat.atropos_env.server_view import FileServers
from ludus.compat.hermes_env.config import HermesBudget
from ludus.compat.hermes_env.loop import TOOL_SECONDS, ServerModel, note_errors, note_tools, refuse_run
from ludus.compat.hermes_env.pool_tools import PoolToolCall, PoolToolRegistry, PoolToolResult
from ludus.policy import Policy
from ludus.result_budget import Spill
from ludus.tools import Tool
from ludus.types import Call, JsonObject, Sampling, StopReason, Turn

Execute = Callable[[PoolToolCall], Awaitable[PoolToolResult]]
ANSWERED = (StopReason.FINISHED, StopReason.EMPTY, StopReason.SUBMITTED, StopReason.LENGTH)
"""How an agent ends that gave a last reply."""


@dataclass
class PoolAgentConfig:
    """`atropos.agent.AgentConfig`."""

    temperature: float | None = 0.7
    max_tokens: int | None = None
    max_steps: int = 50
    system_prompt: str | None = None
    tool_delay_s: float = 0.0
    working_dir: str | None = None
    """Where the agent's commands start."""


@dataclass
class PoolSequence:
    """`atropos.agent.SequenceData`: exact ids. -100 and 1.0 where nothing was sampled."""

    full_text: str
    tokens: list[int]
    masked_tokens: list[int]
    logprobs: list[float]


@dataclass
class PoolAgentStep:
    """`atropos.agent.AgentStep`: one reply, and what its calls returned."""

    step_number: int
    assistant_message: str
    tool_calls: list[PoolToolCall] = field(default_factory=list[PoolToolCall])
    tool_results: list[PoolToolResult] = field(default_factory=list[PoolToolResult])
    sequence_data: PoolSequence | None = None
    """The ids of the whole conversation, at the last step."""

    @property
    def has_tool_calls(self) -> bool:
        return bool(self.tool_calls)


@dataclass
class PoolAgentResult:
    """`atropos.agent.AgentResult`: what an agent did."""

    success: bool
    final_response: str
    steps: list[PoolAgentStep] = field(default_factory=list[PoolAgentStep])
    total_tokens: int = 0
    error: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    trajectory_data: PoolSequence | None = None
    """Exact ids, from a model in token mode."""
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    managed_state: dict[str, Any] | None = None

    @property
    def num_steps(self) -> int:
        return len(self.steps)

    @property
    def total_tool_calls(self) -> int:
        return sum(len(step.tool_calls) for step in self.steps)

    def to_messages(self) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["role"] in ("assistant", "tool")]

    def to_scored_data(self, score: float) -> dict[str, Any] | None:
        ids = self.trajectory_data
        if ids is None:
            return None
        return {"tokens": ids.tokens, "masks": ids.masked_tokens, "scores": score, "logprobs": ids.logprobs}


class PoolAgent:
    """`atropos.agent.AtroposAgent`: one agent with tools, for one rollout."""

    def __init__(
        self,
        server: Any,
        tools: PoolToolRegistry | None = None,
        config: PoolAgentConfig | None = None,
        tokenizer: Any = None,
        execute_tool: Execute | None = None,
        spill: Spill | None = None,
    ) -> None:
        self.server = server
        self.tools = tools or PoolToolRegistry()
        self.config = config or PoolAgentConfig()
        self.tokenizer = tokenizer
        self.execute_tool: Execute = execute_tool or self.tools.execute
        self._spill = spill
        self._done: list[PoolToolResult] = []

    async def run(self, task: str, initial_messages: Sequence[dict[str, Any]] | None = None) -> PoolAgentResult:
        """Act on a task until the model answers without a call, or has had its steps."""
        return await self.act([*(initial_messages or ()), {"role": "user", "content": task}])

    async def act(self, messages: list[dict[str, Any]]) -> PoolAgentResult:
        """The same for a conversation. The system message and all that follows is added to the list."""
        if self.config.system_prompt:
            messages.insert(0, {"role": "system", "content": self.config.system_prompt})
        async with self._open_server() as server:
            turns = await self._take_turns(server, messages)
            state = server.get_state() if hasattr(server, "get_state") else None
        return self._describe(turns, messages, state)

    def _open_server(self) -> AbstractAsyncContextManager[Any]:
        """The server, with exact ids if its model gives them."""
        server = self.server
        if isinstance(server, FileServers) and server.servers[0].model.token_model is not None:
            return server.managed_server()
        return nullcontext(server)

    async def _take_turns(self, server: Any, messages: list[dict[str, Any]]) -> list[tuple[Turn, PoolAgentStep]]:
        config = self.config
        sampling = Sampling(temperature=config.temperature, max_tokens=config.max_tokens)
        limits = HermesBudget().make_limits(config.max_steps, TOOL_SECONDS)
        policy = Policy(ServerModel(server), sampling=sampling, limits=limits)
        tools = [Tool(schema.make_spec(), refuse_run) for schema in self.tools.get_schemas()]
        found: list[tuple[Turn, PoolAgentStep]] = []
        note_tools(tool.name for tool in tools)
        opening = read_messages(messages)
        async with aclosing(take_turns(policy, opening, tools, handler=self._run_call, spill=self._spill)) as turns:
            async for turn in turns:
                messages.extend(write_message(message) for message in turn.messages)
                note_errors(turn)
                found.append((turn, self._make_step(turn, len(found) + 1)))
        return found

    async def _run_call(self, call: Call, arguments: JsonObject) -> str:
        done = await self.execute_tool(PoolToolCall(call.name, arguments, call.arguments, call.id))
        if self.config.tool_delay_s > 0:
            await asyncio.sleep(self.config.tool_delay_s)
        self._done.append(done)
        return done.show()

    def _make_step(self, turn: Turn, number: int) -> PoolAgentStep:
        """A step. Calls run one after another, so results are in their order; the model's mistakes have none."""
        done = iter(self._done)
        self._done = []
        message = turn.completion.message
        calls = [PoolToolCall(call.name, _read_arguments(call), call.arguments, call.id) for call in message.calls]
        results = [
            PoolToolResult(False, error=each.error, uniq_id=each.call.id) if each.error else next(done)
            for each in turn.results
        ]
        return PoolAgentStep(number, message.content, calls, results)

    def _describe(
        self, turns: Sequence[tuple[Turn, PoolAgentStep]], messages: list[dict[str, Any]], state: dict[str, Any] | None
    ) -> PoolAgentResult:
        steps = [step for _, step in turns]
        last = turns[-1][0] if turns else None
        nodes = (state or {}).get("nodes") or ()
        ids = nodes[-1] if nodes else None
        data = PoolSequence(ids.full_text, ids.tokens, ids.masked_tokens, ids.logprobs) if ids else None
        if steps:
            steps[-1].sequence_data = data
        reply = last.completion.message if last else None
        error = None
        if last is None or last.stop not in ANSWERED:
            spent = last is not None and last.stop is StopReason.MAX_TURNS
            error = (
                f"Reached maximum steps ({self.config.max_steps})" if spent else "The conversation is too long to go on"
            )
        return PoolAgentResult(
            success=error is None,
            final_response=(reply.content or (reply.reasoning.text if reply.reasoning else "")) if reply else "",
            steps=steps,
            total_tokens=sum(turn.completion.usage.tokens for turn, _ in turns),
            error=error,
            trajectory_data=data,
            messages=messages,
            managed_state=state,
        )


def _read_arguments(call: Call) -> dict[str, Any]:
    try:
        given = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}  # pyright: ignore[reportUnknownVariableType]
