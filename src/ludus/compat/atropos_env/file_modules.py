"""The modules that files written for atroposlib import, and what they find in them."""

import json
import logging
import re
from typing import Any, cast

from ludus.compat.atropos_env import env_config, scored_data, server_view
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
        "atroposlib.utils.tool_call_parser": {"parse_tool_call": parse_tool_call},
        "atroposlib.utils.message_history_utils": {
            "truncate_thinking": truncate_thinking,
            "ensure_trajectory_token_limit": ensure_trajectory_token_limit,
        },
    }


def parse_tool_call(
    response: str, available_tools: Any = None, preferred_tags: Any = None, **_: Any
) -> tuple[str, dict[str, Any], bool]:
    """The name and arguments of the first call in a tag, and whether there was neither: (name, arguments, is_error)."""
    names = {_get_tool_name(tool) for tool in available_tools or ()}
    for tag in preferred_tags or ("tool_call", "function_call", "tool"):
        for text in re.findall(rf"<{tag}>\s*(.*?)\s*</{tag}>", response, re.DOTALL):
            try:
                found = json.loads(text)
            except ValueError:
                continue
            call = cast(dict[str, Any], found) if isinstance(found, dict) else {}
            name = call.get("name")
            if isinstance(name, str) and (not names or name in names):
                return name, call.get("arguments") or {}, False
    return "-ERROR-", {}, True


def _get_tool_name(tool: Any) -> str:
    return str((tool.get("function") or tool).get("name")) if isinstance(tool, dict) else str(tool)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]


def truncate_thinking(response_text: str, tokenizer: Any, max_think_tokens: int) -> str:
    """The reply with a think block of at most this many tokens: the last paragraphs of it that fit."""
    found = re.search(r"<think>(.*?)</think>", response_text, re.DOTALL)
    if found is None:
        return response_text
    kept: list[str] = []
    size = 0
    for part in reversed(re.split(r"\n\s*\n", found[1].strip())):
        size += len(tokenizer.encode(part, add_special_tokens=False))
        if size > max_think_tokens:
            break
        kept.insert(0, part)
    inner = "\n\n".join(kept)
    return f"{response_text[: found.start()]}<think>\n{inner}\n</think>{response_text[found.end() :]}"


def ensure_trajectory_token_limit(
    trajectory: list[Any], tokenizer: Any, max_trajectory_tokens: int, **_: Any
) -> list[Any]:
    """The steps of a trajectory whose rows all fit. A step is a group with `messages`; oldest turns after the first
    two messages are left out of its conversations until they fit, and a step that never fits is dropped."""
    return [step for step in (_fit_step(each, tokenizer, max_trajectory_tokens) for each in trajectory) if step]


def _fit_step(step: Any, tokenizer: Any, most: int) -> Any:
    rows: list[list[Any]] = step.get("messages") or []
    if all(len(tokens) <= most for tokens in step["tokens"]):
        return step
    made: list[Any] = []
    for messages in rows:
        kept = list(messages)
        row = build_row(tokenizer, kept)
        while len(row["tokens"]) > most and len(kept) > 4:
            del kept[2:4]
            row = build_row(tokenizer, kept)
        if len(row["tokens"]) > most:
            return None
        made.append((kept, row))
    if not made:
        return None
    columns = {name: [row[name] for _, row in made] for name in ("tokens", "masks")}
    return {**step, **columns, "messages": [kept for kept, _ in made]}
