"""Translates the settings of atroposlib's command line and YAML files into those of Ludus.

    config_init of the file  <  what the command presets  <  YAML files  <  flags

`env.*` are the fields of the file's own configuration class. `openai.*` is the server, `slurm` and `testing` are its
options. They become sections of Ludus (`model`, `run`, `serve` …), below which the user's own values of those sections
come, so that both ways of writing work together (`own_sections`). A value that cannot be honoured is refused here.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import yaml

from ludus.compat.atropos_env.base_env import BaseEnv, list_server_configs
from ludus.compat.atropos_env.env_config import APIServerConfig, ServerManagerConfig, dump_config
from ludus.compat.atropos_env.own_sections import list_sampling, move_sections
from ludus.compat.atropos_env.provided_modules import is_installed
from ludus.compat.atropos_env.pydantic_import import TypeAdapter, ValidationError
from ludus.config.reading import Flag, Layer, Tree, is_tree, merge_trees
from ludus.config.tree import SECTIONS
from ludus.errors import ConfigError, suggest

KEY_VAR = "LUDUS_FILE_API_KEY"
"""The variable that holds the key of a file's first server. It is set by the command line alone, and never recorded."""
SERVER_TYPES = {"vllm": "atropos", "sglang": "sglang"}
"""Server types with exact ids, and the engines for them. `vllm` is the /generate server of Atropos' trainers."""
_WHOLE: Tree = {"ensure_scores_are_not_same": False, "include_messages": True}
PRESETS: Mapping[str, Tree] = {
    "process": _WHOLE,
    "train": {**_WHOLE, "group_size": 1},
    "headroom": {**_WHOLE, "group_size": 1},
    "audit": {**_WHOLE, "group_size": 1},
}
"""What commands set in place of the file's own defaults."""
TRAINING = ("train", "headroom", "audit")
"""Commands for which the items of a file are tasks."""
_OWN_KEYS = ("name", "split", "limit", "ids")
_FILE_SECTIONS = ("openai", "slurm", "testing", "max_n_completions", "proxy_url")


Extend = Callable[[Tree, Collection[str]], Tree]


@dataclass(frozen=True)
class FileSettings:
    """A file's settings, translated."""

    tree: Tree
    """Sections of Ludus."""
    keys: tuple[str, ...] = ()
    """The key of each server, or an empty text."""
    notes: list[str] = field(default_factory=list[str])
    """What the user should know."""


@dataclass
class _Given:
    """What layers set, by whose name it is."""

    env: Tree
    openai: Any
    options: Tree
    own: list[Layer]
    notes: list[str]


def translate(
    kind: type[BaseEnv],
    reference: str,
    file: str,
    class_name: str,
    command: str,
    layers: Sequence[Layer],
    extend: Extend = lambda settings, named: {},
    leases: bool = False,
) -> FileSettings:
    """All settings of a file's run. `reference` is the environment class that stands for the file. `extend` makes
    further sections of the file's settings, and is told which of them the file or the user has named. `leases`: the
    file leases slots, and has the tools that act in them.

    Raises:
        ConfigError: a name is unknown, or a value cannot be used or honoured.
    """
    config, servers = _read_config_init(kind)
    given = move_own(split_layers(layers), type(config), command in TRAINING, leases)
    values = {**dump_config(config), **PRESETS.get(command, {}), **_read_fields(type(config), given.env, "env")}
    made = _validate(type(config), values, "env")
    options = _read_options(given.options)
    chosen = choose_servers(servers, given.openai)
    refuse_options(options, chosen)
    settings = dump_config(made)
    if settings.get("wandb_name") is None:
        settings["wandb_name"] = kind.name or kind.__name__
    shown = [{name: value for name, value in each.items() if name != "api_key"} for each in chosen]
    env: Tree = {
        "name": reference,
        "file": file,
        "class_name": class_name,
        "settings": settings,
        "servers": shown,
        "slurm": options["slurm"],
        "testing": options["testing"],
        "group_size": settings["group_size"],
        "sampling_set": list_sampling(given.own),
    }
    keys = tuple(str(each.get("api_key") or "") for each in chosen)
    tree: Tree = {
        "env": env,
        "model": make_model_tree(chosen, settings, KEY_VAR if keys[0] else ""),
        "sampling": {"temperature": None},  # requests have what the file gives, and nothing else
        "run": {"concurrency": max(1, count_workers(settings, len(chosen)) * settings["group_size"])},
        **make_serve_trees(settings),
    }
    named = {str(name) for name in (*config.model_fields_set, *given.env)}
    tree = merge_trees(tree, extend(settings, named))
    notes = [*given.notes, *_list_notes(settings)]
    return FileSettings(merge_own(tree, given.own), keys, notes)


def name_key_var(place: int) -> str:
    """The variable that holds the key of a server. Each has its own: a key is sent to its server alone."""
    return f"{KEY_VAR}_{place}" if place else KEY_VAR


def move_own(given: _Given, kind: Any, training: bool, leases: bool) -> _Given:
    """What was given, with the sections of Ludus moved to the fields of the file's configuration class."""
    own, moved = move_sections(given.own, kind.model_fields, training, leases)
    for name in moved:
        if name in given.env and str(given.env[name]) != str(moved[name]):
            raise ConfigError(f"env.{name}: it is set twice, to {given.env[name]} and to {moved[name]}: leave one out")
    return replace(given, env={**given.env, **moved}, own=own)


def change_resumed(
    kind: type[BaseEnv], record: Tree, layers: Sequence[Layer], training: bool = False, leases: bool = False
) -> tuple[Tree, tuple[str, ...]]:
    """The settings of a run that is resumed, and the keys of its servers. Of the file's own settings, only the number
    of groups and the server may change."""
    config, servers = _read_config_init(kind)
    given = move_own(split_layers(layers), type(config), training, leases)
    env = record["env"]
    settings = {**env["settings"], **_read_fields(type(config), given.env, "env")}
    if given.options:
        settings_name = next(iter(given.options))
        raise ConfigError(f"{settings_name}: a run that is resumed keeps it; leave it out")
    known = [APIServerConfig(**each) for each in env["servers"]] or servers
    chosen = choose_servers(known, given.openai)
    own = [str(getattr(each, "api_key", "") or "") for each in servers]
    own += [""] * (len(chosen) - len(own))
    keys = tuple(str(each.get("api_key") or key) for each, key in zip(chosen, own, strict=False))
    shown = [{name: value for name, value in each.items() if name != "api_key"} for each in chosen]
    tree = {**record, "env": {**env, "settings": settings, "servers": shown}}
    if given.openai and is_tree(record.get("model")) and record["model"].get("type") == "openai":
        tree["model"] = {**record["model"], "base_url": chosen[0]["base_url"]}
    return merge_own(tree, given.own), keys


def split_layers(layers: Sequence[Layer]) -> _Given:
    """Separate the names of atroposlib from those of Ludus. An unknown section is reported, not refused."""
    given = _Given({}, {}, {}, [], [])
    for source, tree in layers:
        own: Tree = {}
        for name, value in tree.items():
            if name == "env" and is_tree(value):
                mine = {key: each for key, each in value.items() if key in _OWN_KEYS}
                _refuse_own(mine, source)
                limit = {"total_steps": mine["limit"]} if "limit" in mine else {}
                given.env |= limit | {key: each for key, each in value.items() if key not in _OWN_KEYS}
            elif name == "openai":
                value = _drop_unknown(value, source, given.notes)
                given.openai = merge_trees(given.openai, value) if is_tree(value) and is_tree(given.openai) else value
            elif name in _FILE_SECTIONS:
                given.options[name] = value
            elif name in SECTIONS:
                own[name] = value
            elif source.startswith("--"):
                raise ConfigError(f"{source}: unknown setting; {suggest(name, [*SECTIONS, 'openai'])}")
            else:
                given.notes.append(f"{source}: the section '{name}' is not known here and has no effect")
        if own:
            given.own.append(Layer(source, own))
    return given


def _drop_unknown(openai: Any, source: str, notes: list[str]) -> Any:
    """The servers of a YAML file without the fields that atroposlib ignores (`weight`). They are told. A flag for one
    is refused."""
    if source.startswith("--"):
        return openai
    for server in cast(list[Any], openai) if isinstance(openai, list) else [openai]:
        for name in [name for name in server if name not in APIServerConfig.model_fields] if is_tree(server) else ():
            notes.append(f"{source}: openai.{name} is not known here and has no effect")
    if isinstance(openai, list):
        return [_keep_known(each) for each in cast(list[Any], openai)]
    return _keep_known(openai)


def _keep_known(server: Any) -> Any:
    if not is_tree(server):
        raise ConfigError(f"openai: a server is a mapping with base_url and model_name, got {server!r}")
    return {name: value for name, value in server.items() if name in APIServerConfig.model_fields}


def _refuse_own(mine: Tree, source: str) -> None:
    for name in ("split", "ids"):
        if name in mine:
            raise ConfigError(f"{source}: env.{name} is not for a file that chooses its own items: leave it out")


def merge_own(tree: Tree, own: Sequence[Layer]) -> Tree:
    """The translated sections below the user's own. Settings of two types of a model do not mix."""
    typed = {name for layer in own for name, section in layer.tree.items() if is_tree(section) and "type" in section}
    merged: Tree = {name: section for name, section in tree.items() if name not in typed}
    for layer in own:
        merged = merge_trees(merged, layer.tree)
    return merged


# ---- the file's configuration -------------------------------------------------------------------------------------


def _read_config_init(kind: type[BaseEnv]) -> tuple[Any, list[Any]]:
    try:
        found = kind.config_init()
        config, servers = found
    except (Exception, SystemExit) as error:  # foreign code
        raise ConfigError(f"{kind.__name__}.config_init failed: {type(error).__name__}: {error}") from error
    return config, list_server_configs(servers)


def _read_fields(kind: Any, given: Tree, section: str) -> Tree:
    """The values of a section, read as the fields' types. A flag may be written as text, as YAML or JSON,
    and a list with commas."""
    fields: Mapping[str, Any] = kind.model_fields
    found: Tree = {}
    for name, value in given.items():
        if name not in fields:
            place = f"{section}.{name}" if section else str(name)
            raise ConfigError(f"{place}: unknown setting; {suggest(str(name), list(fields))}")
        found[name] = _read_flag(value, fields[name].annotation) if isinstance(value, Flag) else value
    return found


def _read_flag(words: Flag, annotation: Any) -> Any:
    text = str(words)
    if text == "None":
        return None
    if _fits(text, annotation):
        return TypeAdapter(annotation).validate_python(text)
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        found = text
    listed = [word.strip() for word in text.split(",")]
    return listed if not _fits(found, annotation) and _fits(listed, annotation) else found


def _fits(value: Any, annotation: Any) -> bool:
    try:
        TypeAdapter(annotation).validate_python(value)
    except ValidationError:
        return False
    return True


def _validate(kind: Any, values: Tree, section: str) -> Any:
    try:
        return kind(**values)
    except ValidationError as error:
        lines = [
            f"{section}.{'.'.join(map(str, each['loc']))}: {each['msg']}, got {each['input']!r}"
            for each in error.errors()
        ]
        raise ConfigError("\n".join(lines)) from None


def _read_options(given: Tree) -> Tree:
    values = _read_fields(ServerManagerConfig, given, "")
    return dump_config(_validate(ServerManagerConfig, values, "settings"))


# ---- servers ------------------------------------------------------------------------------------------------------


def choose_servers(servers: Sequence[Any], openai: Any) -> list[Tree]:
    """The server configs of a run: a list of two or more of a YAML file, else those of `config_init`, of which a
    single one is changed by `openai.*`."""
    if isinstance(openai, list):
        listed = [_read_fields(APIServerConfig, each, "openai") for each in cast(list[Tree], openai)]
        if len(listed) > 1:
            return [dump_config(_validate(APIServerConfig, each, "openai")) for each in listed]
        openai = listed[0] if listed else {}
    changes = _read_fields(APIServerConfig, openai or {}, "openai")
    found = [dump_config(each) for each in servers] or [{}]
    if len(found) > 1:
        if changes:
            raise ConfigError(
                f"openai.{next(iter(changes))}: the file has {len(found)} servers, and this does not say which: list "
                "them under openai: in a YAML file, or use --model.…"
            )
        return [dump_config(_validate(APIServerConfig, each, "openai")) for each in found]
    return [dump_config(_validate(APIServerConfig, {**found[0], **changes}, "openai"))]


def refuse_options(options: Tree, servers: Sequence[Tree]) -> None:
    """Raise `ConfigError` for what cannot be honoured."""
    if options["testing"]:
        raise ConfigError(
            "testing: canned replies come from a script here: --model.type scripted --model.script FILE:NAME"
        )
    if options["proxy_url"]:
        raise ConfigError("proxy_url: exact ids come from the model itself: use --openai.server_type vllm or sglang")
    for server in servers:
        if options["slurm"] and not server.get("base_url"):
            raise ConfigError("slurm: servers are not searched on SLURM nodes: name them with --openai.base_url")
        if server["server_type"] not in ("openai", *SERVER_TYPES):
            raise ConfigError(
                f"openai.server_type is '{server['server_type']}': use openai, vllm or sglang "
                "(TRL's server gives no logprobs)"
            )


def make_model_tree(servers: Sequence[Tree], settings: Mapping[str, Any], key_var: str = "") -> Tree:
    """The `model` section of a file's first server. Others of the same model are its further addresses."""
    first = servers[0]
    same = [each for each in servers[1:] if each["model_name"] == first["model_name"]]
    seconds = float(first["timeout"])
    address = first.get("base_url") or ""
    tree: Tree = {
        "type": "openai",
        "base_url": address or "http://localhost:9004/v1",
        "name": first["model_name"],
        "servers": [str(each["base_url"]) for each in same]
        if address
        else [f"http://localhost:{port}/v1" for port in range(9005, 9008)],
        "api_key_var": key_var,
        "concurrency": first["num_max_requests_at_once"],
        "timeouts": {"silence": seconds, "total": seconds},
    }
    if first["server_type"] in SERVER_TYPES:
        named = first.get("tokenizer_name") or "none"
        tree |= {
            "mode": "token",
            "engine": SERVER_TYPES[first["server_type"]],
            "tokenizer": settings["tokenizer_name"] if named == "none" else named,
            "parser": settings.get("tool_call_parser") or "auto",
        }
    return tree


# ---- sections -----------------------------------------------------------------------------------------------------


def count_workers(settings: Mapping[str, Any], servers: int) -> int:
    """How many groups run at once."""
    most = settings["max_num_workers"]
    return most if most > 0 else max(1, settings["max_num_workers_per_node"] * servers)


def make_serve_trees(settings: Mapping[str, Any]) -> Tree:
    """The sections of `ludus serve`, and the tracker."""
    offpolicy, weight = settings["max_batches_offpolicy"], settings["inference_weight"]
    if offpolicy < 1:
        raise ConfigError("env.max_batches_offpolicy: at least 1: without a limit, groups grow too old to train on")
    handling = {"STOP_TRAIN": "stop", "LIMIT_TRAIN": "limit", "NONE": "none"}
    serve: Tree = {
        "server": settings["rollout_server_url"],
        "name": settings["wandb_name"] or "",
        "weight": weight if weight > 0 else 1.0,
        "min_batch_allocation": settings["min_batch_allocation"],
        "max_batches_offpolicy": offpolicy,
        "steps": settings["total_steps"] if settings["total_steps"] > 0 else None,
        "eval_every": max(0, settings["steps_per_eval"]),
        "eval_handling": handling[settings["eval_handling"]],
        "eval_limit_ratio": settings["eval_limit_ratio"],
    }
    tracking = {"use": ["wandb"], "name": settings["wandb_name"] or ""} if uses_wandb(settings) else {}
    return {"serve": serve, **({"tracking": tracking} if tracking else {})}


def uses_wandb(settings: Mapping[str, Any]) -> bool:
    return bool(settings["use_wandb"]) and is_installed("wandb")


def _list_notes(settings: Mapping[str, Any]) -> list[str]:
    if settings["use_wandb"] and not is_installed("wandb"):
        return ["use_wandb is true, but wandb is not installed: metrics are in metrics.jsonl alone"]
    return []
