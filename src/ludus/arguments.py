"""The arguments of commands: what is parsed, and how one is declared."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Arguments(argparse.Namespace):
    """The parsed command line. A command with arguments of its own derives a class that declares their types."""

    command: str
    flags: list[tuple[str, str]]
    """The dotted flags: path and value."""
    typed: Sequence[str] = ()
    """What was typed, without the name of the program."""
    for_sources: bool = False
    """Whether one of the arguments is that of a source (`ludus.sources`)."""
    config: list[str]
    json: bool


class RunArguments(Arguments):
    """The arguments of commands that write a run directory."""

    env: str | None
    out: str | None
    resume: bool
    engine: str = ""
    print_config: bool
    quiet: bool


class Argument(NamedTuple):
    """One argument: its name, and what `ArgumentParser.add_argument` takes."""

    name: str
    options: Mapping[str, Any]


def make_argument(name: str, **options: Any) -> Argument:
    return Argument(name, options)
