"""From settings to live things: environment, model, tools, policy, sandboxes. Heavy imports are inside."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from ludus.agent import Limits, Policy
from ludus.config import token_mode as tokens
from ludus.config.reading import accepted_types, converted, shown
from ludus.config.recipes import (
    AgentConfig,
    AnthropicConfig,
    AzureConfig,
    Config,
    EmbeddedConfig,
    McpConfig,
    ModelConfig,
    OpenAIConfig,
    SameConfig,
    SandboxConfig,
    ScriptedConfig,
    ServerConfig,
    ToolsConfig,
    TrainConfig,
    WebConfig,
)
from ludus.config.references import load_env_class, load_object
from ludus.config.secrets import agents_folder, proxy_for, read_secret, weights_folder
from ludus.env import Env
from ludus.errors import ConfigError, SandboxError
from ludus.harness import Harness
from ludus.models import Model
from ludus.models.server import ServerSettings
from ludus.sandbox import SandboxSpec
from ludus.skill import Skill, from_file

if TYPE_CHECKING:
    from ludus.models.ledger import Ledger, Totals
    from ludus.reflact.proposers import Proposer
    from ludus.reflact.train_settings import TrainSettings
    from ludus.sandbox.pool import Pool
    from ludus.sandbox.settings import Profile
    from ludus.tools.distributions import Distribution
    from ludus.tools.mcp import McpSettings
    from ludus.tools.toolsets import Registry, Toolset


def build_env(config: Config) -> Env:
    """The environment with its options, and with the slot that the `sandbox` section asks for."""
    if not config.env.name:
        raise ConfigError("env.name: which environment? `ludus envs` lists those that come with Ludus")
    kind = load_env_class(config.env.name)
    if kind.sandbox is not None and (spec := changed_spec(kind.sandbox, config.sandbox)) != kind.sandbox:
        names = {"sandbox": spec, "__module__": kind.__module__, "__doc__": kind.__doc__}
        kind = msgspec.defstruct(kind.__name__, [], bases=(kind,), namespace=names, frozen=True)
    return converted(config.options, kind, "env")


def changed_spec(spec: SandboxSpec, sandbox: SandboxConfig) -> SandboxSpec:
    """A slot as the `sandbox` section wants it."""
    values = {f.name: getattr(sandbox, f.name, None) for f in msgspec.structs.fields(SandboxSpec)}
    return msgspec.structs.replace(spec, **{name: value for name, value in values.items() if value is not None})


@asynccontextmanager
async def open_sandboxes(config: Config, env: Env) -> "AsyncGenerator[Pool | None, None]":
    """The pool of slots; None if neither the environment nor the agent needs one."""
    if env.sandbox is None and not config.agent.harness:
        yield None
        return
    async with open_slots(config, env.sandbox or SandboxSpec()) as pool:
        yield pool


@asynccontextmanager
async def open_slots(config: Config, spec: SandboxSpec) -> "AsyncGenerator[Pool, None]":
    """The pool of slots, after a check that a slot of this spec can be had. Raises ConfigError if none can."""
    from ludus.sandbox.profiles import PoolSettings, open_profiles
    from ludus.sandbox.settings import RemoteSettings, backend_of

    sandbox = config.sandbox
    settings = PoolSettings(
        max_slots=sandbox.max_slots or config.run.concurrency + sandbox.warm,
        warm=sandbox.warm,
        acquire_seconds=sandbox.acquire_seconds,
        idle_seconds=sandbox.idle_seconds,
        lifetime_seconds=sandbox.lifetime_seconds,
        starts_per_second=sandbox.starts_per_second,
    )
    profiles = sandbox_profiles(sandbox)
    async with open_profiles(profiles, settings, first=spec.profile, secret=read_secret) as pool:
        if isinstance(profiles[spec.profile], RemoteSettings):  # those of this host have been tried by now
            try:
                async with pool.lease(spec):
                    pass
            except SandboxError as error:
                backend = backend_of(profiles[spec.profile])
                raise ConfigError(f"sandbox.backend '{backend}' gives no slot: {error}") from error
        yield pool


def sandbox_profiles(sandbox: SandboxConfig) -> "dict[str, Profile]":
    """All kinds of slots by name; the one of `sandbox.backend` has the empty name.

    Raises:
        ConfigError: a backend lacks what it must be told, or isolates nothing although `require_sandbox` is set.
    """
    from ludus.sandbox.settings import BwrapSettings, LocalSettings, isolates

    local = {"bwrap": BwrapSettings(), "local": LocalSettings()}
    chosen = local.get(sandbox.backend) or getattr(sandbox, sandbox.backend) or _unset_backend(sandbox.backend)
    profiles: dict[str, Profile] = {"": chosen, **sandbox.profiles}
    for name, profile in profiles.items():
        if sandbox.require_sandbox and not isolates(profile):
            setting = f"sandbox.profiles.{name}" if name else "sandbox.backend"
            raise ConfigError(f"{setting} isolates nothing, but sandbox.require_sandbox is set: use 'bwrap'")
    return profiles


def _unset_backend(backend: str) -> "Profile":
    """The profile of a backend of which nothing is said, if nothing needs to be."""
    kind = next(f.type for f in msgspec.structs.fields(SandboxConfig) if f.name == backend)
    recipe: Any = next(option.cls for option in accepted_types(kind) if isinstance(option, msgspec.inspect.StructType))
    missing = [f.name for f in msgspec.structs.fields(recipe) if f.required]
    if missing:
        raise ConfigError(f"sandbox.{backend}.{missing[0]} is not set: --sandbox.{backend}.{missing[0]} …")
    return recipe()


def build_ledger(config: Config, spent: "Mapping[str, Totals] | None" = None) -> "Ledger":
    from ludus.models.ledger import Budget, Ledger

    return Ledger(Budget(**msgspec.structs.asdict(config.budget)), spent)


def build_model(
    model: ModelConfig, ledger: "Ledger", role: str = "agent", tell: Callable[[str], None] = lambda _: None
) -> Model:
    """The model, with its calls booked under `role`. Its server is not asked for anything yet; a tokenizer that token
    mode needs is fetched. `tell` hears of what takes long."""
    from ludus.models.ledger import Metered

    return Metered(_bare_model(model, tell), ledger, role)


def build_models(
    config: Config, ledger: "Ledger", tell: Callable[[str], None] = lambda _: None
) -> tuple[Model, Model | None]:
    """The agent's model and the optimizer's: None if the run asks for none. One model in both roles is there once, and
    closing the agent's is enough."""
    from ludus.models.ledger import Metered

    bare = _bare_model(config.model, tell)
    agent = Metered(bare, ledger, "agent")
    if not isinstance(config.optimizer, SameConfig):
        return agent, Metered(_bare_model(config.optimizer, tell, "optimizer"), ledger, "optimizer")
    return agent, Metered(bare, ledger, "optimizer") if has_optimizer(config) else None


def _bare_model(model: ModelConfig, tell: Callable[[str], None], section: str = "model") -> Model:
    match model:
        case ScriptedConfig():
            return _scripted(model, section)
        case EmbeddedConfig(mode="token"):
            return tokens.embedded_model(model, tell, section)
        case OpenAIConfig(mode="token"):
            return tokens.server_model(model, server_settings(model, section), section)
        case EmbeddedConfig():
            from ludus.models.embedded import EmbeddedModel, EmbeddedSettings

            given = Path(model.weights).expanduser() if model.weights else None
            return EmbeddedModel(EmbeddedSettings(cache=weights_folder(), weights=given, threads=model.threads), tell)
        case AnthropicConfig():
            from ludus.models.anthropic import AnthropicModel, AnthropicSettings

            servers = [
                AnthropicSettings(**msgspec.structs.asdict(server), version=model.version, cache=model.cache)
                for server in server_settings(model, section)
            ]
            return AnthropicModel(*servers, retry=model.retry)
        case OpenAIConfig() | AzureConfig():
            from ludus.models.openai import ChatModel, ChatSettings

            dialect: dict[str, Any] = {"max_tokens_field": model.max_tokens_field}
            if isinstance(model, AzureConfig):
                dialect |= {"api": "azure", "api_version": model.api_version}
            servers = [ChatSettings(**msgspec.structs.asdict(s), **dialect) for s in server_settings(model, section)]
            return ChatModel(*servers, retry=model.retry)


def server_settings(model: ServerConfig, section: str = "model") -> list[ServerSettings]:
    """What each of the servers is told, without what only one dialect knows. Reads the key."""
    addresses = [address for address in (model.base_url, *model.servers) if address]
    if not addresses:
        raise ConfigError(
            f"{section}.base_url: which server? For example --{section}.base_url http://127.0.0.1:8000/v1 "
            f"--{section}.name NAME, or try a small model in this process: --{section}.type embedded"
        )
    for address in addresses:
        if urlsplit(address).scheme not in {"http", "https"}:
            raise ConfigError(f"{section}.base_url: '{address}' should start with http:// or https://")
    if not model.name:
        raise ConfigError(f"{section}.name: which model? Give its name as the server knows it")
    secret = {name: read_secret(var, f"{section}.header_vars.{name}") for name, var in model.header_vars.items()}
    shared = ServerSettings(
        base_url="",
        model=model.name,
        api_key=read_secret(model.api_key_var, f"{section}.api_key_var"),
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


def _scripted(model: ScriptedConfig, section: str) -> Model:
    from ludus.models.scripted import ScriptedModel

    if not model.script:
        raise ConfigError(f"{section}.script: which function? Give module:function or file.py:function")
    script = load_object(model.script, f"{section}.script")
    if not callable(script) and not isinstance(script, list | tuple):
        raise ConfigError(
            f"{section}.script: '{model.script}' is {shown(script)}, neither a function nor a list of replies"
        )
    return ScriptedModel(script, model.name)  # pyright: ignore[reportArgumentType]  # the user's own


def build_policy(config: Config, env: Env, model: Model, registry: "Registry") -> Policy:
    """Who acts. Toolsets stay None, for the environment to decide, unless the settings say something about them."""
    from ludus.tools.toolsets import choose

    tools = config.tools
    chosen = None
    if tools.enabled is not None or tools.disabled or tools.mcp:
        chosen = choose(tools.enabled, tools.disabled, (*env.toolsets, *tools.mcp), registry)
    if not tools.distribution and not config.agent.harness:
        registry.usable(env.toolsets if chosen is None else chosen, slot=env.sandbox is not None)
    skill = _skill(config.agent.skill)
    if config.agent.skill_as != "text":
        if env.sandbox is None and not config.agent.harness:
            raise ConfigError(f"agent.skill_as: {env.name} has no slot to put a file in; leave it at 'text'")
        _ = skill and skill.front  # raises if its head is not in the Agent Skills form
    return Policy(
        model=model,
        skill=skill,
        skill_as=config.agent.skill_as,
        examples_as=config.agent.examples_as,
        sampling=config.sampling,
        limits=_limits(config),
        system=config.agent.system,
        toolsets=chosen,
        registry=registry,
        harness=build_harness(config.agent),
    )


def build_harness(agent: AgentConfig) -> Harness | None:
    """The command-line agent that the settings name; None if they name none.

    Raises:
        ConfigError: it is unknown, has no command, or is not installed.
    """
    if not agent.harness:
        return None
    from ludus.harness.known import KNOWN, find, installed

    name, own = agent.harness, agent.harnesses.get(agent.harness)
    if own is None:
        return installed(find(name, agent.harnesses), agents_folder())
    base = KNOWN.get(name) or Harness(name=name, command="")
    if not (own.command or base.command):
        raise ConfigError(f"agent.harnesses.{name}.command is not set: how is the agent started?")
    for variable in own.env:
        if not variable.isidentifier() or not variable.isascii():
            raise ConfigError(f"agent.harnesses.{name}.env: '{variable}' is not the name of a variable")
    mounts = tuple((str(Path(source).expanduser().absolute()), place) for source, place in own.mounts.items())
    command = own.command or base.command
    needed = tuple(mount for mount in base.mounts if mount[1] in command)  # else it is another installation
    changed = Harness(
        name=name,
        command=command,
        env={**base.env, **own.env},
        files={**base.files, **own.files},
        skills=base.skills if own.skills is None else own.skills,
        model=base.model if own.model is None else own.model,
        mounts=(*needed, *mounts),
    )
    return installed(changed, agents_folder())


def build_proposer(train: TrainConfig) -> "Proposer":
    """Who proposes changes to the skill."""
    if train.proposer == "analysts":
        from ludus.reflact.proposers.analysts import Analysts

        return Analysts()
    from ludus.reflact.proposers.exemplars import Exemplars

    return Exemplars(**msgspec.structs.asdict(train.exemplars))


def has_optimizer(config: Config) -> bool:
    """Whether there is a model to ask for changes."""
    return config.train.proposer == "analysts" or not isinstance(config.optimizer, SameConfig)


def train_settings(config: Config) -> "TrainSettings":
    """What the trainer is told. Without an optimizer's model there is nobody to write guidance or a memory."""
    from ludus.reflact.train_settings import TrainSettings, checked

    fields = {f.name: getattr(config.train, f.name) for f in msgspec.structs.fields(TrainSettings)}
    settings = checked(TrainSettings(**fields))
    if has_optimizer(config):
        return settings
    return msgspec.structs.replace(settings, slow=msgspec.structs.replace(settings.slow, enabled=False), memory=False)


def _limits(config: Config) -> Limits:
    """The limits; the embedded model's window is known, and leaves room for a reply, if nothing is said of it."""
    if not isinstance(config.model, EmbeddedConfig) or config.limits.context_tokens is not None:
        return config.limits
    from ludus.models.embedded import EmbeddedSettings

    defaults = {f.name: f.default for f in msgspec.structs.fields(EmbeddedSettings)}
    return msgspec.structs.replace(config.limits, context_tokens=defaults["context"] - defaults["reply_tokens"])


def _skill(path: str) -> Skill | None:
    if not path:
        return None
    try:
        return from_file(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"agent.skill: {path} cannot be read: {error}") from None


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
