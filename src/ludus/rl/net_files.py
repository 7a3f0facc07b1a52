"""Reads and writes nets as Hugging Face folders, and LoRA paths in the form of peft.

A folder has `config.json` and one or more `.safetensors` files. Weights are read by the names that the families use,
which are those of `PolicyNet`. What the net cannot compute (another architecture, scaled positions, sliding windows) is
refused, because a wrong net would train without an error.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from ludus.errors import ConfigError
from ludus.rl.policy_net import LORA_TARGETS, NetShape, PolicyNet, list_lora
from ludus.rl.torch_import import Tensor

FAMILIES = {
    "llama": {},
    "mistral": {},
    "qwen2": {"attention_bias": True},
    "qwen3": {"norm_heads": True},
}
"""The architectures that `PolicyNet` computes, by `model_type`, with their variants."""
ADAPTER = "adapter_model.safetensors"


def load_net(folder: Path) -> PolicyNet:
    """Read a net.

    Raises:
        ConfigError: the folder has no such net, or one that cannot be computed here.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not (folder / "config.json").is_file() or not files:
        raise ConfigError(
            f"trainer.weights: '{folder}' is no folder with config.json and .safetensors files; give a folder in the "
            "form of Hugging Face, or 'tiny'"
        )
    shape = read_shape(_read_config(folder / "config.json"), str(folder))
    net = PolicyNet(shape)
    weights: dict[str, Tensor] = {}
    for file in files:
        weights |= _import_safetensors().load_file(str(file))
    if shape.tie_word_embeddings:
        weights.setdefault("lm_head.weight", weights.get("model.embed_tokens.weight"))
    missing, unexpected = net.load_state_dict({k: v.float() for k, v in weights.items()}, strict=False)
    if missing or unexpected:
        names = ", ".join([*missing, *unexpected][:3])
        raise ConfigError(f"trainer.weights: '{folder}' does not have the weights of its config.json: {names}")
    return net


def read_shape(config: Mapping[str, Any], where: str) -> NetShape:
    """The shape of a net from its `config.json`. Raises `ConfigError` if it cannot be computed here."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ConfigError(
            f"trainer.weights: '{where}' is of the architecture {family}; the built-in trainer has "
            f"{', '.join(FAMILIES)}. For others use another trainer (trainer.type)"
        )
    rope: dict[str, Any] = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ConfigError(f"trainer.weights: '{where}' scales its positions (rope_scaling), which is not supported")
    if config.get("sliding_window") and config.get("use_sliding_window", family == "mistral"):
        raise ConfigError(f"trainer.weights: '{where}' has a sliding window, which is not supported")
    if config.get("hidden_act", "silu") != "silu" or config.get("mlp_bias") or config.get("attention_bias"):
        raise ConfigError(f"trainer.weights: '{where}' has another activation or biases, which are not supported")
    heads = config["num_attention_heads"]
    derived = {
        "num_key_value_heads": heads,
        "head_dim": config["hidden_size"] // heads,
        "rope_theta": rope.get("rope_theta", 10_000.0),
        "tie_word_embeddings": False,
    }
    known = {field.name for field in msgspec.structs.fields(NetShape)} - {"attention_bias", "norm_heads"}
    given = {name: value for name, value in config.items() if name in known and value is not None}
    return msgspec.convert({**derived, **given, **FAMILIES[family]}, NetShape, strict=False)


def save_net(net: PolicyNet, folder: Path) -> None:
    """Write a net without LoRA paths as a folder that other programs can load."""
    shape = net.shape
    family = "qwen3" if shape.norm_heads else "qwen2" if shape.attention_bias else "llama"
    fields = {k: v for k, v in msgspec.structs.asdict(shape).items() if k not in ("norm_heads", "attention_bias")}
    names = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    known = {"model_type": family, "architectures": [names[family]], "hidden_act": "silu", "dtype": "float32"}
    config = {**known, **fields}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    weights = {name: value.detach().cpu().contiguous() for name, value in net.state_dict().items()}
    if shape.tie_word_embeddings:
        del weights["lm_head.weight"]
    _import_safetensors().save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


def save_adapter(net: PolicyNet, folder: Path, *, base: str, rank: int, alpha: float) -> None:
    """Write the LoRA paths in the form of peft, which vLLM and transformers load."""
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": list(LORA_TARGETS),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))
    weights = {
        f"base_model.model.{name}.{part}.weight": getattr(path, part).weight.detach().cpu().contiguous()
        for name, path in list_lora(net).items()
        for part in ("lora_A", "lora_B")
    }
    _import_safetensors().save_file(weights, str(folder / ADAPTER), metadata={"format": "pt"})


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except ValueError as error:
        raise ConfigError(f"trainer.weights: '{path}' cannot be read: {error}") from error


def _import_safetensors() -> Any:
    import importlib

    return cast(Any, importlib.import_module("safetensors.torch"))
