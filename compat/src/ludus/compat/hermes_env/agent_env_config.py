"""`AgentEnvConfig`: the fields of files that were written for `AgentEnv`, with those of its sandbox pool."""

from collections.abc import Mapping
from typing import Any

from ludus.compat.atropos_env.pydantic_import import Field
from ludus.compat.hermes_env.config import SandboxPoolConfig
from ludus.errors import ConfigError

IN_PROCESS = "inprocess"
"""The value of `tool_server_url` that asks for tools outside of the slot."""


class AgentEnvConfig(SandboxPoolConfig):
    """`atropos.envs.agent_env.AgentEnvConfig`: the same fields and defaults."""

    tool_pool_mode: str = Field(default="nomad", description="nomad, modal, or default: slots of this host.")
    sandbox_job_id: str = Field(default="atropos-sandbox-agent-env", description="The name of Nomad jobs.")
    require_stateful_sandbox: bool = Field(default=False, description="The same as require_sandbox.")
    tool_batch_window_ms: int = Field(default=20, description="Must be 20: calls are sent at once.")
    tool_max_batch_size: int = Field(default=200, ge=1, description="Tool calls at once.")
    modal_function_name: str = Field(default="sandbox_server", description="Must be left out.")
    modal_volume_name: str | None = Field(default=None, description="Must be left out.")
    modal_volume_mount_path: str = Field(default="/data", description="Must be left out.")
    agent_max_steps: int = Field(default=50, ge=1, description="Replies that a rollout may have.")
    agent_temperature: float = Field(default=0.7, description="The temperature of the agent.")
    agent_max_tokens: int | None = Field(default=None, description="The longest reply; None: the server decides.")
    agent_tool_delay_s: float = Field(default=0.0, ge=0, description="Seconds to wait after each tool call.")
    enabled_toolsets: list[str] = Field(default_factory=lambda: ["default"], description="Toolsets.")
    disabled_toolsets: list[str] = Field(default_factory=list[str], description="Toolsets that are left out.")
    tool_server_url: str | None = Field(default=None, description="inprocess: also tools outside of the slot.")
    tool_server_token: str | None = Field(default=None, description="Must be left out.")


_FIXED: Mapping[str, tuple[Any, str]] = {
    "tool_batch_window_ms": (20, "calls are sent at once, and not collected first"),
    "modal_function_name": ("sandbox_server", "slots are Modal sandboxes, which have no function"),
    "modal_volume_name": (None, "slots begin empty, and share no volume"),
    "modal_volume_mount_path": ("/data", "slots begin empty, and share no volume"),
    "tool_server_token": (None, "there is no tool server: its tools run here"),
}
"""Fields whose other values cannot be honoured: the value that can, and why."""


def refuse_agent_fields(settings: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for values of `AgentEnvConfig` that cannot be honoured. Other settings pass."""
    for name, (only, why) in _FIXED.items():
        if settings.get(name, only) != only:
            raise ConfigError(f"env.{name}: {why}; leave it out")
    url = settings.get("tool_server_url")
    if url not in (None, IN_PROCESS):
        raise ConfigError(
            f"env.tool_server_url is '{url}': tools of another server are not known here; use {IN_PROCESS}, which "
            "offers the tools of `ludus tools`, or leave it out"
        )
