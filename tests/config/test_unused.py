"""Settings that were given and have no effect."""

from typing import Any

import pytest
import yaml

from ludus.config import assemble, to_yaml
from ludus.config.reading import Layer, make_flag_layer
from ludus.config.tree import SECTIONS, Config
from ludus.config.unused import find_unused, refuse_unused
from ludus.errors import ConfigError


def refuse(*flags: tuple[str, str], file: dict[str, Any] | None = None) -> str:
    """What is refused; empty if nothing."""
    layers = [Layer("a.yaml", file or {}), *(make_flag_layer(*flag) for flag in flags)]
    try:
        refuse_unused(assemble(layers), layers)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("train.batch_size", "3", "with train.recipe ledger; it is for reflact: leave it out"),
        ("train.gate.rule", "curtailed", "with train.recipe ledger; it is for reflact: leave it out"),
        ("train.slow.samples", "3", "with train.recipe ledger; it is for reflact: leave it out"),
        ("train.exemplars.most", "3", "with train.proposer analysts; it is for exemplars: leave it out"),
        ("data.folder", "x", "with data.mode ratio; it is for folder: leave it out"),
        ("data.selection", "x", "with data.mode ratio; it is for splits: leave it out"),
        ("tracking.project", "x", "without tracking.use: set that, or leave it out"),
        ("model.parser", "llama3_json", "with model.mode chat; it is for token: leave it out"),
    ],
)
def test_a_setting_that_another_one_turns_off_is_refused(setting: str, value: str, reason: str):
    assert refuse((setting, value)) == f"{setting} has no effect {reason}"


@pytest.mark.parametrize(
    "flags",
    [
        [("train.recipe", "reflact"), ("train.batch_size", "3"), ("train.gate.rule", "sequential")],
        [("train.recipe", "reflact"), ("train.gate.rule", "mine.py:rule"), ("train.gate.accept_at", "0.7")],
        [("train.proposer", "exemplars"), ("train.exemplars.most", "3"), ("train.edit_budget", "9")],
        [("train.ledger.batch_size", "3"), ("train.gate.metric", "soft")],
        [("data.mode", "splits"), ("data.selection", "x")],
        [("train.batch_size", "40"), ("train.memory", "true")],
    ],
)
def test_what_is_used_and_what_is_at_its_default_is_taken(flags: list[tuple[str, str]]):
    assert refuse(*flags) == ""


def test_a_file_is_named_and_so_is_a_setting_inside_a_mapping():
    found = refuse(("train.gate", "{block: 3}"), file={"train": {"recipe": "reflact", "ledger": {"batch_size": 3}}})
    assert found.splitlines() == [
        "a.yaml: train.ledger.batch_size has no effect with train.recipe reflact; it is for ledger: leave it out",
        "train.gate.block has no effect without train.gate.rule: set that, or leave it out",
    ]


def test_all_settings_can_be_given_back():
    tree = yaml.safe_load(to_yaml(Config()))
    assert refuse(file=tree) == ""


def test_the_settings_of_a_run_that_is_resumed_are_not_refused():
    own = make_flag_layer("train.batch_size", "3")
    refuse_unused(assemble([own]), [make_flag_layer("train.epochs", "2")])


def test_declared_names_exist():
    changed = assemble([make_flag_layer("model.type", "openai"), make_flag_layer("optimizer.type", "openai")])
    for config in (Config(), changed):
        assert list(find_unused(config)) == []
        for section in SECTIONS:
            group = getattr(config, section)
            for conditions in getattr(group, "used_if", {}).values():
                assert all(hasattr(group, condition.field) for condition in conditions)
