"""From settings to live things: environment, model, tools, policy, sandboxes. Heavy imports are inside."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from ludus.agent import Policy
from ludus.config.find import load_env_class, load_object
from ludus.config.reading import converted, shown
from ludus.config.recipes import (
    AnthropicConfig,
    AzureConfig,
    Config,
    EmbeddedConfig,
    McpConfig,
    ModelConfig,
    OpenAIConfig,
    ScriptedConfig,
    ServerConfig,
    ToolsConfig,
    WebConfig,
)
from ludus.config.secrets import proxy_for, read_secret, weights_folder
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.models import Model
from ludus.models.server import ServerSettings
from ludus.sandbox import SandboxSpec
from ludus.skill import Skill

if TYPE_CHECKING:
    from ludus.models.ledger import Ledger, Totals
    from ludus.sandbox.pool import Pool
    from ludus.tools.distributions import Distribution
    from ludus.tools.mcp import McpSettings
    from ludus.tools.toolsets import Registry, Toolset


def build_env(config: Config) -> Env:
    """The environment with its options, and with the slot that the `sandbox` section asks for."""
    if not config.env.name:
        raise ConfigError("env.name: which environment? `ludus envs` lists those that come with Ludus")
    kind = load_env_class(config.env.name)
    changes = {
        f.name: value
        for f in msgspec.structs.fields(SandboxSpec)
        if (value := getattr(config.sandbox, f.name, None)) is not None
    }
    if kind.sandbox is not None and changes:
        spec = msgspec.structs.replace(kind.sandbox, **changes)
        names = {"sandbox": spec, "__module__": kind.__module__, "__doc__": kind.__doc__}
        kind = msgspec.defstruct(kind.__name__, [], bases=(kind,), namespace=names, frozen=True)
    return converted(config.options, kind, "env")


@asynccontextmanager
async def open_sandboxes(config: Config, env: Env) -> "AsyncGenerator[Pool | None, None]":
    """The pool of slots; None for an environment that needs none."""
    if env.sandbox is None:
        yield None
        return
    from ludus.sandbox.pool import open_pool

    sandbox = config.sandbox
    pool = open_pool(
        sandbox.backend,
        require_sandbox=sandbox.require_sandbox,
        max_slots=sandbox.max_slots or config.run.concurrency + sandbox.warm,
        warm=sandbox.warm,
    )
    async with pool:
        yield pool


def build_ledger(config: Config, spent: "Mapping[str, Totals] | None" = None) -> "Ledger":
    from ludus.models.ledger import Budget, Ledger

    return Ledger(Budget(**msgspec.structs.asdict(config.budget)), spent)


def build_model(
    model: ModelConfig, ledger: "Ledger", role: str = "agent", tell: Callable[[str], None] = lambda _: None
) -> Model:
    """The model, with its calls booked under `role`. Nothing is sent yet. `tell` hears of what takes long."""
    from ludus.models.ledger import Metered

    return Metered(_bare_model(model, tell), ledger, role)


def _bare_model(model: ModelConfig, tell: Callable[[str], None]) -> Model:
    match model:
        case ScriptedConfig():
            return _scripted(model)
        case EmbeddedConfig():
            from ludus.models.embedded import EmbeddedModel, EmbeddedSettings

            given = Path(model.weights).expanduser() if model.weights else None
            return EmbeddedModel(EmbeddedSettings(cache=weights_folder(), weights=given, threads=model.threads), tell)
        case AnthropicConfig():
            from ludus.models.anthropic import AnthropicModel, AnthropicSettings

            servers = [
                AnthropicSettings(**msgspec.structs.asdict(server), version=model.version, cache=model.cache)
                for server in server_settings(model)
            ]
            return AnthropicModel(*servers, retry=model.retry)
        case OpenAIConfig() | AzureConfig():
            from ludus.models.openai import ChatModel, ChatSettings

            dialect: dict[str, Any] = {"max_tokens_field": model.max_tokens_field}
            if isinstance(model, AzureConfig):
                dialect |= {"api": "azure", "api_version": model.api_version}
            servers = [ChatSettings(**msgspec.structs.asdict(s), **dialect) for s in server_settings(model)]
            return ChatModel(*servers, retry=model.retry)


def server_settings(model: ServerConfig) -> list[ServerSettings]:
    """What each of the servers is told, without what only one dialect knows. Reads the key."""
    addresses = [address for address in (model.base_url, *model.servers) if address]
    if not addresses:
        raise ConfigError(
            "model.base_url: which server? For example --model.base_url http://127.0.0.1:8000/v1 --model.name NAME, "
            "or try a small model in this process: --model.type embedded"
        )
    for address in addresses:
        if urlsplit(address).scheme not in {"http", "https"}:
            raise ConfigError(f"model.base_url: '{address}' should start with http:// or https://")
    if not model.name:
        raise ConfigError("model.name: which model? Give its name as the server knows it")
    secret = {name: read_secret(var, f"model.header_vars.{name}") for name, var in model.header_vars.items()}
    shared = ServerSettings(
        base_url="",
        model=model.name,
        api_key=read_secret(model.api_key_var, "model.api_key_var"),
        api_key_var=model.api_key_var,
        headers={**model.headers, **secret},
        omit=model.omit,
        timeouts=model.timeouts,
        concurrency=model.concurrency,
        requests_per_minute=model.requests_per_minute,
        tokens_per_minute=model.tokens_per_minute,
        price=model.price,
    )
    return [
        msgspec.structs.replace(shared, base_url=address, proxy=proxy_for(address, model.proxy))
        for address in addresses
    ]


def _scripted(model: ScriptedConfig) -> Model:
    from ludus.models.scripted import ScriptedModel

    if not model.script:
        raise ConfigError("model.script: which function? Give module:function or file.py:function")
    script = load_object(model.script, "model.script")
    if not callable(script) and not isinstance(script, list | tuple):
        raise ConfigError(
            f"model.script: '{model.script}' is {shown(script)}, neither a function nor a list of replies"
        )
    return ScriptedModel(script, model.name)  # pyright: ignore[reportArgumentType]  # the user's own


def build_policy(config: Config, env: Env, model: Model, registry: "Registry") -> Policy:
    """Who acts. Toolsets stay None, for the environment to decide, unless the settings say something about them."""
    from ludus.tools.toolsets import choose

    tools = config.tools
    chosen = None
    if tools.enabled is not None or tools.disabled or tools.mcp:
        chosen = choose(tools.enabled, tools.disabled, (*env.toolsets, *tools.mcp), registry)
    return Policy(
        model=model,
        skill=_skill(config.agent.skill),
        sampling=config.sampling,
        limits=config.limits,
        system=config.agent.system,
        toolsets=chosen,
        registry=registry,
    )


def _skill(path: str) -> Skill | None:
    if not path:
        return None
    try:
        return Skill(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"agent.skill: {path} cannot be read: {error}") from None


def build_distribution(config: Config, registry: "Registry") -> "Distribution | None":
    from ludus.tools.distributions import find

    tools = config.tools
    if not tools.distribution:
        return None
    if tools.enabled is not None:
        raise ConfigError("tools.enabled and tools.distribution exclude each other: leave one of them out")
    return find(tools.distribution, tools.distributions, registry)


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
    from ludus.models.http import Client
    from ludus.tools.web import TIMEOUTS, make_provider, web_toolsets

    key = read_secret(web.api_key_var, "tools.web.api_key_var")
    http = await stack.enter_async_context(Client(timeouts=TIMEOUTS, proxy=proxy_for(web.base_url or "https://x", "")))
    provider = make_provider(web.provider, http, key=key, base_url=web.base_url, allow_private=web.allow_private)
    return web_toolsets(provider)


def _mcp_settings(name: str, server: McpConfig) -> "McpSettings":
    from ludus.tools.mcp import McpSettings

    where = f"tools.mcp.{name}"
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
