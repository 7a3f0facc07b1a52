"""Builds models and the ledger of their budgets from settings. Heavy imports are inside."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from ludus.config import token_mode as tokens
from ludus.config.build_training import has_optimizer
from ludus.config.reading import shown
from ludus.config.references import load_object
from ludus.config.secrets import proxy_for, read_secret, weights_folder
from ludus.config.tree import (
    AnthropicConfig,
    AzureConfig,
    Config,
    EmbeddedConfig,
    ModelConfig,
    OpenAIConfig,
    SameConfig,
    ScriptedConfig,
    ServerConfig,
)
from ludus.errors import ConfigError
from ludus.models import Model
from ludus.models.server import ServerSettings

if TYPE_CHECKING:
    from ludus.models.ledger import Ledger, Totals


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
