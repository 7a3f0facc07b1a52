"""Builds the toolsets of a run from settings: search provider, MCP servers, tools of the user's own, distributions.

Heavy packages are imported inside functions.
"""

import dataclasses
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from ludus.config.references import TOOL
from ludus.config.secrets import find_proxy, read_secret
from ludus.config.tree import Config
from ludus.env import Env
from ludus.errors import ConfigError

if TYPE_CHECKING:
    from ludus.models import Model
    from ludus.tools.distributions import Distribution
    from ludus.tools.settings import ToolsSettings, WebSettings
    from ludus.tools.toolsets import Registry, Toolset


def build_distribution(config: Config, env: Env, registry: "Registry") -> "Distribution | None":
    """The distribution that the toolsets of each group are sampled from, if they are sampled. It is checked here, so
    that no sample fails later."""
    from ludus.tools.distributions import find_distribution, list_possible
    from ludus.tools.toolsets import choose_toolsets

    tools = config.tools
    if not tools.distribution:
        return None
    if tools.enabled is not None:
        raise ConfigError("tools.enabled and tools.distribution exclude each other: leave one of them out")
    found = find_distribution(tools.distribution, tools.distributions, registry)
    sampled = [toolset for toolset, percent in list_possible(found, registry, tools.disabled).items() if percent]
    registry.require_usable(choose_toolsets(sampled, tools.disabled, registry=registry), slot=env.sandbox is not None)
    return found


@asynccontextmanager
async def open_registry(tools: "ToolsSettings", vision: "Model | None" = None) -> "AsyncGenerator[Registry, None]":
    """Yield the toolsets of a run. Its search provider, its MCP servers and its browsers are connected until the block
    ends. `vision`: the model that is asked about pictures; it is closed then, too."""
    from ludus.tools.toolsets import BUILTIN as REGISTRY

    async with AsyncExitStack() as stack:
        extra: list[Toolset] = []
        if tools.web.provider:
            extra += await _open_web_toolsets(tools.web, stack)
        viewer = None
        if vision is not None:
            from ludus.tools.vision import Viewer, make_vision_toolset

            stack.push_async_callback(vision.close)
            viewer = Viewer(vision)
            extra.append(make_vision_toolset(viewer))
        if tools.browser.executable:
            from ludus.tools.browser import BrowserHost, check_playwright, make_browser_toolset

            check_playwright()
            host = BrowserHost(tools.browser)
            stack.push_async_callback(host.close)
            extra.append(make_browser_toolset(host, viewer))
        for name, server in tools.mcp.items():
            from ludus.tools.mcp import open_mcp_toolset

            extra.append(await stack.enter_async_context(open_mcp_toolset(name, server, read_secret)))
        extra += [_load_toolset(reference, name) for name, reference in tools.own.items()]
        registry = REGISTRY.extend(*extra)
        for setting, chosen in {"tools.enabled": tools.enabled, "tools.disabled": tools.disabled}.items():
            for name in chosen or ():
                if name not in registry and not TOOL.knows(name):
                    raise ConfigError(TOOL.describe_unknown(name, setting, registry.names, "toolset"))
        names = [*(tools.enabled or ()), *tools.disabled, *(name for d in tools.distributions.values() for name in d)]
        own = [_load_toolset(name) for name in dict.fromkeys(names) if name not in registry and TOOL.knows(name)]
        yield registry.extend(*own)


def _load_toolset(reference: str, name: str = "") -> "Toolset":
    """A toolset of the user's own. Unless it has another name, its name is the reference in the settings."""
    from ludus.sandbox import Sandbox
    from ludus.tools import BoundTool, Tool
    from ludus.tools.toolsets import Toolset

    setting = f"tools.own.{name}" if name else ""
    found = TOOL.load(reference, setting)
    name = name or reference
    if isinstance(found, Toolset):
        return dataclasses.replace(found, name=name)

    def make(box: Sandbox | None) -> "Sequence[Tool]":
        return [found.bind(box) if isinstance(found, BoundTool) else found]

    return Toolset(name, found.spec.description, make, needs_box=isinstance(found, BoundTool))


async def _open_web_toolsets(web: "WebSettings", stack: AsyncExitStack) -> "Sequence[Toolset]":
    from ludus.http_client import Client, get_shared_budget
    from ludus.tools.web import TIMEOUTS, make_provider, make_web_toolsets

    key = read_secret(web.api_key_var, "tools.web.api_key_var")
    proxy = find_proxy(web.base_url or "https://x", "")
    client = Client(timeouts=TIMEOUTS, proxy=proxy, budget=get_shared_budget)
    http = await stack.enter_async_context(client)
    return make_web_toolsets(make_provider(web, http, key=key))
