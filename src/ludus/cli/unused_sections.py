"""Settings of other commands: refused as flags, told where a file has them.

A command declares the sections that it uses (`Command.uses`). A flag of another section would have no effect, so it is
refused. A file may serve several commands, so what it has for others is only named; defaults are not even that.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ludus.arguments import Arguments, RunArguments
from ludus.cli.commands import COMMANDS
from ludus.command import Command
from ludus.command.settings import find_run_source
from ludus.command.terminal import print_notice
from ludus.config import Config, assemble
from ludus.config.reading import Layer, read_file_layer
from ludus.config.tree import SECTIONS
from ludus.config.unused import list_leaves
from ludus.errors import ConfigError


def check_sections(command: Command[Any], arguments: Arguments) -> None:
    """Raise `ConfigError` for a flag that the command does not use, and name what it does not use of its files."""
    if getattr(arguments, "print_config", False):  # settings for any command are put together
        return
    unused = [path for path, _ in arguments.flags if not is_used(path, command.uses)]
    if unused and isinstance(arguments, RunArguments) and (source := find_run_source(arguments)) is not None:
        unused = [path for path in unused if not is_used(path, source.uses.get(arguments.command, frozenset()))]
    if unused:
        raise ConfigError(
            "\n".join(f"--{path} has no effect on `ludus {arguments.command}`: {_name_users(path)}" for path in unused)
        )
    for file in arguments.config:
        if others := list(_find_unused(read_file_layer(Path(file)), command.uses)):
            print_notice(f"{file}: `ludus {arguments.command}` does not use {', '.join(others)}")


def is_used(path: str, uses: frozenset[str]) -> bool:
    """Whether a setting is one of those that are used, is in one of them, or has one of them. One of a section that
    Ludus does not have may be a name of another system: reading it decides."""
    if path.partition(".")[0] not in SECTIONS:
        return True
    return any(f"{path}.".startswith(f"{used}.") or used.startswith(f"{path}.") for used in uses)


def _name_users(path: str) -> str:
    users = [each.name for each in COMMANDS if is_used(path, each.load().uses)]
    return f"it is for {', '.join(users)}" if users else "nothing uses it"


def _find_unused(layer: Layer, uses: frozenset[str]) -> Iterator[str]:
    """The sections of a file, or settings of a section that is used in part, that are not used and not defaults."""
    for name, section in layer.tree.items():
        unused = [path for path in list_leaves({name: section}) if not is_used(path, uses)]
        if unused and not _is_default(name, section):
            yield from unused if is_used(name, uses) else [name]


def _is_default(name: str, section: Any) -> bool:
    try:
        return getattr(assemble([Layer("", {name: section})]), name) == getattr(Config(), name)
    except ConfigError:  # reading all settings together says what is wrong, or takes it for that of another system
        return False
