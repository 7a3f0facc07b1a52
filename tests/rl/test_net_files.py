"""Files of nets: what is written is read back, and what cannot be computed is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.torch_kit import make_net, make_trainer, torch

from ludus.errors import ConfigError
from ludus.rl.net_files import ADAPTER, load_net, read_shape, save_net

CONFIG = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}


@pytest.mark.parametrize(
    "shape", [{}, {"tie_word_embeddings": False}, {"attention_bias": True}, {"norm_heads": True, "head_dim": 16}]
)
def test_a_net_is_read_as_it_was_written(tmp_path: Path, shape: dict[str, Any]):
    net = make_net(**shape)
    save_net(net, tmp_path)
    found = load_net(tmp_path)
    assert found.shape == net.shape
    assert all(torch.equal(value, found.state_dict()[name]) for name, value in net.state_dict().items())


def test_what_a_config_leaves_out_is_derived():
    shape = read_shape(CONFIG, "x")
    assert (shape.num_key_value_heads, shape.head_dim, shape.tie_word_embeddings) == (4, 8, False)
    assert read_shape({**CONFIG, "rope_parameters": {"rope_theta": 5e5}}, "x").rope_theta == 5e5
    assert read_shape({**CONFIG, "model_type": "qwen2"}, "x").attention_bias


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mamba"}, "architecture mamba"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding window"),
        ({"hidden_act": "gelu"}, "activation"),
        ({"attention_bias": True}, "biases"),
    ],
)
def test_what_cannot_be_computed_is_refused(changes: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        read_shape({**CONFIG, **changes}, "x")


def test_folders_that_are_no_net_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="'tiny'"):
        load_net(tmp_path)
    save_net(make_net(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ConfigError, match="does not have the weights"):
        load_net(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_net(tmp_path)


def test_an_adapter_has_the_form_of_peft(tmp_path: Path):
    from safetensors.torch import load_file  # pyright: ignore

    make_trainer(lora_rank=4, lora_alpha=8.0).save_adapter(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 4, 8.0)
    weights = load_file(str(tmp_path / ADAPTER))
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    assert weights[f"{name}.lora_A.weight"].shape == (4, 32)
    assert weights[f"{name}.lora_B.weight"].shape == (32, 4)
    assert len(weights) == 2 * 2 * 7
