"""What files written for Hermes import, for `python FILE.py process …`: change their imports to this module.

    from ludus.compat.hermes import AgentResult, APIServerConfig, HermesAgentBaseEnv, HermesAgentEnvConfig, ToolContext

`ludus process hermes:FILE.py` needs no change (compat/docs/hermes.md), nor does a file that is started with this
module: `python -m ludus.compat.hermes FILE.py process …`.
"""

import sys

from ludus.compat.atropos_env.env_config import APIServerConfig, EvalHandlingEnum
from ludus.compat.atropos_env.scored_data import Item, ScoredDataGroup, ScoredDataItem
from ludus.compat.hermes_env.base import HermesAgentBaseEnv
from ludus.compat.hermes_env.config import HermesAgentEnvConfig
from ludus.compat.hermes_env.context import HermesToolContext as ToolContext
from ludus.compat.hermes_env.loop import HermesAgentLoop
from ludus.compat.hermes_env.loop import HermesAgentResult as AgentResult
from ludus.compat.hermes_env.loop import HermesToolError as ToolError
from ludus.compat.hermes_env.modules import (
    cleanup_all_environments,
    cleanup_vm,
    clear_task_env_overrides,
    register_task_env_overrides,
)

__all__ = [
    "APIServerConfig",
    "AgentResult",
    "EvalHandlingEnum",
    "HermesAgentBaseEnv",
    "HermesAgentEnvConfig",
    "HermesAgentLoop",
    "Item",
    "ScoredDataGroup",
    "ScoredDataItem",
    "ToolContext",
    "ToolError",
    "cleanup_all_environments",
    "cleanup_vm",
    "clear_task_env_overrides",
    "register_task_env_overrides",
]

if __name__ == "__main__":
    from ludus.compat.hermes_env.file_program import run_file

    sys.exit(run_file(sys.argv[1:]))
