"""Builds what the skill trainer needs from settings. Heavy imports are inside."""

from typing import TYPE_CHECKING

import msgspec

from ludus.config.tree import Config, SameSettings
from ludus.reflact.train_settings import TrainSettings, check_settings

if TYPE_CHECKING:
    from ludus.reflact.proposers import Proposer


def build_proposer(train: TrainSettings) -> "Proposer":
    """Make the proposer that the settings name."""
    if train.proposer == "analysts":
        from ludus.reflact.proposers.analysts import Analysts

        return Analysts()
    from ludus.reflact.proposers.exemplars import Exemplars

    return Exemplars(train.exemplars)


def has_optimizer(config: Config) -> bool:
    """Whether there is a model to ask for changes."""
    return config.train.proposer == "analysts" or not isinstance(config.optimizer, SameSettings)


def train_settings(config: Config) -> TrainSettings:
    """The settings of the trainer, checked. Without an optimizer's model there is no slow update and no memory."""
    settings = check_settings(config.train)
    if has_optimizer(config):
        return settings
    return msgspec.structs.replace(settings, slow=msgspec.structs.replace(settings.slow, enabled=False), memory=False)
