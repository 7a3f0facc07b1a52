"""What a command consists of: its arguments, its example and the function that runs it.

A module of this folder defines one command as its `COMMAND`. `ludus.cli.commands` lists it with its summary. The
arguments that several commands take are defined here; a command's own are defined in its module.
"""

import argparse
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar


class Arguments(argparse.Namespace):
    """The parsed command line. A command with arguments of its own derives a class that declares their types."""

    command: str
    flags: list[tuple[str, str]]
    """The dotted flags: path and value."""
    config: list[str]
    json: bool


class RunArguments(Arguments):
    """The arguments of commands that write a run directory."""

    env: str | None
    out: str | None
    resume: bool
    print_config: bool
    quiet: bool


class Argument(NamedTuple):
    """One argument: its name, and what `ArgumentParser.add_argument` takes."""

    name: str
    options: Mapping[str, Any]


def make_argument(name: str, **options: Any) -> Argument:
    return Argument(name, options)


ENV = make_argument(
    "env",
    metavar="ENV",
    nargs="?",
    help="a name (see: ludus envs), module:Class, file.py, file.py:Class, atropos:FILE.py, hermes:FILE.py, "
    "verifiers:NAME or openenv:URL",
)
RUN = make_argument("run", metavar="RUN", help="a run directory, finished or not")
JUDGE_ENV = make_argument(
    "--env", metavar="ENV", default="", help="the environment that judges; default: the one of the run's settings"
)
CONFIG = make_argument(
    "--config",
    action="append",
    default=[],
    metavar="FILE",
    help="settings in YAML; a later file overrides earlier ones",
)
OUT = make_argument("--out", metavar="DIR", help="the run directory; default: runs/<env>-<time>")
RESUME = make_argument("--resume", action="store_true", help="continue the run in --out with its own settings")
PRINT_CONFIG = make_argument("--print-config", action="store_true", help="print the settings as YAML and stop")
QUIET = make_argument("--quiet", action="store_true", help="print only the path of the run directory")
JSON = make_argument("--json", action="store_true", help="print the result as JSON, on stdout")
PARSER = make_argument(
    "--parser", metavar="NAME", default="", help="the format of tool calls: hermes, llama3_json, … or auto"
)

SLURM = make_argument(
    "--slurm",
    metavar="BOOL",
    help="an option of Atropos' files: true needs --openai.base_url, because servers are not searched on SLURM nodes",
)
TESTING = make_argument("--testing", metavar="BOOL", help="an option of Atropos' files: only false is possible")

RUN_TAKES = (ENV, CONFIG, OUT, RESUME, PRINT_CONFIG, QUIET, JSON)
"""What `RunArguments` are read from."""
FILE_TAKES = (*RUN_TAKES, SLURM, TESTING)
"""The same for commands that run files of other systems (`atropos:FILE.py`)."""

ANY_SETTINGS = "settings: --section.setting VALUE (list them: ludus config)"
JUDGE_SETTINGS = "settings: --env.SETTING VALUE and others (list them: ludus config); the rest are the run's own"
RUN_SETTINGS = """\
settings (list them: ludus config):
  --env.limit 20 --env.group_size 4 --env.split test       which tasks, and how often
  --model.base_url URL --model.name NAME --model.api_key_var VARIABLE
  --run.concurrency 64 --budget.dollars 2 --sandbox.network true"""

A = TypeVar("A", bound=Arguments)


@dataclass(frozen=True)
class Command(Generic[A]):
    """A command. `run` returns the exit code; it may raise `LudusError`, which is printed without a traceback."""

    run: Callable[[A], int]
    example: str
    takes: Sequence[Argument] = ()
    arguments: type[A] | type[Arguments] = Arguments
    """The class of the parsed arguments."""
    settings: str = ANY_SETTINGS
    """The help on settings, for a command that takes `CONFIG`."""

    @property
    def takes_settings(self) -> bool:
        return CONFIG in self.takes


def make_parser(name: str, summary: str, command: Command[Any]) -> argparse.ArgumentParser:
    """The parser of one command."""
    epilog = "example:\n" + textwrap.indent(command.example, "  ")
    if command.takes_settings:
        epilog += f"\n\n{command.settings}"
    parser = argparse.ArgumentParser(
        prog=f"ludus {name}",
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for each in command.takes:
        parser.add_argument(each.name, **each.options)
    return parser


def split_flags(typed: Sequence[str]) -> tuple[list[str], list[tuple[str, str]], str]:
    """Separate the dotted flags (`--a.b value`, `--a.b=value`) from the other words, up to a `--`.

    Returns the other words, the flags, and the name of a flag that has no value, or "".
    """
    rest: list[str] = []
    flags: list[tuple[str, str]] = []
    words = iter(typed)
    for word in words:
        if word == "--":
            return [*rest, word, *words], flags, ""
        name, equals, value = word.partition("=")
        if not name.startswith("--") or "." not in name:
            rest.append(word)
            continue
        if not equals:
            value = next(words, None)
            if value is None or value.startswith("--"):
                return rest, flags, name[2:]
        flags.append((name[2:], value))
    return rest, flags, ""
