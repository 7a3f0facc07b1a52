"""Trainers from settings."""

import importlib.util
from pathlib import Path

import pytest
from tests.cli_kit import make_tokenizer

from ludus.config import load
from ludus.config.build_trainer import build_trainer
from ludus.errors import ConfigError


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
def test_the_built_in_trainer_names_its_extra():
    with pytest.raises(ConfigError, match="ludus-train\\[rl\\]"):
        build_trainer(load(flags=[("rl.steps", "3")]), print)


@pytest.mark.parametrize(
    ("flags", "variable"), [((), "TINKER_API_KEY"), ((("trainer.api_key_var", "MY_KEY"),), "MY_KEY")]
)
def test_tinker_needs_the_variable_of_its_key(monkeypatch: pytest.MonkeyPatch, flags, variable: str):
    monkeypatch.delenv(variable, raising=False)
    config = load(flags=[("trainer.type", "tinker"), ("trainer.base_model", "x/y"), *flags])
    with pytest.raises(ConfigError, match=rf"trainer\.api_key_var: the environment variable {variable} is not set"):
        build_trainer(config, print)


def test_tinker_needs_the_name_of_a_model():
    with pytest.raises(ConfigError, match=r"trainer\.base_model: which model\?"):
        build_trainer(load(flags=[("trainer.type", "tinker")]), print)


def test_a_tinker_server_of_ones_own_needs_no_key(tmp_path: Path):
    pytest.importorskip("tokenizers")
    folder = make_tokenizer(tmp_path, "hello there")
    flags = [
        ("trainer.type", "tinker"),
        ("trainer.base_url", "http://127.0.0.1:9"),
        ("trainer.base_model", str(folder)),
    ]
    trainer = build_trainer(load(flags=flags), print)
    assert (trainer.name, trainer.version) == (str(folder), 0)
