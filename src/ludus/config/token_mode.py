"""Build models in token mode from settings: an engine, a tokenizer, a parser and a template.

Settings that cannot work are refused before the run starts. An unknown name is refused when the model is built; a
tokenizer of another model, or a template that loses tools, when the model is prepared. Warnings are printed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ludus.config.references import load_parser
from ludus.config.secrets import find_weights_folder
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.models import Model, StartableModel, find_capability
from ludus.models.server import Endpoint
from ludus.models.settings import EmbeddedSettings, OpenAISettings
from ludus.policy import Policy
from ludus.tokens import find_token_model

if TYPE_CHECKING:
    from ludus.tokens.codec import Codec
    from ludus.tokens.engines import HttpEngine
    from ludus.tokens.render import History

Tell = Callable[[str], None]


def build_server_model(model: OpenAISettings, endpoints: Sequence[Endpoint], tell: Tell, section: str) -> Model:
    """A model in token mode on an inference server."""
    if model.engine == "vllm_chat":
        from ludus.tokens.capture import CapturedChatModel

        return CapturedChatModel(model, *endpoints, tell=tell)
    codec = _build_own_codec(model, model.tokenizer or model.name, section)
    from ludus.tokens.model import TokenModel

    engine = _find_engine(model.engine)(model, *endpoints, tell=tell)
    return TokenModel(engine, codec, name=model.name, price=model.price)


def build_embedded_model(model: EmbeddedSettings, tell: Tell, section: str) -> Model:
    """The embedded model in token mode. Its weights are fetched now, because they contain the tokenizer.

    What is not installed is reported before they are fetched.
    """
    from ludus.models.embedded import EmbeddedRuntime, import_engine
    from ludus.models.weights import NAMED, find_weights
    from ludus.tokens.token_packages import require_packages

    require_packages("tokenizers", "jinja2")
    import_engine()
    runtime = EmbeddedRuntime(cache=find_weights_folder())
    known = NAMED[model.name]
    weights = find_weights(model.weights_path, runtime.cache, weights=known, tell=tell)
    codec = _build_own_codec(msgspec.structs.replace(model, parser=model.parser or known.parser), weights, section)
    from ludus.tokens.engines.embedded_engine import EmbeddedEngine
    from ludus.tokens.model import TokenModel

    return TokenModel(EmbeddedEngine(msgspec.structs.replace(model, weights=str(weights)), runtime, tell), codec)


def _build_own_codec(model: OpenAISettings | EmbeddedSettings, tokenizer: str | Path, section: str) -> "Codec":
    return build_codec(tokenizer, section, parser=model.parser, template=model.template, history=model.history)


def build_codec(
    tokenizer: str | Path, section: str, *, parser: str, template: str = "", history: "History" = "template"
) -> "Codec":
    """Tokenizer, template and parser of a model. Errors name the settings of the section."""
    found = load_parser(parser, f"{section}.parser")
    from ludus.tokens.codec import Codec
    from ludus.tokens.token_packages import require_packages

    require_packages("tokenizers", "jinja2")
    try:
        return Codec.open(tokenizer, found, template=template, history=history)
    except ConfigError as error:
        message = str(error)
        has_setting = message.startswith(("tokenizer:", "template:"))
        raise ConfigError(f"{section}.{message}" if has_setting else f"{section}.template: {message}") from error


def _find_engine(name: str) -> "type[HttpEngine]":
    from ludus.tokens.engines.atropos_generate import AtroposEngine
    from ludus.tokens.engines.llamacpp import LlamaCppEngine
    from ludus.tokens.engines.sglang import SglangEngine
    from ludus.tokens.engines.vllm import VllmEngine

    return {"vllm": VllmEngine, "sglang": SglangEngine, "llamacpp": LlamaCppEngine, "atropos": AtroposEngine}[name]


# ---- before a run -------------------------------------------------------------------------------------------------


async def prepare_model(policy: Policy, env: Env, tell: Tell) -> None:
    """Start a policy's model, so that the time does not count as part of the first rollout.

    Raises:
        ConfigError: the settings cannot work, such as a tokenizer of another model or a template that loses tools.
        ModelError: its server does not answer.
    """
    startable = find_capability(policy.model, StartableModel)
    if startable is not None:
        await startable.start()
    token_model = find_token_model(policy.model)
    if token_model is None:
        return
    from ludus.tokens.probe import raise_fatal

    tools = bool(env.toolsets if policy.toolsets is None else policy.toolsets)
    raise_fatal(token_model.findings, tools=tools)
    for finding in token_model.findings:
        if finding.level != "info" and (tools or not finding.for_tools):
            tell(f"{finding.level}: {finding.message}")
