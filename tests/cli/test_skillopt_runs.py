"""Training with SkillOpt's files. Whole runs with its adapters are in tests/compat/skillopt."""

from pathlib import Path

from ludus.cli.skillopt_runs import find_proposer, get_adapter_name, read_layers
from ludus.envs.gsm8k import Gsm8k

FILE = """
env: {name: gsm8k}
train: {num_epochs: 2}
model: {target: gpt-5-mini, optimizer: gpt-5}
"""


def test_a_file_is_one_layer_with_our_names(folder: Path):
    (folder / "theirs.yaml").write_text(FILE)
    (layer,) = read_layers("theirs.yaml", [], [])
    assert layer.source == "theirs.yaml"
    assert layer.tree["train"]["epochs"] == 2
    assert layer.tree["model"]["name"] == "gpt-5-mini"
    assert layer.tree["optimizer"]["name"] == "gpt-5"
    assert read_layers("", [], []) == []


def test_a_model_whose_type_is_given_elsewhere_is_not_taken_from_the_file(folder: Path):
    (folder / "theirs.yaml").write_text(FILE)
    (folder / "ours.yaml").write_text("optimizer: {type: same}")
    (layer,) = read_layers("theirs.yaml", ["ours.yaml"], [("model.type", "scripted")])
    assert "model" not in layer.tree and "optimizer" not in layer.tree
    assert layer.tree["train"]["epochs"] == 2


def test_other_environments_are_no_adapters():
    assert (find_proposer(Gsm8k()), get_adapter_name(Gsm8k())) == (None, "")
