"""Build the trainer of `ludus rl` from its settings."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.config.build_models import build_endpoints
from ludus.config.secrets import find_weights_folder, read_secret
from ludus.config.token_mode import build_codec
from ludus.config.tree import Config
from ludus.errors import ConfigError
from ludus.models.settings import OpenAISettings
from ludus.rl.grpo_settings import GrpoSettings
from ludus.rl.tinker_settings import TinkerSettings
from ludus.rl.trainers import Trainer

if TYPE_CHECKING:
    from ludus.rl.torch_trainer import AdapterSampler
    from ludus.tokens.codec import Codec


def build_trainer(config: Config, tell: Callable[[str], None]) -> Trainer:
    """The trainer, with the policy that it starts from. `tell` is called before a slow step.

    Raises:
        ConfigError: its package is not installed, or its settings cannot work.
    """
    match config.trainer:
        case GrpoSettings() as settings:
            return _build_grpo(settings, tell)
        case TinkerSettings() as settings:
            return _build_tinker(settings)


def _build_grpo(settings: GrpoSettings, tell: Callable[[str], None]) -> Trainer:
    from ludus.rl.torch_trainer import open_trainer

    def make_sampler(codec: "Codec") -> "AdapterSampler":
        from ludus.rl.vllm_lora import VllmAdapters

        server = OpenAISettings(base_url=settings.vllm, name=settings.weights)
        return VllmAdapters(server, codec, *build_endpoints(server, "trainer"))

    def make_codec(tokenizer: str | Path, parser: str) -> "Codec":
        return build_codec(tokenizer, "trainer", parser=parser, template=settings.template)

    return open_trainer(
        settings,
        find_weights_folder(),
        make_codec=make_codec,
        make_sampler=make_sampler if settings.vllm else None,
        tell=tell,
    )


def _build_tinker(settings: TinkerSettings) -> Trainer:
    if not settings.base_model:
        raise ConfigError("trainer.base_model: which model? Give its name as the service knows it")
    key = read_secret(settings.key_variable, "trainer.api_key_var")
    tokenizer = settings.tokenizer or settings.base_model
    codec = build_codec(tokenizer, "trainer", parser=settings.parser, template=settings.template)
    from ludus.rl.tinker_trainer import TinkerTrainer

    return TinkerTrainer(settings, codec, key)
