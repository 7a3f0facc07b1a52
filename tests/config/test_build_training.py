"""What the trainer gets of the settings."""

from ludus.config import load
from ludus.config.build_models import build_ledger, build_models
from ludus.config.build_training import build_train_settings
from ludus.config.tree import Config, SameSettings
from ludus.models.settings import OpenAISettings
from ludus.reflact.train_settings import TrainSettings


def test_the_optimizer_is_the_agent_s_model_by_default():
    assert isinstance(load().optimizer, SameSettings)
    assert isinstance(load([], [("optimizer.name", "x")]).optimizer, OpenAISettings)
    agent, optimizer = build_models(load(), build_ledger(Config()))
    assert optimizer is not None and optimizer.name == agent.name
    alone = load([], [("train.proposer", "exemplars")])
    assert build_models(alone, build_ledger(alone))[1] is None
    assert not build_train_settings(alone).memory and not build_train_settings(alone).slow.enabled
    assert build_train_settings(load()) == TrainSettings()
