"""Builds what the skill trainer needs from settings. Heavy imports are inside."""

from typing import TYPE_CHECKING

import msgspec

from ludus.config.tree import Config, SameSettings, TrainConfig

if TYPE_CHECKING:
    from ludus.reflact.proposers import Proposer
    from ludus.reflact.train_settings import TrainSettings


def build_proposer(train: TrainConfig) -> "Proposer":
    """Who proposes changes to the skill."""
    if train.proposer == "analysts":
        from ludus.reflact.proposers.analysts import Analysts

        return Analysts()
    from ludus.reflact.proposers.exemplars import Exemplars

    return Exemplars(**msgspec.structs.asdict(train.exemplars))


def has_optimizer(config: Config) -> bool:
    """Whether there is a model to ask for changes."""
    return config.train.proposer == "analysts" or not isinstance(config.optimizer, SameSettings)


def train_settings(config: Config) -> "TrainSettings":
    """What the trainer is told. Without an optimizer's model there is nobody to write guidance or a memory."""
    from ludus.reflact.train_settings import TrainSettings, checked

    fields = {f.name: getattr(config.train, f.name) for f in msgspec.structs.fields(TrainSettings)}
    settings = checked(TrainSettings(**fields))
    if has_optimizer(config):
        return settings
    return msgspec.structs.replace(settings, slow=msgspec.structs.replace(settings.slow, enabled=False), memory=False)
