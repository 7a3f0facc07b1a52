"""What a command consists of: its arguments, its example and the function that runs it.

A command lives with its part, in `<part>/command.py` or `<part>/<name>_command.py`; those that only look are in
`ludus.cli`. `ludus.cli.commands` lists them with their summaries. The arguments that several commands take are defined
here; a command's own are defined in its module.
"""

import argparse
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ludus.arguments import Argument, Arguments, make_argument

NO_SLOT: Any = object()
"""In place of a slot, to list tools that are made but not run."""


ENV = make_argument(
    "env",
    metavar="ENV",
    nargs="?",
    help="a name (see: ludus envs), module:Class, file.py, file.py:Class, or SCHEME:NAME of another system",
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

ENGINE = make_argument(
    "--engine", metavar="TYPE", default="", help="where rollouts run: local (this process), or ray (a Ray cluster)"
)

RUN_TAKES = (ENV, CONFIG, OUT, RESUME, PRINT_CONFIG, QUIET, JSON)
"""What `RunArguments` are read from."""

ANY_SETTINGS = "settings: --section.setting VALUE (list them: ludus config)"
JUDGE_SETTINGS = "settings: --env.SETTING VALUE and others (list them: ludus config); the rest are the run's own"
RUN_SETTINGS = """\
settings (list them: ludus config):
  --env.limit 20 --env.group_size 4 --env.split test       which tasks, and how often
  --model.base_url URL --model.name NAME --model.api_key_var VARIABLE
  --run.concurrency 64 --budget.dollars 2 --sandbox.network true"""

JUDGING = frozenset(
    {"env", "limits", "sandbox", "run", "judge", "second_judge", "budget.tokens", "budget.dollars", "budget.calls"}
)
"""The sections with which rollouts are judged."""
AGENT = JUDGING | {"agent", "sampling", "tools", "vision", "budget.agent"}
"""The sections with which an agent works, without its model."""
ROLLOUTS = AGENT | {"model"}
"""The sections with which rollouts are run and judged."""

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
    uses: frozenset[str] = frozenset()
    """The sections that it uses, or settings in them (`run.out`). Others are refused as flags."""

    @property
    def takes_settings(self) -> bool:
        return CONFIG in self.takes

    @property
    def takes_sources(self) -> bool:
        """Whether it runs environments of other systems, whose sources may add arguments."""
        return RESUME in self.takes


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
