"""The settings of SkillOpt's files below others."""

from pathlib import Path

import pytest

from ludus.compat.skillopt.layers import read_layers

FILE = """
env: {name: gsm8k}
train: {num_epochs: 2}
model: {target: gpt-5-mini, optimizer: gpt-5}
"""


def test_a_file_is_one_layer_with_our_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("theirs.yaml").write_text(FILE)
    (layer,) = read_layers("theirs.yaml", [], [])
    assert layer.source == "theirs.yaml"
    assert layer.tree["train"]["epochs"] == 2
    assert layer.tree["model"]["name"] == "gpt-5-mini"
    assert layer.tree["optimizer"]["name"] == "gpt-5"
    assert read_layers("", [], []) == []


def test_a_model_whose_type_is_given_elsewhere_is_not_taken_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("theirs.yaml").write_text(FILE)
    Path("ours.yaml").write_text("optimizer: {type: same}")
    (layer,) = read_layers("theirs.yaml", ["ours.yaml"], [("model.type", "scripted")])
    assert "model" not in layer.tree and "optimizer" not in layer.tree
    assert layer.tree["train"]["epochs"] == 2


def test_a_rule_that_may_keep_the_initial_skill_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("theirs.yaml").write_text(FILE)
    (layer,) = read_layers("theirs.yaml", [], [("train.epochs", "3")])
    assert layer.tree["train"]["shipping"] == {"rule": "best"}
    assert "keeps the initial skill" not in capsys.readouterr().err
    read_layers("theirs.yaml", [], [("train.shipping.rule", "certain")])
    assert "train.shipping.rule certain keeps the initial skill" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [[], [("env.name", "gsm8k")]])
def test_another_environment_does_not_get_what_the_file_says_about_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[tuple[str, str]]
):
    monkeypatch.chdir(tmp_path)
    Path("theirs.yaml").write_text(
        "env: {name: searchqa, split_mode: split_dir, split_dir: questions, limit: 7, flavour: 1}"
    )
    (layer,) = read_layers("theirs.yaml", [], flags, "" if flags else "gsm8k")
    assert (layer.tree["env"], layer.tree["data"]) == ({"name": "gsm8k"}, {"limit": 7})
