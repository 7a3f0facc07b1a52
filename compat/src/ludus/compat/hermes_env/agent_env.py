"""`AgentEnv`: the base class of files that were written for the sandbox branch of Hermes.

A file says what is asked (`build_task`), how the agent is configured (`build_agent_config`), and judges with
`verify_and_score_trajectory` in the rollout's slot or with `score_trajectory`, which sees the last reply. An agent that
used up its steps is not judged: its reward is 0. `slot_rollouts` has the life of a rollout.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar, cast
from uuid import uuid4

from ludus.compat.atropos_env.call_journal import get_scope
from ludus.compat.atropos_env.file_host import await_if_needed
from ludus.compat.atropos_env.scored_data import Item
from ludus.compat.hermes_env.agent_env_config import AgentEnvConfig
from ludus.compat.hermes_env.context import get_slots
from ludus.compat.hermes_env.pool_agent import PoolAgent, PoolAgentConfig, PoolAgentResult
from ludus.compat.hermes_env.pool_tools import (
    PoolToolCall,
    PoolToolRegistry,
    PoolToolResult,
    SlotCalls,
    build_pool_tools,
)
from ludus.compat.hermes_env.slot_rollouts import Judged, Scored, SlotRolloutEnv
from ludus.compat.hermes_env.task_slots import TaskSlots

ConfigT = TypeVar("ConfigT")


class AgentEnv(SlotRolloutEnv, Generic[ConfigT]):
    """`atropos.envs.agent_env.AgentEnv`."""

    env_config_cls: ClassVar[Any] = AgentEnvConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tools: PoolToolRegistry | None = None

    # ---- what files define ----------------------------------------------------------------------------------------

    async def setup_agent_env(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not define setup_agent_env()")

    def build_task(self, item: Item) -> str:
        raise NotImplementedError(f"{type(self).__name__} does not define build_task(item)")

    def build_agent_config(self, item: Item) -> PoolAgentConfig:
        return _make_agent_config(self.config)

    def build_tools(self) -> PoolToolRegistry:
        """The tools of the agent. A file may add its own."""
        return build_pool_registry(
            enabled_toolsets=self.config.enabled_toolsets,
            disabled_toolsets=self.config.disabled_toolsets,
            tool_server_url=self.config.tool_server_url,
        )

    async def score_trajectory(self, item: Item, final_response: str) -> float:
        raise NotImplementedError(f"{type(self).__name__} does not define score_trajectory(item, final_response)")

    async def verify_and_score_trajectory(
        self,
        item: Item,
        final_response: str,
        *,
        trajectory_id: str,
        exec_tool: Any,
        agent_result: Any = None,
        workspace_meta: Any = None,
    ) -> tuple[float, dict[str, Any]]:
        """Judge in the slot. By default: `score_trajectory`."""
        return await await_if_needed(self.score_trajectory(item, final_response)), {}

    # ---- what files use -------------------------------------------------------------------------------------------

    @property
    def tools(self) -> PoolToolRegistry:
        if self._tools is None:
            self._tools = self.build_tools()
        return self._tools

    @tools.setter
    def tools(self, value: PoolToolRegistry) -> None:
        self._tools = value

    async def setup(self) -> None:
        if self.services.slots is not None:  # tools that cannot be used are refused before the first rollout
            _ = self.tools
        await await_if_needed(self.setup_agent_env())

    async def run_agent(self, task: str, *, trajectory_id: str | None = None) -> tuple[str, dict[str, Any]]:
        """Let an agent act on a text, in a slot of its own, and return its last reply."""
        slots, task_id = get_slots(), trajectory_id or str(uuid4())
        try:
            done = await self._make_agent(slots, task_id, _make_agent_config(self.config)).run(task)
        finally:
            await slots.call(slots.release(task_id))
        return done.final_response, {"success": done.success, "error": done.error, "tool_calls": done.total_tool_calls}

    # ---- rollouts -------------------------------------------------------------------------------------------------

    def format_prompt(self, item: Item) -> str:
        return str(self.build_task(item))

    def _make_messages(self, item: Item) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self.format_prompt(item)}]

    def _make_exec(self, slots: TaskSlots, task_id: str) -> Callable[..., Any]:
        calls = SlotCalls(slots, task_id, self.tools)

        async def run(call: Any, args: dict[str, Any] | None = None, **more: Any) -> PoolToolResult:
            """`await exec_tool(ToolCall(name=…, arguments={…}))`; also `exec_tool(name, arguments, timeout=…)`."""
            return await calls.execute(PoolToolCall(call, {**(args or {}), **more}) if isinstance(call, str) else call)

        return run

    def _make_agent(self, slots: TaskSlots, task_id: str, config: PoolAgentConfig) -> PoolAgent:
        calls = SlotCalls(slots, task_id, self.tools, config.working_dir or "")
        scope = get_scope()
        scope.offer = scope.offer._replace(toolsets=tuple(self.config.enabled_toolsets))

        async def spill(name: str, data: bytes) -> str:
            return await slots.call(slots.spill(task_id, name, data))

        return PoolAgent(self.server, self.tools, config, execute_tool=calls.execute, spill=spill)

    async def _run_rollout(self, item: Item) -> Scored:
        task_id, messages = str(uuid4()), self._make_messages(item)

        async def act() -> PoolAgentResult:
            return await self._make_agent(get_slots(), task_id, self.build_agent_config(item)).act(messages)

        return await self._collect_in_slot(item, task_id, messages, act)

    def _make_broken(self, messages: list[dict[str, Any]]) -> PoolAgentResult:
        return PoolAgentResult(False, "", error="the agent broke its slot", messages=messages)

    def _has_acted(self, result: PoolAgentResult) -> bool:
        return result.success

    async def _call_judge(self, slots: TaskSlots, item: Item, result: Any, task_id: str, meta: Any) -> Judged:
        hook = self.verify_and_score_trajectory
        given: dict[str, Any] = {
            "trajectory_id": task_id,
            "exec_tool": self._make_exec(slots, task_id),
            "agent_result": result,
            "workspace_meta": meta if isinstance(meta, dict) else {},
        }
        judged: tuple[Any, Any] = await hook(item, result.final_response, **keep_accepted(hook, given))
        reward, said = judged
        return float(reward), cast(dict[str, Any], said) if isinstance(said, dict) else {}

    def _keep_words(self, messages: list[dict[str, Any]], said: Mapping[str, Any]) -> None:
        """Add the messages that the file made while it judged (`verification_messages`)."""
        for message in said.get("verification_messages") or ():
            if isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content")):  # pyright: ignore[reportUnknownMemberType]
                messages.append({"role": message["role"], "content": message["content"]})


def _make_agent_config(config: Any) -> PoolAgentConfig:
    return PoolAgentConfig(
        config.agent_temperature,
        config.agent_max_tokens,
        config.agent_max_steps,
        tool_delay_s=config.agent_tool_delay_s,
    )


def keep_accepted(hook: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a hook takes: files of earlier versions take fewer."""
    known = inspect.signature(hook).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values()):
        return dict(given)
    return {name: value for name, value in given.items() if name in known}


def build_pool_registry(
    *,
    enabled_toolsets: list[str] | None = None,
    disabled_toolsets: list[str] | None = None,
    tool_server_url: str | None = None,
) -> PoolToolRegistry:
    """`atropos.tools.build_tool_registry`."""
    registry = get_slots().registry
    return build_pool_tools(enabled_toolsets or ["default"], disabled_toolsets or (), tool_server_url, registry)
