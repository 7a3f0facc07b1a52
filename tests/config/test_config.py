"""Settings: one precedence rule, problems in words, nothing secret anywhere."""

from pathlib import Path

import pytest
import yaml
from tests.config_kit import FULL, find_problem, write_text

from ludus.config import load, to_record, to_yaml
from ludus.config.build_agent import build_env
from ludus.config.tree import SECTIONS
from ludus.envs.gsm8k import Gsm8k
from ludus.models.settings import AnthropicSettings, EmbeddedSettings, OpenAISettings
from ludus.types import Sampling


def test_defaults_then_files_in_order_then_flags(tmp_path: Path):
    first = write_text(tmp_path, "run: {seed: 1, retries: 5}\nenv: {name: gsm8k, split: test}", "1.yaml")
    second = write_text(tmp_path, "run: {seed: 2}\nsampling: {temperature: 0}", "2.yaml")
    found = load([first, second], [("run.seed", "3"), ("run.seed", "4")])
    assert (found.run.seed, found.run.retries, found.run.concurrency) == (4, 5, 16)
    assert load([second, first]).run.seed == 1
    assert (found.env.split, found.sampling.temperature) == ("test", 0.0)


def test_the_environment_s_fields_are_in_the_same_section():
    found = load([], [("env.name", "gsm8k"), ("env.group_size", "4"), ("env.path", "12")])
    assert (found.env.group_size, found.options) == (4, {"path": "12"})
    assert build_env(found) == Gsm8k(path="12")


def test_the_model_s_type_is_embedded_by_default():
    assert isinstance(load().model, EmbeddedSettings)
    assert isinstance(load([], [("model.name", "x")]).model, OpenAISettings)
    assert load([], [("model.name", "qwen2.5-coder-1.5b")]).model == EmbeddedSettings(name="qwen2.5-coder-1.5b")
    server = load([], [("model.name", "qwen2.5-coder-1.5b"), ("model.base_url", "http://127.0.0.1:9/v1")])
    assert isinstance(server.model, OpenAISettings)
    assert isinstance(load([], [("model.type", "anthropic")]).model, AnthropicSettings)


def test_the_kind_of_a_model_is_a_near_name_too():
    assert find_problem(model__tpye="openai") == "model.tpye: unknown setting; did you mean 'model.type'?"
    price = find_problem(model__type="scripted", model__script="m.py:f", model__price={"prompt": 1})
    assert price.startswith("model.price: unknown setting; another model.type has it; this one knows script")


def test_an_unknown_option_of_the_environment_is_refused_with_the_nearest_name():
    assert find_problem(env__name="gsm8k", env__pth="x") == "env.pth: unknown setting; did you mean 'env.path'?"
    assert find_problem(env__name="terminal-test", env__path="x").startswith("env.path: unknown setting; ")


def test_options_without_an_environment_are_unknown():
    assert "env.path: unknown setting" in find_problem(env__path="x")


def test_values_are_not_interpolated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SEED", "5")
    assert load([], [("env.split", "${SEED}")]).env.split == "${SEED}"


@pytest.mark.parametrize("flags", [[], FULL, [("model.type", "anthropic")], [("model.type", "azure")]])
def test_printed_settings_load_to_the_same(tmp_path: Path, flags: list[tuple[str, str]]):
    found = load([], flags)
    path = write_text(tmp_path, to_yaml(found))
    assert load([path]) == found
    assert to_yaml(load([path])) == to_yaml(found)


def test_the_record_leaves_nothing_out():
    record = to_record(load([], FULL))
    silent = {"claim_model", "judge", "second_judge", "vision"}  # in the record only if there is one
    assert set(record) == set(SECTIONS) - silent
    flags = [("judge.name", "j"), ("second_judge.type", "anthropic"), ("vision.name", "v"), ("claim_model.name", "c")]
    judged = load([], [*FULL, *flags])
    assert set(to_record(judged)) == set(SECTIONS)
    assert record["env"]["path"] == "items.jsonl"
    assert record["model"]["type"] == "openai"
    assert record["sampling"]["temperature"] == Sampling().temperature
    assert yaml.safe_load(to_yaml(load([], FULL))) == record
