"""The modules that files written for Hermes import, and what they find in them."""

import json
import random
from typing import Any

from ludus.chat_form import write_calls
from ludus.compat.atropos_env.call_journal import get_scope
from ludus.compat.atropos_env.file_modules import list_atropos_modules
from ludus.compat.atropos_env.provided_modules import Names, is_installed
from ludus.compat.hermes_env.agent_env import AgentEnv, build_pool_registry
from ludus.compat.hermes_env.agent_env_config import AgentEnvConfig
from ludus.compat.hermes_env.base import HermesAgentBaseEnv
from ludus.compat.hermes_env.config import HermesAgentEnvConfig, HermesBudget
from ludus.compat.hermes_env.context import HermesExecResult, HermesToolContext, get_slots
from ludus.compat.hermes_env.context_threads import ContextThreads
from ludus.compat.hermes_env.dotenv_standin import list_dotenv
from ludus.compat.hermes_env.loop import HermesAgentLoop, HermesAgentResult, HermesToolError
from ludus.compat.hermes_env.pool_agent import (
    PoolAgent,
    PoolAgentConfig,
    PoolAgentResult,
    PoolAgentStep,
    PoolSequence,
)
from ludus.compat.hermes_env.pool_backend import PoolBackend, PoolSlot, create_tool_backend
from ludus.compat.hermes_env.pool_tools import (
    PoolTool,
    PoolToolCall,
    PoolToolRegistry,
    PoolToolResult,
    PoolToolSchema,
)
from ludus.compat.hermes_env.tools import choose_tools, list_schemas
from ludus.errors import ConfigError
from ludus.parsers import Parser, list_names
from ludus.tools.distributions import PUBLISHED

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
            "_tool_executor": ContextThreads(1, "ludus-tool"),
            "resize_tool_pool": resize_tool_pool,
        },
        "environments.tool_context": {"ToolContext": HermesToolContext},
        "environments.tool_call_parsers": {"get_parser": get_parser, "list_parsers": list_names},
        "environments.patches": {"apply_patches": apply_patches},
        "toolset_distributions": {
            "DISTRIBUTIONS": list_distributions(),
            "get_distribution": list_distributions().get,
            "list_distributions": list_distributions,
            "validate_distribution": list_distributions().__contains__,
            "sample_toolsets_from_distribution": sample_toolsets_from_distribution,
        },
        "tools.terminal_tool": _TASKS,
        "tools.budget_config": {"BudgetConfig": HermesBudget},
        "model_tools": {
            "get_tool_definitions": get_tool_definitions,
            "handle_function_call": handle_function_call,
            **_TASKS,
        },
        **({} if is_installed("dotenv") else {"dotenv": list_dotenv()}),
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
    slots: dict[str, Any] = {"ExecutionResult": HermesExecResult, "Slot": PoolSlot}
    envs: dict[str, Any] = {"AgentEnv": AgentEnv, "AgentEnvConfig": AgentEnvConfig}
    return {
        "atropos": {**agent, **envs},
        "atropos.agent": agent,
        "atropos.agent.atropos_agent": agent,
        "atropos.backends": {"ToolBackend": PoolBackend, "create_tool_backend": create_tool_backend},
        "atropos.backends.base": {"ToolBackend": PoolBackend},
        "atropos.slots": slots,
        "atropos.slots.executor": slots,
        "atropos.slots.slot": slots,
        "atropos.tools": tools,
        "atropos.tools.base": tools,
        "atropos.tools.build_registry": tools,
        AGENT_ENVS: envs,
        f"{AGENT_ENVS}.agent_env": envs,
    }


def register_task_env_overrides(task_id: str, overrides: dict[str, Any]) -> None:
    """Set the image or the folder of one task."""
    get_slots().change(task_id, overrides)


def clear_task_env_overrides(task_id: str) -> None:
    get_slots().forget_change(task_id)


def cleanup_vm(task_id: str) -> None:
    """Give the slot of a task back."""
    slots = get_slots()
    slots.wait(slots.release(task_id))


def cleanup_all_environments() -> None:
    """Slots are given back when the run ends."""


def resize_tool_pool(size: int) -> None:
    """`tool_pool_size` says how many tool calls run at once."""


def get_tool_definitions(
    enabled_toolsets: list[str] | None = None, disabled_toolsets: list[str] | None = None, **_: Any
) -> list[dict[str, Any]]:
    """The schemas of the tools of some toolsets."""
    registry = get_slots().registry
    config = HermesAgentEnvConfig(enabled_toolsets=enabled_toolsets, disabled_toolsets=disabled_toolsets)
    return list_schemas(registry, choose_tools(config, registry, 0).toolsets)


def handle_function_call(function_name: str, function_args: dict[str, Any], task_id: str = "", **_: Any) -> str:
    """Call a tool in the slot of a task, and wait for it. The result is JSON: of the terminal `output` and `exit_code`,
    of any other tool `output` or `error`."""
    context = HermesToolContext(task_id or "default")
    if function_name != "terminal":
        return context.call_tool(function_name, function_args)
    seconds = function_args.get("timeout") or get_slots().command_seconds
    return json.dumps({"error": None, **context.terminal(str(function_args.get("command", "")), seconds)})


def apply_patches() -> None:
    """Nothing has to be patched: tools do not use the file's event loop."""


def list_distributions() -> dict[str, dict[str, Any]]:
    """The published distributions, in the form of Hermes."""
    return {name: {"description": name, "toolsets": dict(each.percent)} for name, each in PUBLISHED.items()}


def sample_toolsets_from_distribution(distribution_name: str) -> list[str]:
    """Sample toolsets, with the seed of the group. Raises ValueError for an unknown distribution."""
    if distribution_name not in PUBLISHED:
        raise ValueError(f"Unknown distribution: {distribution_name}")
    scope, percent = get_scope(), dict(PUBLISHED[distribution_name].percent)
    chance = random.Random(f"{scope.seed}/{scope.counts['toolsets']}")
    scope.counts["toolsets"] += 1
    return [name for name, most in percent.items() if chance.random() * 100 < most] or [
        max(percent, key=percent.__getitem__)
    ]


class HermesCallParser:
    """`environments.tool_call_parsers`: content and calls of a text."""

    def __init__(self, name: str) -> None:
        self._parser = Parser(name)

    def parse(self, text: str) -> tuple[str | None, list[Any] | None]:
        found = self._parser.parse(text)
        return found.content or None, write_calls(found.calls) or None


def get_parser(name: str) -> HermesCallParser:
    """Raises KeyError for an unknown name, as there: files catch it."""
    try:
        return HermesCallParser(name)
    except ConfigError as error:
        raise KeyError(str(error)) from error


_TASKS: dict[str, Any] = {
    "register_task_env_overrides": register_task_env_overrides,
    "clear_task_env_overrides": clear_task_env_overrides,
    "cleanup_vm": cleanup_vm,
    "cleanup_all_environments": cleanup_all_environments,
}
