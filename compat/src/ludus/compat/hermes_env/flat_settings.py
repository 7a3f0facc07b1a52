"""The flat settings of Hermes and Atropos for Ludus's own environments, so that commands that users know still work.

    ludus process swe-smith-oracle --env.use_wandb false --env.total_steps 2 --env.tool_pool_mode modal …

A name in the section `env` that the environment does not have, and that Hermes or Atropos has, is moved to the section
of Ludus that means the same. It changes nothing else: only `tool_pool_mode` stands for a whole pool, with the defaults
that Hermes gives it. What cannot mean the same is refused with a sentence. The recorded settings are Ludus's own. Files
of Hermes and Atropos have their own way in (`ludus.compat.atropos_env.file_settings`).
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ludus.compat.atropos_env.own_sections import FIELDS
from ludus.compat.hermes_env.sandboxes import FLAT_NAMES, read_sandboxes
from ludus.config.reading import Layer, Tree, is_tree, merge_trees
from ludus.config.references import load_env_class
from ludus.encoding import to_json
from ludus.env import EnvSettings
from ludus.envs import BUILTIN
from ludus.errors import ConfigError


def _split_path(path: str) -> tuple[str, str]:
    section, _, key = path.partition(".")
    return section, key


MOVED: Mapping[str, tuple[str, str]] = {
    **{names[0]: _split_path(path) for path, names in FIELDS.items()},
    "total_steps": ("env", "limit"),
    "max_num_workers": ("run", "concurrency"),
    "agent_temperature": ("sampling", "temperature"),
    "max_token_length": ("sampling", "max_tokens"),
    "extra_body": ("sampling", "extra"),
    "system_prompt": ("agent", "system"),
    "terminal_timeout": ("sandbox", "command_seconds"),
    "terminal_lifetime": ("sandbox", "lifetime_seconds"),
    "allow_network": ("sandbox", "network"),
    "require_sandbox": ("sandbox", "require_sandbox"),
    "acquire_timeout_s": ("sandbox", "acquire_seconds"),
    "wandb_name": ("tracking", "name"),
    "tokenizer_name": ("model", "tokenizer"),
    "dataset_split": ("env", "split"),
    "dataset_name": ("env", "path"),
}
"""The setting here that means the same as one there. `FIELDS` has those that also mean the same beside a file."""
REFUSED: Mapping[str, str] = {
    "batch_size": "batches are made by the trainer: leave it out",
    "steps_per_eval": "evaluate with `ludus evaluate`: leave it out",
    "rollout_server_url": "`ludus serve` takes it as --serve.server: leave it out",
    "data_path_to_save_groups": "groups are in groups.jsonl of the run: name the run with --out",
    "data_dir_to_save_evals": "results are in the run's directory: name it with --out",
    "terminal_backend": "name the backend of this system: --sandbox.backend docker, modal, ssh, …",
    "tool_call_parser": "name the parser with the model: --model.parser",
    "max_num_workers_per_node": "say how many rollouts run at once: --run.concurrency",
    "tool_pool_size": "say how many slots there may be: --sandbox.max_slots",
}
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_OPENAI = {"base_url": "base_url", "model_name": "name"}


def translate_flat(layers: Sequence[Layer]) -> list[Layer]:
    """The layers of settings with the names of Hermes and Atropos moved to where they belong.

    Raises:
        ConfigError: a value cannot be used or honoured.
    """
    own = _list_own_names(layers)
    if own is None:
        return list(layers)
    pool: Tree = {}
    made = [_translate_layer(layer, own, pool) for layer in layers]
    section = _make_pool_section(pool)
    return [Layer("the pool of Hermes", {"sandbox": section}), *made] if section else made


def _translate_layer(layer: Layer, own: Collection[str], pool: Tree) -> Layer:
    """One layer. What describes the pool of slots is added to `pool`."""
    env = layer.tree.get("env")
    rest: Tree = {name: value for name, value in layer.tree.items() if name not in ("env", "openai")}
    kept: Tree = {}
    for name, value in env.items() if is_tree(env) else ():
        if name in own:
            kept[name] = value
        elif (moved := _move(name, value, own)) is not None:
            rest = merge_trees(rest, moved)
        elif name in FLAT_NAMES:
            pool[name] = str(value) if isinstance(value, str) else value
        elif name in REFUSED:
            raise ConfigError(f"env.{name}: {REFUSED[name]}")
        else:
            kept[name] = value
    if "openai" in layer.tree:
        rest = merge_trees(rest, {"model": _read_openai(layer.tree["openai"])})
    if is_tree(env):
        rest = merge_trees({"env": kept}, rest)
    elif "env" in layer.tree:
        rest["env"] = env
    return Layer(layer.source, rest)


def _move(name: str, value: Any, own: Collection[str]) -> Tree | None:
    """The setting here that a name means; None if there is none, or if the environment does not have it."""
    if name == "use_wandb":
        return {"tracking": {"use": ["wandb"]}} if _is_true(value) else {}
    section, key = MOVED.get(name, ("", ""))
    if not section or (section == "env" and key not in own):
        return None
    return {section: {key: _name_data(str(value)) if name == "dataset_name" else value}}


def _name_data(name: str) -> str:
    """A data set by the name that Hermes gives it: OWNER/NAME is on the hub, unless there is such a path."""
    return f"hub:{name}" if _HUB_NAME.fullmatch(name) and not Path(name).exists() else name


def _list_own_names(layers: Sequence[Layer]) -> set[str] | None:
    """The names that the section `env` has for the chosen environment; None if that is not one of Ludus's own."""
    sections = [layer.tree["env"] for layer in layers if is_tree(layer.tree.get("env"))]
    name = next((str(env["name"]) for env in reversed(sections) if env.get("name")), "")
    if name not in BUILTIN:
        return None
    return {*EnvSettings.__struct_fields__, *load_env_class(name).__struct_fields__}


def _make_pool_section(flat: Tree) -> Tree:
    """The section `sandbox` for a pool of Nomad or Modal; empty for any other: its names have no effect there."""
    try:
        found = read_sandboxes(flat)
    except ConfigError as error:
        raise ConfigError(f"env.{error}") from error
    backend = str(flat.get("tool_pool_mode", "default"))
    if backend == "default":
        return {}
    profile: Tree = msgspec.json.decode(to_json(found.profile))
    profile.pop("backend", None)
    return {
        "backend": backend,
        backend: profile,
        "max_slots": found.pool.max_slots,
        "warm": found.pool.warm,
        "acquire_seconds": found.pool.acquire_seconds,
        "command_seconds": found.command_seconds,
    }


def _read_openai(given: Any) -> Tree:
    if not is_tree(given):
        raise ConfigError(
            "openai: several servers are settings of Ludus's own: see docs/configuration.md, section model"
        )
    for name in given:
        if name not in _OPENAI:
            fix = "name the variable that holds it: --model.api_key_var" if name == "api_key" else "set it in `model`"
            raise ConfigError(f"openai.{name}: {fix}")
    return {_OPENAI[name]: value for name, value in given.items()}


def _is_true(value: Any) -> bool:
    return str(value).strip().lower() in ("true", "1", "yes", "on")
