"""The modules that files written for Hermes import, and what they find in them."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ludus.compat.atropos_env.file_modules import list_atropos_modules
from ludus.compat.atropos_env.provided_modules import Names
from ludus.compat.hermes_env.agent_env import AgentEnv, build_pool_registry
from ludus.compat.hermes_env.agent_env_config import AgentEnvConfig
from ludus.compat.hermes_env.hermes_base import HermesAgentBaseEnv
from ludus.compat.hermes_env.hermes_config import HermesAgentEnvConfig, HermesBudget
from ludus.compat.hermes_env.hermes_context import HermesToolContext, get_desk
from ludus.compat.hermes_env.hermes_loop import HermesAgentLoop, HermesAgentResult, HermesToolError
from ludus.compat.hermes_env.hermes_tools import choose_tools, list_schemas
from ludus.compat.hermes_env.pool_agent import (
    PoolAgent,
    PoolAgentConfig,
    PoolAgentResult,
    PoolAgentStep,
    PoolSequence,
)
from ludus.compat.hermes_env.pool_tools import (
    PoolTool,
    PoolToolCall,
    PoolToolRegistry,
    PoolToolResult,
    PoolToolSchema,
)
from ludus.parsers import Parser

AGENT_ENVS = "atropos.envs"
"""The package of files for `AgentEnv`: their imports are relative to it."""


def list_hermes_modules() -> Names:
    """What each module defines, with those of atroposlib."""
    return {
        **list_atropos_modules(),
        **_list_agent_modules(),
        "environments.hermes_base_env": {
            "HermesAgentBaseEnv": HermesAgentBaseEnv,
            "HermesAgentEnvConfig": HermesAgentEnvConfig,
        },
        "environments.agent_loop": {
            "AgentResult": HermesAgentResult,
            "HermesAgentLoop": HermesAgentLoop,
            "ToolError": HermesToolError,
            "_tool_executor": ThreadPoolExecutor(1),
            "resize_tool_pool": resize_tool_pool,
        },
        "environments.tool_context": {"ToolContext": HermesToolContext},
        "environments.tool_call_parsers": {"get_parser": get_parser},
        "tools.terminal_tool": _TASKS,
        "tools.budget_config": {"BudgetConfig": HermesBudget},
        "model_tools": {"get_tool_definitions": get_tool_definitions, **_TASKS},
    }


def _list_agent_modules() -> Names:
    """The modules of files that were written for `AgentEnv`."""
    agent: dict[str, Any] = {
        "AgentConfig": PoolAgentConfig,
        "AgentResult": PoolAgentResult,
        "AgentStep": PoolAgentStep,
        "AtroposAgent": PoolAgent,
        "SequenceData": PoolSequence,
    }
    tools: dict[str, Any] = {
        "Tool": PoolTool,
        "ToolCall": PoolToolCall,
        "ToolRegistry": PoolToolRegistry,
        "ToolResult": PoolToolResult,
        "ToolSchema": PoolToolSchema,
        "build_tool_registry": build_pool_registry,
    }
    envs: dict[str, Any] = {"AgentEnv": AgentEnv, "AgentEnvConfig": AgentEnvConfig}
    return {
        "atropos": {**agent, **envs},
        "atropos.agent": agent,
        "atropos.agent.atropos_agent": agent,
        "atropos.tools": tools,
        "atropos.tools.base": tools,
        "atropos.tools.build_registry": tools,
        AGENT_ENVS: envs,
        f"{AGENT_ENVS}.agent_env": envs,
    }


def register_task_env_overrides(task_id: str, overrides: dict[str, Any]) -> None:
    """Set the image or the folder of one task."""
    get_desk().change(task_id, overrides)


def clear_task_env_overrides(task_id: str) -> None:
    get_desk().forget_change(task_id)


def cleanup_vm(task_id: str) -> None:
    """Give the slot of a task back."""
    desk = get_desk()
    desk.wait(desk.release(task_id))


def cleanup_all_environments() -> None:
    """Slots are given back when the run ends."""


def resize_tool_pool(size: int) -> None:
    """`tool_pool_size` says how many tool calls run at once."""


def get_tool_definitions(
    enabled_toolsets: list[str] | None = None, disabled_toolsets: list[str] | None = None, **_: Any
) -> list[dict[str, Any]]:
    """The schemas of the tools of some toolsets."""
    registry = get_desk().registry
    config = HermesAgentEnvConfig(enabled_toolsets=enabled_toolsets, disabled_toolsets=disabled_toolsets)
    return list_schemas(registry, choose_tools(config, registry, 0))


class HermesCallParser:
    """`environments.tool_call_parsers`: content and calls of a text."""

    def __init__(self, name: str) -> None:
        self._parser = Parser(name)

    def parse(self, text: str) -> tuple[str | None, list[Any] | None]:
        found = self._parser.parse(text)
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in found.calls
        ]
        return found.content or None, calls or None


def get_parser(name: str) -> HermesCallParser:
    return HermesCallParser(name)


_TASKS: dict[str, Any] = {
    "register_task_env_overrides": register_task_env_overrides,
    "clear_task_env_overrides": clear_task_env_overrides,
    "cleanup_vm": cleanup_vm,
    "cleanup_all_environments": cleanup_all_environments,
}
