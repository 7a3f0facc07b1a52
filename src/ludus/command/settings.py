"""The settings of a command: flags, files, and those of a run that is resumed or judged again."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ludus.arguments import Arguments, RunArguments
from ludus.command.terminal import print_notice
from ludus.config import Config, assemble, list_assumed
from ludus.config.reading import Layer, is_tree, make_flag_layer, read_file_layer
from ludus.config.references import load_env_class
from ludus.config.tree import CONTENT, SECTIONS
from ludus.config.unused import refuse_unused
from ludus.env import EnvSettings
from ludus.errors import ConfigError
from ludus.models.settings import EmbeddedSettings
from ludus.run_info import refuse_other_kind
from ludus.runner import RunSettings
from ludus.sources import Source, find_claiming, find_source, name_env, refuse_other_arguments, translate_names
from ludus.store import CONFIG, make_safe_name, refuse_other_system


def read_settings(arguments: RunArguments) -> Config:
    """The settings of a command. With `--resume`, the run's own settings are below all others. The source of the
    environment reads them in its own way, if it has one."""
    source = find_run_source(arguments)
    if source is not None and (config := source.read_settings(arguments)) is not None:
        return config
    return read_own_settings(arguments)


def find_run_source(arguments: RunArguments) -> Source | None:
    """The source of a command's environment; None if it is one of Ludus's own or the user's."""
    source = find_claiming(arguments) if arguments.for_sources else None
    source = source or find_source(find_env_name(arguments))
    if arguments.for_sources:
        refuse_other_arguments(arguments, source)
    return source


def find_env_name(arguments: RunArguments) -> str:
    """The environment that a command names, in any of its settings or in those of the run that it resumes."""
    if arguments.env:
        return arguments.env
    trees = [make_flag_layer(*flag).tree for flag in arguments.flags]
    trees += [read_file_layer(Path(path)).tree for path in arguments.config]
    record = Path(arguments.out or "", CONFIG)
    if arguments.out and record.is_file():
        trees.append(read_file_layer(record).tree)
    sections = (tree.get("env") for tree in trees)
    return next((str(section["name"]) for section in sections if is_tree(section) and section.get("name")), "")


def read_own_settings(arguments: RunArguments, base: Sequence[Layer] = ()) -> Config:
    """The settings of a command, over those of `base`."""
    flags = list(arguments.flags)
    if arguments.env:
        flags.append(("env.name", arguments.env))
    if arguments.out:
        flags.append(("run.out", arguments.out))
    if arguments.resume:
        flags.append(("run.resume", "true"))
    if arguments.engine:
        flags.append(("engine.type", arguments.engine))
    given = [
        *base,
        *map(read_file_layer, map(Path, arguments.config)),
        *(make_flag_layer(path, words) for path, words in flags),
    ]
    layers = [_name_env(layer) for layer in given]
    if not arguments.resume:
        config = _assemble(layers)
        refuse_unused(config, layers[len(base) :])
        if config.run.resume:  # as a setting
            _read_run_settings(Path(config.run.out), arguments)
        return config
    run = [Layer(layer.source, {"run": layer.tree["run"]}) for layer in layers if "run" in layer.tree]
    out = arguments.out or _assemble(run).run.out
    if not out:
        raise ConfigError("run.out: which run should be resumed? Name its directory with --out")
    config = _assemble([*_read_run_settings(Path(out), arguments), *layers])
    refuse_unused(config, layers[len(base) :])
    return config


def _name_env(layer: Layer) -> Layer:
    """The layer with an environment of another system (`SCHEME:NAME`) in Ludus's own terms."""
    env = layer.tree.get("env")
    if not is_tree(env) or ":" not in str(env.get("name", "")):
        return layer
    named = {path.removeprefix("env."): value for path, value in name_env(str(env["name"]))}
    return Layer(layer.source, {**layer.tree, "env": {**env, **named}})


def _assemble(layers: Sequence[Layer]) -> Config:
    """The settings of layers. Names of other systems are translated only where there are unknown ones."""
    try:
        return assemble(layers)
    except ConfigError:
        translated = translate_names(layers)
        if translated is None:
            raise
        return assemble(translated)


def _read_run_settings(out: Path, arguments: RunArguments) -> list[Layer]:
    """The settings of the run in `out`; none if there is no run. Raises `ConfigError` if it is a run of another command
    or of another environment, and `StoreError` if it is one of another system."""
    env = arguments.env
    refuse_other_system(out)
    if not (out / CONFIG).is_file():
        return []
    source, tree = read_file_layer(out / CONFIG)  # JSON is YAML
    refuse_other_kind(out, tree, arguments.command)
    before = tree["env"].get("name") if is_tree(tree.get("env")) else None
    if env and before and dict(name_env(env))["env.name"] != before:
        raise ConfigError(f"{out} is a run of {before}, not of {env}: leave the environment out, or name another --out")
    return [Layer(source, list_assumed()), Layer(source, {name: tree[name] for name in tree if name != CONTENT})]


def read_recorded_settings(arguments: Arguments, recorded: Mapping[str, Any], env: str) -> Config:
    """The settings of a run, and over them those of a command that judges it. If the command names another environment
    (`env`), the options of the run's own do not apply. Where the run ran does not matter."""
    named = name_env(env) if env else []
    flags = [*arguments.flags, *named]
    sections = {name: value for name, value in recorded.items() if name in SECTIONS and name != "engine"}
    if env and is_tree(own := sections.get("env")) and own.get("name") != dict(named)["env.name"]:
        sections["env"] = {name: own[name] for name in EnvSettings.__struct_fields__ if name in own}
    return assemble(
        [
            Layer("the run's settings", sections),
            *map(read_file_layer, map(Path, arguments.config)),
            *(make_flag_layer(name, words) for name, words in flags),
        ]
    )


def recall_number(config: Config, name: str, given: int | None, usual: int) -> int:
    """A number that is an argument, not a setting: the one that was given, else that of the run that is resumed, as its
    record has it under `name`, else the usual one."""
    record = Path(config.run.out, CONFIG)
    if given is not None or not config.run.resume or not record.is_file():
        return usual if given is None else given
    content = read_file_layer(record).tree.get(CONTENT)
    return int(content[name]) if is_tree(content) and name in content else usual


def print_model_hint(config: Config) -> None:
    """Say so if the settings leave the choice of the model open."""
    if isinstance(config.model, EmbeddedSettings) and config.model.name == "smollm2-135m":
        print_notice(
            "model: the small embedded one, for trials. One that can do something (1.1 GB): --model.name "
            "qwen2.5-coder-1.5b. One on a server: --model.base_url URL --model.name NAME"
        )


def require_env(config: Config, example: str) -> None:
    """Raise `ConfigError` if the settings name no environment."""
    if not config.env.name and config.run.resume:
        raise ConfigError(f"{config.run.out or '--out'}: there is no run to resume; to start one, leave out --resume")
    if not config.env.name:
        raise ConfigError(f"which environment? For example: {example} (see: ludus envs)")


def refuse_batch_settings(config: Config, aim: str, instead: Mapping[str, str]) -> None:
    """Raise `ConfigError` for settings that only `process` and `evaluate` use. `instead` has what to use, by name."""
    unset = {"env": EnvSettings(), "run": RunSettings()}
    for name, other in instead.items():
        section, _, key = name.partition(".")
        if getattr(getattr(config, section), key) != getattr(unset[section], key):
            raise ConfigError(f"{name} is for process and evaluate; {aim}, use {other}")


def refuse_suspects(config: Config, instead: str) -> None:
    """Raise `ConfigError` if `run.suspects` is set for a command that makes no training data."""
    if config.run.suspects != RunSettings().suspects:
        raise ConfigError(f"run.suspects is for training data; {instead}: leave it out")


def choose_out(config: Config) -> Path:
    """The run directory: `run.out`, or a new one that is named after the environment and the time."""
    if config.run.out:
        return Path(config.run.out)
    name = make_safe_name(load_env_class(config.env.name).name)
    base = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (base.with_name(f"{base.name}-{n}") for n in range(2, 1000))
    return next(path for path in (base, *others) if not path.exists())


def set_out(config: Config) -> Config:
    """The settings with the chosen run directory in `run.out`."""
    return msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, out=str(choose_out(config))))
