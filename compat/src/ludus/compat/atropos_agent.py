"""What files written for `AgentEnv` import, for `python FILE.py process …`: change their imports to this module.

    from ludus.compat.atropos_agent import AgentConfig, AgentEnv, AgentEnvConfig, AgentResult, APIServerConfig, ToolCall

`ludus process hermes:FILE.py` needs no change (compat/docs/hermes.md).
"""

from ludus.compat.atropos_env.env_config import APIServerConfig, EvalHandlingEnum
from ludus.compat.atropos_env.scored_data import Item, ScoredDataGroup, ScoredDataItem
from ludus.compat.hermes_env.agent_env import AgentEnv
from ludus.compat.hermes_env.agent_env import build_pool_registry as build_tool_registry
from ludus.compat.hermes_env.agent_env_config import AgentEnvConfig
from ludus.compat.hermes_env.pool_agent import PoolAgent as AtroposAgent
from ludus.compat.hermes_env.pool_agent import PoolAgentConfig as AgentConfig
from ludus.compat.hermes_env.pool_agent import PoolAgentResult as AgentResult
from ludus.compat.hermes_env.pool_agent import PoolAgentStep as AgentStep
from ludus.compat.hermes_env.pool_agent import PoolSequence as SequenceData
from ludus.compat.hermes_env.pool_tools import PoolTool as Tool
from ludus.compat.hermes_env.pool_tools import PoolToolCall as ToolCall
from ludus.compat.hermes_env.pool_tools import PoolToolRegistry as ToolRegistry
from ludus.compat.hermes_env.pool_tools import PoolToolResult as ToolResult
from ludus.compat.hermes_env.pool_tools import PoolToolSchema as ToolSchema

__all__ = [
    "APIServerConfig",
    "AgentConfig",
    "AgentEnv",
    "AgentEnvConfig",
    "AgentResult",
    "AgentStep",
    "AtroposAgent",
    "EvalHandlingEnum",
    "Item",
    "ScoredDataGroup",
    "ScoredDataItem",
    "SequenceData",
    "Tool",
    "ToolCall",
    "ToolRegistry",
    "ToolResult",
    "ToolSchema",
    "build_tool_registry",
]
