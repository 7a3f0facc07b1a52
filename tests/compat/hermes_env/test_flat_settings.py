"""Flat settings of Hermes and Atropos for Ludus's own environments."""

import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from ludus.compat.hermes_env.flat_settings import MOVED, REFUSED, translate_flat
from ludus.config import SECTIONS, assemble
from ludus.config.reading import Layer, make_flag_layer
from ludus.errors import ConfigError

KNOWN = shlex.split(
    "process swe-smith-oracle --env.use_wandb false --env.total_steps 2 --env.group_size 1 --env.max_items 2 "
    "--env.tool_pool_mode modal --env.modal_image python:3.11 --env.modal_slots_per_sandbox 10 "
    "--env.modal_min_sandboxes 1"
)


def translate(env: str, **flat: str) -> list[Layer]:
    flags = {"env.name": env, **{f"env.{name}": value for name, value in flat.items()}}
    return translate_flat([make_flag_layer(path, words) for path, words in flags.items()])


def test_the_known_command_is_understood(ludus: Callable[..., Any]):
    done = ludus(*KNOWN, "--print-config")
    assert done.code == 0, done.err
    for line in ("limit: 2", "max_items: 2", "backend: modal", "network: true", "max_slots: 50", "image: python:3.11"):
        assert line in done.out, line


def test_names_become_settings_of_ludus():
    config = assemble(
        translate("terminal-test", max_agent_turns="5", agent_temperature="0.5", use_wandb="true", max_num_workers="3")
    )
    assert (config.limits.turns, config.sampling.temperature, config.run.concurrency) == (5, 0.5, 3)
    assert config.tracking.use == ("wandb",)
    assert config.sandbox.backend == "bwrap" and config.sandbox.network is None


def test_yaml_and_servers_are_translated():
    env = {"name": "gsm8k", "total_steps": 3, "enabled_toolsets": ["terminal"]}
    openai = {"base_url": "http://localhost:9/v1", "model_name": "m"}
    (layer,) = translate_flat([Layer("a.yaml", {"env": env, "openai": openai})])
    assert layer.tree == {
        "env": {"name": "gsm8k", "limit": 3},
        "tools": {"enabled": ["terminal"]},
        "model": {"base_url": "http://localhost:9/v1", "name": "m"},
    }
    with pytest.raises(ConfigError, match=r"openai.api_key: .*--model.api_key_var"):
        translate_flat([Layer("a.yaml", {"env": env, "openai": {"api_key": "k"}})])


def test_names_of_the_environment_and_unknown_ones_stay():
    layers = translate("swe-smith-oracle", max_items="2", nonsense="1")
    assert [layer.tree["env"] for layer in layers[1:]] == [{"max_items": "2"}, {"nonsense": "1"}]
    own = translate("my_env.py", use_wandb="true")  # an environment of the user's may have such an option
    assert own[1].tree == {"env": {"use_wandb": "true"}}


@pytest.mark.parametrize("name", REFUSED)
def test_what_means_nothing_here_is_refused(name: str):
    with pytest.raises(ConfigError, match=rf"env\.{name}: "):
        translate("gsm8k", **{name: "1"})


def test_wrong_values_name_the_setting():
    with pytest.raises(ConfigError, match=r"env\.sandbox settings: .*tool_pool_mode"):
        translate("gsm8k", tool_pool_mode="cloud")


def test_every_name_has_a_place():
    for section, _ in MOVED.values():
        assert section in SECTIONS, json.dumps(section)
