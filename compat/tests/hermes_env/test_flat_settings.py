"""Flat settings of Hermes and Atropos for Ludus's own environments."""

import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from ludus.compat.hermes_env.flat_settings import MOVED, REFUSED, translate_flat
from ludus.compat.hermes_env.sandboxes import FLAT_NAMES
from ludus.config import SECTIONS, assemble, to_record
from ludus.config.reading import Layer, make_flag_layer
from ludus.config.references import load_env_class
from ludus.env import EnvSettings
from ludus.envs import BUILTIN
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
    for line in ("limit: 2", "max_items: 2", "backend: modal", "max_slots: 50", "image: python:3.11"):
        assert line in done.out, line


def test_names_become_settings_of_ludus():
    config = assemble(
        translate("terminal-test", max_agent_turns="5", agent_temperature="0.5", use_wandb="true", max_num_workers="3")
    )
    assert (config.limits.turns, config.sampling.temperature, config.run.concurrency) == (5, 0.5, 3)
    assert config.tracking.use == ("wandb",)
    assert config.sandbox.backend == "bwrap" and config.sandbox.network is None


@pytest.mark.parametrize(
    ("name", "words", "section", "changed"),
    [
        ("allow_network", "true", "sandbox", {"network": True}),
        ("acquire_timeout_s", "7", "sandbox", {"acquire_seconds": 7.0}),
        ("terminal_timeout", "9", "sandbox", {"command_seconds": 9.0}),
        ("modal_image", "x:1", "sandbox", {}),  # of a pool that is not chosen
        ("tool_pool_mode", "default", "sandbox", {}),
        ("max_agent_turns", "3", "limits", {"turns": 3}),
    ],
)
def test_a_name_changes_only_what_it_names(name: str, words: str, section: str, changed: dict[str, Any]):
    plain, found = to_record(assemble(translate("gsm8k"))), to_record(assemble(translate("gsm8k", **{name: words})))
    assert found == {**plain, section: {**plain[section], **changed}}


def test_the_pool_of_a_mode_leaves_the_network_to_the_environment():
    sandbox = assemble(translate("gsm8k", tool_pool_mode="nomad")).sandbox
    assert sandbox.backend == "nomad" and sandbox.nomad is not None and sandbox.nomad.image == "atropos-sandbox:local"
    assert (sandbox.max_slots, sandbox.warm, sandbox.network, sandbox.require_sandbox) == (100, 1, None, False)


@pytest.mark.parametrize("env", BUILTIN)
def test_every_name_is_unknown_to_the_environments_of_ludus(env: str):
    """A known name would not be translated: these are read only where a setting is unknown."""
    known = {*EnvSettings.__struct_fields__, *load_env_class(env).__struct_fields__}
    assert known.isdisjoint({*MOVED, *REFUSED, *FLAT_NAMES, "use_wandb"})
    assert {"openai", *FLAT_NAMES}.isdisjoint(SECTIONS)


def test_the_name_that_was_typed_is_in_the_message_if_the_environment_has_no_such_option():
    with pytest.raises(ConfigError, match=r"env\.dataset_name"):
        assemble(translate("terminal-test", dataset_name="x"))


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
