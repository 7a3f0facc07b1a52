"""Trainers from settings."""

import importlib.util

import pytest

from ludus.config import load
from ludus.config.build_trainer import build_trainer
from ludus.errors import ConfigError


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
def test_the_built_in_trainer_names_its_extra():
    with pytest.raises(ConfigError, match="ludus-train\\[rl\\]"):
        build_trainer(load(flags=[("rl.steps", "3")]), print)


def test_tinker_needs_the_variable_of_its_key(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("tokenizers")
    monkeypatch.delenv("MY_KEY", raising=False)
    config = load(flags=[("trainer.type", "tinker"), ("trainer.api_key_var", "MY_KEY"), ("trainer.base_model", "x/y")])
    with pytest.raises(ConfigError):
        build_trainer(config, print)
