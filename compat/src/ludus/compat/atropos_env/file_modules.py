"""The modules that files written for atroposlib import, and what they find in them."""

import logging
from collections.abc import Callable
from typing import Any

from ludus.compat.atropos_env import env_config, file_helpers, scored_data, server_view
from ludus.compat.atropos_env.base_env import BaseEnv
from ludus.compat.atropos_env.provided_modules import Names
from ludus.compat.atropos_env.tokenizer_view import build_row

_SERVERS: dict[str, Any] = {
    "APIServerConfig": env_config.APIServerConfig,
    "OpenaiConfig": env_config.APIServerConfig,
    "ServerBaseline": env_config.ServerBaseline,
    "ServerManagerConfig": env_config.ServerManagerConfig,
    "APIServer": server_view.FileServer,
    "OpenAIServer": server_view.FileServer,
    "ServerManager": server_view.FileServers,
    "ManagedServer": server_view.ManagedView,
    "ManagedServerAdapter": server_view.ManagedView,
    "SequenceNode": server_view.SequenceNode,
}
_TYPES: dict[str, Any] = {
    "Item": scored_data.Item,
    "number": scored_data.number,
    "GameHistory": scored_data.GameHistory,
    "Message": scored_data.AtroposMessage,
    "ScoredDataGroup": scored_data.ScoredDataGroup,
    "ScoredDataItem": scored_data.ScoredDataItem,
}


def _list(*functions: Callable[..., Any]) -> dict[str, Any]:
    return {function.__name__: function for function in functions}


def list_atropos_modules() -> Names:
    """What each module defines."""
    servers = "atroposlib.envs.server_handling"
    return {
        "atroposlib.envs.base": {
            "BaseEnv": BaseEnv,
            "BaseEnvConfig": env_config.BaseEnvConfig,
            "EvalHandlingEnum": env_config.EvalHandlingEnum,
            "logger": logging.getLogger("atroposlib"),
            **_SERVERS,
            **_TYPES,
        },
        **{
            f"{servers}.{name}": _SERVERS
            for name in ("server_manager", "server_baseline", "openai_server", "managed_server", "vllm_server")
        },
        "atroposlib.type_definitions": _TYPES,
        "atroposlib.utils.tokenize_for_trainer": {"tokenize_for_trainer": build_row},
        "atroposlib.utils.tool_call_parser": _list(file_helpers.extract_tool_call, file_helpers.parse_tool_call),
        "atroposlib.utils.message_history_utils": _list(
            file_helpers.strip_thinking,
            file_helpers.truncate_thinking,
            file_helpers.ensure_trajectory_token_limit,
        ),
        "atroposlib.utils.best_of_n_selection": _list(file_helpers.select_best_index),
        "atroposlib.utils.io": _list(file_helpers.parse_http_response),
    }
