"""Builds the proposer, the gate rule and the settings of the skill trainer. Proposers are imported when used."""

from typing import TYPE_CHECKING, Any

import msgspec

from ludus.config.references import GATE, PROPOSER, make_instance
from ludus.config.tree import Config, SameSettings
from ludus.errors import ConfigError
from ludus.reflact.train_settings import TrainSettings, check_settings

if TYPE_CHECKING:
    from ludus.reflact.gate import Rule
    from ludus.reflact.proposers import Proposer


def build_proposer(train: TrainSettings) -> "Proposer":
    """Make the proposer that the settings name."""
    kind: type[Any] = PROPOSER.load(train.proposer)
    if train.proposer == "exemplars":
        if train.proposer_options:
            raise ConfigError("train.proposer_options: the options of `exemplars` are in train.exemplars")
        return kind(train.exemplars)
    return make_instance(kind, train.proposer_options, "train.proposer_options", "train.proposer")


def build_rule(train: TrainSettings) -> "Rule | None":
    """The gate rule that the settings name; None for the built-in one."""
    if not train.gate.rule:
        return None
    found = GATE.load(train.gate.rule)
    return make_instance(found, {}, "train.gate.rule") if isinstance(found, type) else found


def has_optimizer(config: Config) -> bool:
    """Whether the run has a model for the optimizer."""
    return PROPOSER.load(config.train.proposer).needs_optimizer or not isinstance(config.optimizer, SameSettings)


def build_train_settings(config: Config) -> TrainSettings:
    """The settings of the trainer, checked. Without an optimizer's model there is no slow update and no memory."""
    settings = check_settings(config.train)
    if has_optimizer(config):
        return settings
    return msgspec.structs.replace(settings, slow=msgspec.structs.replace(settings.slow, enabled=False), memory=False)
