"""Build models and their ledger from settings."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ludus.config import token_mode as tokens
from ludus.config.reading import format_value
from ludus.config.references import MODEL, load_object
from ludus.config.secrets import find_proxy, find_weights_folder, read_secret
from ludus.config.tree import Config, ModelSettings, NoModelSettings, OwnModelSettings, SameSettings
from ludus.env import Env
from ludus.errors import ConfigError, ModelError, boundary
from ludus.models import Model, ModelWrapper, StartableModel
from ludus.models.ledger import Ledger, MeteredModel, Totals, find_price
from ludus.models.server import Endpoint, ServerSettings
from ludus.models.settings import AnthropicSettings, AzureSettings, EmbeddedSettings, OpenAISettings, ScriptedSettings
from ludus.types import Completion, Message, Sampling, ToolSpec
from ludus.verify.grading import JUDGE, SECOND, Judges, explain_missing

VISION = "vision"
"""The section of the settings, and the role in the ledger, of the model for pictures."""


def build_ledger(config: Config, spent: Mapping[str, Totals] | None = None) -> Ledger:
    return Ledger(config.budget, spent)


def build_model(
    model: ModelSettings, ledger: Ledger, role: str = "agent", tell: Callable[[str], None] = lambda _: None
) -> Model:
    """The model, with its calls booked under `role`. No request is sent to its server yet, but token mode fetches the
    tokenizer. `tell` is called with a message before a slow step, and while no server answers."""
    return _build_metered(model, ledger, role, "model", tell)


def _build_metered(
    model: ModelSettings, ledger: Ledger, role: str, section: str, tell: Callable[[str], None]
) -> MeteredModel:
    bare = _build_bare_model(model, tell, section)
    check_price(model, bare, ledger.budget.find_dollars(role), section)
    return MeteredModel(bare, ledger, role)


def check_price(settings: ModelSettings, model: Model, limit: str, section: str = "model") -> None:
    """Raise `ConfigError` if what a model costs cannot be counted. `limit`: the budget in dollars that needs it; empty
    if there is none."""
    if not limit or isinstance(settings, EmbeddedSettings | ScriptedSettings):  # they cost nothing
        return
    price = find_price(model)
    if isinstance(settings, OpenAISettings) and settings.mode == "token":  # token engines report no cost
        price = msgspec.structs.replace(price, reported=False)
    if price.is_known:
        return
    tokens = limit.replace("dollars", "tokens")
    how = f"--{section}.price.prompt 0.5 --{section}.price.completion 2; 0 if it is free"
    reported = f", or --{section}.price.reported true if its server reports the cost of each reply"
    if isinstance(settings, OwnModelSettings):
        how, reported = "an attribute `price = ludus.models.server.Price(prompt=0.5, completion=2)` of its class", ""
    raise ConfigError(
        f"{limit}: what {section} {model.name} costs is not known, so the limit would have no effect. Give its price "
        f"in dollars per million tokens ({how}){reported}, or limit tokens instead: --{tokens}"
    )


def build_models(
    config: Config, ledger: Ledger, tell: Callable[[str], None] = lambda _: None
) -> tuple[Model, Model | None]:
    """The agent's model and the optimizer's; the latter is None if the run needs none. One model may have both roles;
    then closing the agent's is enough."""
    bare = _build_bare_model(config.model, tell)
    check_price(config.model, bare, ledger.budget.find_dollars("agent"))
    agent = MeteredModel(bare, ledger, "agent")
    if not isinstance(config.optimizer, SameSettings):
        return agent, _build_metered(config.optimizer, ledger, "optimizer", "optimizer", tell)
    from ludus.config.build_training import has_optimizer

    if not has_optimizer(config):
        return agent, None
    check_price(config.model, bare, ledger.budget.find_dollars("optimizer"))
    return agent, MeteredModel(bare, ledger, "optimizer")


CLAIM_MODEL = "claim_model"
"""The section of the settings, and the role in the ledger, of the model that a skill was not trained with."""


def build_claim_model(config: Config, ledger: Ledger, tell: Callable[[str], None] = lambda _: None) -> Model | None:
    """The model for the claim of a training run, if the settings name one."""
    if isinstance(config.claim_model, NoModelSettings):
        return None
    return _build_metered(config.claim_model, ledger, CLAIM_MODEL, CLAIM_MODEL, tell)


def build_vision(config: Config, ledger: Ledger) -> Model | None:
    """The model that tools ask about pictures, if the settings name one."""
    if isinstance(config.vision, NoModelSettings):
        return None
    return _build_metered(config.vision, ledger, VISION, VISION, lambda _: None)


def build_judges(config: Config, env: Env, ledger: Ledger, tell: Callable[[str], None] = lambda _: None) -> Judges:
    """The judges of an environment that is graded, with their calls in the ledger; none for others.

    Raises:
        ConfigError: the settings name no judge, and the environment needs one.
    """
    if not env.graded:
        return Judges()
    if isinstance(config.judge, NoModelSettings):
        raise ConfigError(explain_missing(env.name))
    judge = _build_metered(config.judge, ledger, JUDGE, JUDGE, tell)
    second = None
    if not isinstance(config.second_judge, NoModelSettings):
        second = _build_metered(config.second_judge, ledger, SECOND, SECOND, tell)
    return Judges(judge, second)


def _build_bare_model(model: ModelSettings, tell: Callable[[str], None], section: str = "model") -> Model:
    match model:
        case OwnModelSettings():
            return _make_own(model, section)
        case ScriptedSettings():
            return _build_scripted(model, section)
        case EmbeddedSettings(mode="token"):
            return tokens.build_embedded_model(model, tell, section)
        case OpenAISettings(mode="token"):
            return tokens.build_server_model(model, build_endpoints(model, section), tell, section)
        case EmbeddedSettings():
            return _build_embedded(model, tell)
        case AnthropicSettings():
            from ludus.models.anthropic import AnthropicModel

            return AnthropicModel(model, *build_endpoints(model, section), tell=tell)
        case OpenAISettings() | AzureSettings():
            from ludus.models.openai import ChatModel

            return ChatModel(model, *build_endpoints(model, section), tell=tell)


def _build_embedded(model: EmbeddedSettings, tell: Callable[[str], None]) -> Model:
    from ludus.models.embedded import EmbeddedModel, EmbeddedRuntime
    from ludus.models.weights import NAMED
    from ludus.parsers import Parser

    weights = NAMED[model.name]
    reader = Parser(weights.parser) if weights.fenced else None
    return EmbeddedModel(model, EmbeddedRuntime(cache=find_weights_folder()), tell, reader)


def build_endpoints(model: ServerSettings, section: str = "model") -> list[Endpoint]:
    """The servers of a model, with the key, the secret headers and the proxy of each. Reads environment variables.

    Raises:
        ConfigError: an address or the model's name is missing or wrong, or a variable is not set.
    """
    if not model.addresses:
        raise ConfigError(
            f"{section}.base_url: which server? For example --{section}.base_url http://127.0.0.1:8000/v1 "
            f"--{section}.name NAME, or try a small model in this process: --{section}.type embedded"
        )
    for address in model.addresses:
        if urlsplit(address).scheme not in {"http", "https"}:
            raise ConfigError(f"{section}.base_url: '{address}' should start with http:// or https://")
    if not model.name:
        raise ConfigError(f"{section}.name: which model? Give its name as the server knows it")
    headers = {name: read_secret(var, f"{section}.header_vars.{name}") for name, var in model.header_vars.items()}
    key = read_secret(model.api_key_var, f"{section}.api_key_var")
    return [
        Endpoint(address, api_key=key, headers=headers, proxy=find_proxy(address, model.proxy))
        for address in model.addresses
    ]


def _make_own(model: OwnModelSettings, section: str) -> Model:
    made = MODEL.make(model.reference, model.options, f"{section}.type", f"{section}.options")
    if not isinstance(getattr(made, "name", None), str):
        raise ConfigError(f'{section}.type: {type(made).__name__} has no name; add: name = "my-model"')
    protocols = (Model, StartableModel)
    if any(base.__module__.startswith("ludus.") for base in type(made).__mro__ if base not in protocols):
        return made  # derived from a model of Ludus, which others recognize by its class
    return StartableOwnModel(made) if isinstance(made, StartableModel) else OwnModel(made)


class OwnModel(ModelWrapper):
    """A model of the user's own. Whatever it raises is a `ModelError`, and so is a reply of another type."""

    inner: Any

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._kind = type(model).__name__

    @property
    def name(self) -> str:
        return self.inner.name

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        with boundary(ModelError, f"{self._kind}.complete raised"):
            reply: object = await self.inner.complete(messages, tools, sampling)
        if not isinstance(reply, Completion):
            problem = f"{self._kind}.complete returned {type(reply).__name__}, not a Completion"
            raise ModelError(problem, retryable=False)
        if (kind := type(reply.message)) is not Message:
            problem = f"{self._kind}.complete returned a Completion of {kind.__name__}, not of a Message"
            raise ModelError(problem, retryable=False)
        return reply

    async def close(self) -> None:
        await self.inner.close()


class StartableOwnModel(OwnModel):
    """One that prepares before its first reply."""

    async def start(self) -> None:
        with boundary(ModelError, f"{self._kind}.start raised"):
            await self.inner.start()


def _build_scripted(model: ScriptedSettings, section: str) -> Model:
    if not model.script:
        raise ConfigError(f"{section}.script: which function? Give module:function or file.py:function")
    script = load_object(model.script, f"{section}.script")
    if not callable(script) and not isinstance(script, list | tuple):
        raise ConfigError(
            f"{section}.script: '{model.script}' is {format_value(script)}, neither a function nor a list of replies"
        )
    from ludus.models.scripted import ScriptedModel

    return ScriptedModel(script, model.name)  # pyright: ignore[reportArgumentType]  # a function or list of the user
