"""Settings: a tree of small typed groups, and the one rule by which values are merged.

    defaults  <  YAML files, in the order given  <  dotted flags

Files are merged key by key; a list or a plain value replaces the earlier one. A dotted flag (`--env.group_size 4`) sets
one setting: a text field takes the flag's words as they are, any other field reads them as YAML. The `env` section has
two kinds of keys: those of `EnvSettings`, and the fields of the environment itself.

Only `config` and `cli` read settings and environment variables. A secret is named by its variable (`api_key_var`) and
read when a client is built. It is never part of a `Config`, so `to_record` cannot leak it. There is no `${VAR}` in
values. All errors in the settings are reported together, in one `ConfigError`: for each, the setting, the file, what
was expected and what was found. Whether a server, a model or a provider exists is not checked here.

Read `tree` (the settings) → `reading` (layers and checks) → `references` (what users bring) → `build_…` (from settings
to objects).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import Struct
from msgspec import inspect as kinds

from ludus.config.reading import (
    Layer,
    Problems,
    Tree,
    check_value,
    convert_tree,
    is_tree,
    list_types,
    make_flag_layer,
    merge_trees,
    read_file_layer,
)
from ludus.config.references import MODEL, PROPOSER, SANDBOX, load_env_class
from ludus.config.secrets import find_exposed
from ludus.config.tree import MAY_CHANGE, SECTIONS, Config, ModelSettings, NoModelSettings, OwnModelSettings
from ludus.encoding import to_json
from ludus.env import EnvSettings
from ludus.errors import ConfigError, suggest
from ludus.models.settings import EMBEDDED_NAMES, EmbeddedSettings
from ludus.rl.grpo_settings import GrpoSettings
from ludus.settings import Settings, get_recorded

__all__ = ["MAY_CHANGE", "Config", "assemble", "list_assumed", "list_paths", "load", "to_record", "to_yaml"]


def load(files: Sequence[Path] = (), flags: Sequence[tuple[str, str]] = ()) -> Config:
    """Read YAML files and dotted flags (path and words). Later ones win over earlier ones.

    Raises:
        ConfigError: a setting is unknown or wrong; the message lists all problems.
    """
    return assemble(
        [*(read_file_layer(path) for path in files), *(make_flag_layer(path, words) for path, words in flags)]
    )


def assemble(layers: Sequence[Layer]) -> Config:
    """Merge layers, check the result and convert it to a `Config`."""
    try:
        return _assemble(layers)
    except RecursionError:
        raise ConfigError("the settings are nested too deeply: no setting has that many levels") from None


def _assemble(layers: Sequence[Layer]) -> Config:
    tree: Tree = {}
    problems = Problems(list_paths())
    for layer in layers:
        tree = merge_trees(tree, layer.tree, lambda path, value, layer=layer: problems.add_conflict(path, value, layer))
        problems.note_source(layer)
    for name in tree:
        if name not in SECTIONS:
            problems.add_unknown("", str(name), list(SECTIONS))
    tree = {name: {} if section is None else section for name, section in tree.items()}  # an empty section is no error
    env, options = _split_env(tree.get("env", {}), problems)
    found: Tree = {"env": env, "options": options}
    for name in [name for name in SECTIONS if name != "env"]:
        section = tree.get(name, {})
        if name in _SILENT:
            section = _add_type(section, _SILENT[name])
            if is_tree(section) and (problem := _check_type(section, problems.locate(f"{name}.type"), _SILENT[name])):
                problems.found.append(problem)
                continue
        elif name == "trainer" and is_tree(section):
            section = {"type": GrpoSettings.__struct_config__.tag, **section}
        found[name] = check_value(section, SECTIONS[name], name, problems)
    problems.raise_if_any()
    config = convert_tree(found, Config, "")
    for seam, name in ((PROPOSER, config.train.proposer), (SANDBOX, config.sandbox.backend)):
        if not seam.knows(name):
            problems.found.append(seam.describe_unknown(name))
    problems.found += find_exposed(config)
    problems.raise_if_any()
    return config


def list_paths() -> dict[str, str]:
    """The full path of each setting that is directly in a section, by name."""
    found: dict[str, str] = {}
    for section, kind in SECTIONS.items():
        for group in list_types(kind):
            if isinstance(group, kinds.StructType):
                found |= {f.name: f"{section}.{f.name}" for f in group.fields if f.name not in found}
    return found


_SILENT = {
    "model": "embedded",
    "optimizer": "same",
    "claim_model": "none",
    "judge": "none",
    "second_judge": "none",
    "vision": "none",
}
"""The type of a model for which no setting is given."""


_OWN = OwnModelSettings.__struct_config__.tag
"""The type of a model of the user's own. Users write a reference instead."""
_MODEL_TYPES = tuple(
    str(option.tag)
    for option in list_types(ModelSettings)
    if isinstance(option, kinds.StructType) and option.tag != _OWN
)


def _add_type(section: Any, silent: str) -> Any:
    """The section with its type. Without any setting it is the model that needs no account. With settings that this
    one does not have, it is a server. A type that is a reference becomes a model of the user's own."""
    if not is_tree(section):
        return section
    if isinstance(kind := section.get("type"), str):
        own = kind not in _MODEL_TYPES and kind != silent and MODEL.knows(kind)
        return {**section, "type": _OwnType(_OWN), "reference": str(kind)} if own else section
    if "type" in section:
        return section
    own = _list_embedded(section.get("name")) if silent == "embedded" else set[str]()
    return {"type": "openai" if section.keys() - own else silent, **section}


def _list_embedded(name: Any) -> set[str]:
    """The settings of the embedded model. A name that it does not have is one of a server's model."""
    fields = {f.name for f in msgspec.structs.fields(EmbeddedSettings)}
    return fields if name in EMBEDDED_NAMES else fields - {"name"}


class _OwnType(str):
    """The type of a section whose type was a reference."""


def _check_type(section: Tree, setting: str, silent: str) -> str:
    """What is wrong with the type of a model; empty if nothing."""
    kind = section.get("type")
    known = [*_MODEL_TYPES, silent] if silent not in _MODEL_TYPES else [*_MODEL_TYPES]
    if isinstance(kind, _OwnType) or kind in known:
        return ""
    if not kind:
        return f"{setting}: not set; {suggest('', [*known, *MODEL.list_names()])}"
    return MODEL.describe_unknown(str(kind), setting, known, "model type")


def _split_env(section: Any, problems: "Problems") -> tuple[Any, Tree]:
    """Split the `env` section into the settings of Ludus and the environment's own fields, with their defaults."""
    if not is_tree(section):
        problems.add_wrong("env", EnvSettings, section)
        return {}, {}
    given = dict(section)
    ours = {f.name: given.pop(f.name) for f in msgspec.structs.fields(EnvSettings) if f.name in given}
    env = check_value(ours, EnvSettings, "env", problems)
    name = env.get("name", "")
    if not name or not isinstance(name, str):
        for key in given:
            problems.add_unknown("env", key, [f.name for f in msgspec.structs.fields(EnvSettings)])
        return env, {}
    kind = load_env_class(name)
    options = check_value(given, kind, "env", problems, also=EnvSettings)
    if problems.found:
        return env, {}
    try:
        return env, _list_values(convert_tree(options, kind, "env"))
    except TypeError as error:
        raise ConfigError(f"env.name: the fields of {name} must be plain values, to be recorded: {error}") from None


def list_assumed() -> Tree:
    """The settings of runs that were recorded before these settings existed, where they differ from the defaults."""
    groups = {name: kind for name, kind in SECTIONS.items() if isinstance(kind, type) and issubclass(kind, Settings)}
    return {
        name: {key: _to_plain(value) for key, value in kind.assumed_before.items()}
        for name, kind in groups.items()
        if kind.assumed_before
    }


def _to_plain(value: Any) -> Any:
    return _list_values(value) if isinstance(value, Struct) else msgspec.json.decode(to_json(value))


# ---- records ------------------------------------------------------------------------------------------------------


def to_record(config: Config) -> Tree:
    """The settings as plain values, defaults included, without secrets. Loading them gives an equal `Config`."""
    sections = {name: getattr(config, name) for name in SECTIONS}
    record = {name: _list_values(group) for name, group in sections.items() if not isinstance(group, NoModelSettings)}
    record["env"] |= config.options
    return record


def to_yaml(config: Config) -> str:
    """The settings as a file that can be given back. Unlike a record, it has values that only older runs leave out."""
    tree = to_record(config)
    for name, assumed in list_assumed().items():
        section = getattr(config, name)
        tree[name] |= {key: _to_plain(getattr(section, key)) for key in assumed}
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120)


def _list_values(group: Struct) -> Tree:
    """Settings as plain values, defaults included. Fields in `added_later` are left out at their default."""
    if isinstance(group, OwnModelSettings):
        return {"type": group.reference, "options": msgspec.json.decode(to_json(group.options))}
    info = kinds.type_info(type(group))
    assert isinstance(info, kinds.StructType)
    plain: Tree = {info.tag_field: info.tag} if info.tag_field else {}
    for name, value in get_recorded(group).items():
        plain[name] = _list_values(value) if isinstance(value, Struct) else msgspec.json.decode(to_json(value))
    return plain
