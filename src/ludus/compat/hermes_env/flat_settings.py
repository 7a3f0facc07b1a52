"""The flat settings of Hermes and Atropos for Ludus's own environments, so that commands that users know still work.

    ludus process swe-smith-oracle --env.use_wandb false --env.total_steps 2 --env.tool_pool_mode modal …

A name in the section `env` that the environment does not have, and that Hermes or Atropos has, is moved to the section
of Ludus that means the same. What cannot mean the same is refused with a sentence. The recorded settings are Ludus's
own. Files of Hermes and Atropos have their own way in (`ludus.compat.atropos_env.file_settings`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ludus.compat.hermes_env.hermes_sandboxes import FLAT_NAMES, read_sandboxes
from ludus.config.reading import Layer, Tree, is_tree, merge_trees
from ludus.config.references import load_env_class
from ludus.env import EnvSettings
from ludus.envs import BUILTIN
from ludus.errors import ConfigError
from ludus.types import to_json

MOVED: Mapping[str, tuple[str, str]] = {
    "total_steps": ("env", "limit"),
    "max_num_workers": ("run", "concurrency"),
    "max_agent_turns": ("limits", "turns"),
    "turn_budget_chars": ("limits", "turn_chars"),
    "default_result_size_chars": ("limits", "result_chars"),
    "preview_size_chars": ("limits", "preview_chars"),
    "agent_temperature": ("sampling", "temperature"),
    "max_token_length": ("sampling", "max_tokens"),
    "extra_body": ("sampling", "extra"),
    "system_prompt": ("agent", "system"),
    "enabled_toolsets": ("tools", "enabled"),
    "disabled_toolsets": ("tools", "disabled"),
    "distribution": ("tools", "distribution"),
    "terminal_timeout": ("sandbox", "command_seconds"),
    "terminal_lifetime": ("sandbox", "lifetime_seconds"),
    "wandb_name": ("tracking", "name"),
    "tokenizer_name": ("model", "tokenizer"),
    "dataset_split": ("env", "split"),
    "dataset_name": ("env", "path"),
}
"""The setting here that means the same as one there."""
REFUSED: Mapping[str, str] = {
    "batch_size": "batches are made by the trainer: leave it out",
    "steps_per_eval": "evaluate with `ludus evaluate`: leave it out",
    "rollout_server_url": "`ludus serve` takes it as --serve.url: leave it out",
    "data_path_to_save_groups": "groups are in groups.jsonl of the run: name the run with --out",
    "data_dir_to_save_evals": "results are in the run's directory: name it with --out",
    "terminal_backend": "name the backend of this system: --sandbox.backend docker, modal, ssh, …",
    "tool_call_parser": "name the parser with the model: --model.parser",
    "max_num_workers_per_node": "say how many rollouts run at once: --run.concurrency",
    "tool_pool_size": "say how many slots there may be: --sandbox.max_slots",
}
_OPENAI = {"base_url": "base_url", "model_name": "name"}


def translate_flat(layers: Sequence[Layer]) -> list[Layer]:
    """The layers of settings with the names of Hermes and Atropos moved to where they belong.

    Raises:
        ConfigError: a value cannot be used or honoured.
    """
    own = _list_own_names(layers)
    if own is None:
        return list(layers)
    flat: Tree = {}
    made: list[Layer] = []
    for source, tree in layers:
        env, rest = tree.get("env"), {key: value for key, value in tree.items() if key != "env"}
        kept: Tree = {}
        for name, value in env.items() if is_tree(env) else ():
            if name in own:
                kept[name] = value
            elif name in FLAT_NAMES:
                flat[name] = str(value) if isinstance(value, str) else value
            elif name in MOVED:
                section, key = MOVED[name]
                rest = merge_trees(rest, {section: {key: value}}) if section != "env" else rest
                kept |= {key: value} if section == "env" else {}
            elif name == "use_wandb":
                rest = merge_trees(rest, {"tracking": {"use": ["wandb"]}}) if _is_true(value) else rest
            elif name in REFUSED:
                raise ConfigError(f"env.{name}: {REFUSED[name]}")
            else:
                kept[name] = value
        if "openai" in rest:
            rest = merge_trees(rest, {"model": _read_openai(rest.pop("openai"))})
        made.append(Layer(source, {**rest, **({"env": kept if is_tree(env) else env} if "env" in tree else {})}))
    return [Layer("the sandbox settings of Hermes", _make_sandbox_tree(flat)), *made] if flat else made


def _list_own_names(layers: Sequence[Layer]) -> set[str] | None:
    """The names that the section `env` has for the chosen environment; None if that is not one of Ludus's own."""
    sections = [layer.tree["env"] for layer in layers if is_tree(layer.tree.get("env"))]
    name = next((str(env["name"]) for env in reversed(sections) if env.get("name")), "")
    if name not in BUILTIN:
        return None
    return {*EnvSettings.__struct_fields__, *load_env_class(name).__struct_fields__}


def _make_sandbox_tree(flat: Tree) -> Tree:
    try:
        found = read_sandboxes(flat)
    except ConfigError as error:
        raise ConfigError(f"env.{error}") from error
    section: Tree = {
        "network": found.network,
        "require_sandbox": found.require_sandbox,
        "acquire_seconds": found.pool.acquire_seconds,
    }
    if found.pool.max_slots is not None:
        section |= {"max_slots": found.pool.max_slots, "warm": found.pool.warm}
    backend = str(flat.get("tool_pool_mode", "default"))
    if backend != "default":
        profile: Tree = msgspec.json.decode(to_json(found.profile))
        profile.pop("backend", None)
        section |= {"backend": backend, backend: profile, "command_seconds": found.command_seconds}
    return {"sandbox": section}


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
