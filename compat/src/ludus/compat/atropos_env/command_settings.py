"""The settings of a command that runs a file: `ludus process atropos:FILE.py …`.

The names of the file's system are translated before settings are built (`file_settings`). The recorded settings are
Ludus's own, so that a run is resumed like any other. The keys of the file's servers are in variables, where models look
for them, and never on record.
"""

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from ludus.arguments import RunArguments
from ludus.command.settings import find_env_name
from ludus.command.terminal import print_notice
from ludus.compat.atropos_env.base_env import BaseEnv
from ludus.compat.atropos_env.file_env import AtroposFileEnv
from ludus.compat.atropos_env.file_settings import TRAINING, Extend, change_resumed, name_key_var, translate
from ludus.config import Config, assemble
from ludus.config.reading import Layer, make_flag_layer, read_file_layer
from ludus.config.references import load_env_class
from ludus.config.tree import CONTENT
from ludus.run_info import refuse_other_kind
from ludus.sources import split_scheme
from ludus.store import CONFIG

OPTIONS = ("slurm", "testing")
"""Options of Atropos' commands without a section."""


def read_file_settings(arguments: RunArguments, reference: str, extend: Extend) -> Config | None:
    """The settings of a file's run; None if they are Ludus's own already, as `--print-config` prints them. `reference`:
    the environment class that stands for the file. `extend` makes sections that only the file's system has."""
    record = Path(arguments.out or "", CONFIG)
    if arguments.resume and record.is_file():
        return _read_resumed(arguments, record)
    scheme, name = split_scheme(find_env_name(arguments))
    if not scheme:
        return None
    file, class_name = split_name(name)
    with _load(reference, file, class_name) as (kind, path, leases):
        layers = _list_layers(arguments)
        found = translate(kind, reference, str(path), class_name, arguments.command, layers, extend, leases)
    for note in found.notes:
        print_notice(note)
    set_keys(found.keys)
    run = {"out": arguments.out} if arguments.out else {}
    return assemble([Layer(file, found.tree), Layer("--out", {"run": {**run, "resume": arguments.resume}})])


def _read_resumed(arguments: RunArguments, record: Path) -> Config:
    """The settings of a run that is resumed: its own, and what may change."""
    source, tree = read_file_layer(record)
    refuse_other_kind(Path(arguments.out or ""), tree, arguments.command)
    tree.pop(CONTENT, None)
    env = tree["env"]
    with _load(env["name"], env["file"], env.get("class_name", "")) as (kind, _, leases):
        training = arguments.command in TRAINING
        changed, keys = change_resumed(kind, tree, _list_layers(arguments), training, leases)
    set_keys(keys)
    own = {"run": {"out": arguments.out, "resume": True}}
    return assemble([Layer(source, changed), Layer("--resume", own)])


@contextmanager
def _load(reference: str, file: str, class_name: str) -> Generator[tuple[type[BaseEnv], Path, bool]]:
    """The class of a file, where the file is, and whether it leases slots. What the file prints is no output of the
    command."""
    kind = load_env_class(reference)
    assert issubclass(kind, AtroposFileEnv)
    with redirect_stdout(sys.stderr):
        loaded = kind(file=file, class_name=class_name).load_file()
        try:
            yield loaded.kind, loaded.path, kind.leased is not None
        finally:
            loaded.close()


def _list_layers(arguments: RunArguments) -> list[Layer]:
    given = {name: getattr(arguments, name, None) for name in OPTIONS}
    return [
        *(read_file_layer(Path(path)) for path in arguments.config),
        *(make_flag_layer(*flag) for flag in arguments.flags),
        *(make_flag_layer(name, words) for name, words in given.items() if words is not None),
    ]


def split_name(name: str) -> tuple[str, str]:
    """The file and the class of `FILE.py` or `FILE.py:Class`."""
    file, colon, kind = name.rpartition(":")
    return (file, kind) if colon and file.endswith(".py") else (name, "")


# ---- keys ---------------------------------------------------------------------------------------------------------


def set_keys(keys: Sequence[str]) -> None:
    """Put the keys of a file's servers into variables."""
    for place, key in enumerate(keys):
        if key:
            os.environ[name_key_var(place)] = key


def read_keys(servers: int) -> tuple[str, ...]:
    """The keys of a file's servers; empty texts where there is none."""
    return tuple(os.environ.get(name_key_var(place), "") for place in range(max(1, servers)))
