"""Token mode, from settings: `model.mode: token` with an engine, a tokenizer, a parser and a template.

What cannot work is refused before the run begins: a name that leads nowhere when the model is built, a tokenizer of
another model and a template that loses tools when it is made ready. What works but is worth knowing is told.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ludus.agent import Policy
from ludus.config.references import load_parser
from ludus.config.secrets import find_weights_folder
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.models import Model, StartableModel
from ludus.models.embedded import EmbeddedSettings
from ludus.models.ledger import MeteredModel
from ludus.models.openai import OpenAISettings
from ludus.models.server import Endpoint

if TYPE_CHECKING:
    from ludus.tokens.codec import Codec
    from ludus.tokens.engines import HttpEngine
    from ludus.tokens.token_model import TokenModel

Tell = Callable[[str], None]


def build_server_model(model: OpenAISettings, endpoints: Sequence[Endpoint], section: str) -> Model:
    """A model in token mode on an inference server."""
    if model.engine == "vllm_chat":
        from ludus.tokens.capture import CapturedChatModel

        return CapturedChatModel(model, *endpoints)
    codec = _build_codec(model, model.tokenizer or model.name, section)
    from ludus.tokens.token_model import TokenModel

    engine = _find_engine(model.engine)(model, *endpoints)
    return TokenModel(engine, codec, name=model.name, price=model.price)


def build_embedded_model(model: EmbeddedSettings, tell: Tell, section: str) -> Model:
    """The embedded model in token mode. Its weights are fetched at once: the tokenizer is in them."""
    from ludus.models.embedded import EmbeddedRuntime
    from ludus.models.weights import find_weights

    runtime = EmbeddedRuntime(cache=find_weights_folder())
    weights = find_weights(model.weights_path, runtime.cache, tell=tell)
    codec = _build_codec(model, weights, section)
    from ludus.tokens.engines.embedded_engine import EmbeddedEngine
    from ludus.tokens.token_model import TokenModel

    return TokenModel(EmbeddedEngine(msgspec.structs.replace(model, weights=str(weights)), runtime, tell), codec)


def _build_codec(model: OpenAISettings | EmbeddedSettings, tokenizer: str | Path, section: str) -> "Codec":
    parser = load_parser(model.parser, f"{section}.parser")
    from ludus.tokens.codec import Codec  # says which extra is missing, if it is

    try:
        return Codec.open(tokenizer, parser, template=model.template, history=model.history)
    except ConfigError as error:
        said = str(error)
        named = said.startswith(("tokenizer:", "template:"))
        raise ConfigError(f"{section}.{said}" if named else f"{section}.template: {said}") from error


def _find_engine(name: str) -> "type[HttpEngine]":
    from ludus.tokens.engines.atropos_generate import AtroposEngine
    from ludus.tokens.engines.llamacpp import LlamaCppEngine
    from ludus.tokens.engines.sglang import SglangEngine
    from ludus.tokens.engines.vllm import VllmEngine

    return {"vllm": VllmEngine, "sglang": SglangEngine, "llamacpp": LlamaCppEngine, "atropos": AtroposEngine}[name]


# ---- before a run -------------------------------------------------------------------------------------------------


async def prepare_model(policy: Policy, env: Env, tell: Tell) -> None:
    """Have a policy's model make ready, so that the first rollout is not charged for it.

    Raises:
        ConfigError: it cannot work, such as a tokenizer of another model, or a template that loses the tools.
        ModelError: its server does not answer.
    """
    model = policy.model.model if isinstance(policy.model, MeteredModel) else policy.model
    if isinstance(model, StartableModel):
        await model.start()
    token_model = find_token_model(model)
    if token_model is None:
        return
    from ludus.tokens.probe import raise_fatal

    tools = bool(env.toolsets if policy.toolsets is None else policy.toolsets)
    raise_fatal(token_model.findings, tools=tools)
    for finding in token_model.findings:
        if finding.level != "info" and (tools or not finding.for_tools):
            tell(f"{finding.level}: {finding.message}")


def find_token_model(model: Model) -> "TokenModel | None":
    """The model in token mode behind a model, if there is one."""
    model = model.model if isinstance(model, MeteredModel) else model
    if not hasattr(model, "codec"):  # without token mode its packages may not be there
        return None
    from ludus.tokens.token_model import TokenModel

    return model if isinstance(model, TokenModel) else None
