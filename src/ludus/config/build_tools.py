"""Builds the toolsets of a run from settings: search provider, MCP servers, distributions. Heavy imports are inside."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.config.secrets import proxy_for, read_secret
from ludus.config.tree import (
    Config,
    McpConfig,
    ToolsConfig,
    WebConfig,
)
from ludus.env import Env
from ludus.errors import ConfigError

if TYPE_CHECKING:
    from ludus.tools.distributions import Distribution
    from ludus.tools.mcp import McpSettings
    from ludus.tools.toolsets import Registry, Toolset


def build_distribution(config: Config, env: Env, registry: "Registry") -> "Distribution | None":
    """What the toolsets of each group are drawn from; None if they are not drawn. No draw can fail later on."""
    from ludus.tools.distributions import find, possible
    from ludus.tools.toolsets import choose

    tools = config.tools
    if not tools.distribution:
        return None
    if tools.enabled is not None:
        raise ConfigError("tools.enabled and tools.distribution exclude each other: leave one of them out")
    found = find(tools.distribution, tools.distributions, registry)
    drawn = [toolset for toolset, percent in possible(found, registry, tools.disabled).items() if percent]
    registry.usable(choose(drawn, tools.disabled, registry=registry), slot=env.sandbox is not None)
    return found


@asynccontextmanager
async def open_registry(tools: ToolsConfig) -> "AsyncGenerator[Registry, None]":
    """The toolsets of a run, with its search provider and its MCP servers connected."""
    from ludus.tools.toolsets import BUILTIN as REGISTRY

    async with AsyncExitStack() as stack:
        extra: list[Toolset] = []
        if tools.web.provider:
            extra += await _web_toolsets(tools.web, stack)
        for name, server in tools.mcp.items():
            from ludus.tools.mcp import mcp_toolset

            extra.append(await stack.enter_async_context(mcp_toolset(name, _mcp_settings(name, server))))
        yield REGISTRY.extended(*extra)


async def _web_toolsets(web: WebConfig, stack: AsyncExitStack) -> "Sequence[Toolset]":
    from ludus.http_client import Client
    from ludus.tools.web import TIMEOUTS, make_provider, web_toolsets

    key = read_secret(web.api_key_var, "tools.web.api_key_var")
    http = await stack.enter_async_context(Client(timeouts=TIMEOUTS, proxy=proxy_for(web.base_url or "https://x", "")))
    provider = make_provider(web.provider, http, key=key, base_url=web.base_url, allow_private=web.allow_private)
    return web_toolsets(provider)


def _mcp_settings(name: str, server: McpConfig) -> "McpSettings":
    from ludus.tools.mcp import McpSettings

    where = f"tools.mcp.{name}"
    if bool(server.command) == bool(server.url):
        raise ConfigError(f"{where}: give either `command` or `url`")
    if len(server.command) == 1 and " " in server.command[0] and not Path(server.command[0]).exists():
        advice = f"give the program and its arguments as a list: [{', '.join(server.command[0].split())}]"
        raise ConfigError(f"{where}.command: there is no program '{server.command[0]}'; {advice}")
    env = {key: read_secret(var, f"{where}.env_vars.{key}") for key, var in server.env_vars.items()}
    headers = {key: read_secret(var, f"{where}.header_vars.{key}") for key, var in server.header_vars.items()}
    return McpSettings(
        command=server.command,
        env={**server.env, **env},
        cwd=server.cwd,
        url=server.url,
        headers={**server.headers, **headers},
        only=server.only,
        prefix=server.prefix,
        parallel=server.parallel,
        start_seconds=server.start_seconds,
        call_seconds=server.call_seconds,
    )
