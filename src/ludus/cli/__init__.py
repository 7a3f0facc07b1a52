"""The command line: what is typed, what it runs, and how it ends.

    ludus COMMAND [ENV] [options] [--section.setting VALUE]…

Dotted flags are settings (`ludus.config`); everything else is argparse's. Importing this module and printing help
import nothing heavy: a command's own module is imported when it is run. Machine output (`--json`) is alone on stdout;
messages, progress and errors go to stderr.

How a command ends: 0 done · 1 done, but nothing could be scored, or a check failed · 2 the settings or the run
directory are wrong · 3 a budget is spent · 130 interrupted. A traceback is a bug in Ludus or in foreign code.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from ludus import __version__

_EPILOG = """\
how a command ends:
  0 done   1 nothing could be scored, or a check failed   2 wrong settings or run directory
  3 a budget is spent   130 interrupted (Ctrl-C once: finish what runs; twice: drop it)

start here:
  ludus doctor                     what works on this machine
  ludus evaluate gsm8k             run it on the small embedded model: no key, no account
  ludus COMMAND --help             options and an example of each command
"""

_SETTINGS = """\
settings (all of them: ludus config):
  --env.limit 20 --env.group_size 4 --env.split test       what is run
  --model.base_url URL --model.name NAME --model.api_key_var VARIABLE
  --run.concurrency 64 --budget.dollars 2 --sandbox.network true
"""


class Arguments(argparse.Namespace):
    """What was typed, after parsing. `flags` are the dotted ones: path and words."""

    command: str
    env: str | None
    config: list[str]
    out: str | None
    resume: bool
    json: bool
    print_config: bool
    quiet: bool
    run: str
    rollout: str | None
    flags: list[tuple[str, str]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    typed = list(sys.argv[1:] if argv is None else argv)
    parser = make_parser()
    rest, flags, lacking = split_flags(typed)
    if lacking:
        parser.error(f"--{lacking} needs a value: --{lacking} VALUE")
    arguments, strangers = parser.parse_known_args(rest, Arguments())
    if strangers:
        _refuse(parser, strangers)
    arguments.flags = flags
    return _run(arguments)


def split_flags(typed: Sequence[str]) -> tuple[list[str], list[tuple[str, str]], str]:
    """Take the dotted flags (`--a.b value`, `--a.b=value`) out of what was typed.

    Returns what is left, the flags, and the name of a flag that has no value, if there is one.
    """
    rest: list[str] = []
    flags: list[tuple[str, str]] = []
    words = iter(typed)
    for word in words:
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


def _refuse(parser: argparse.ArgumentParser, strangers: Sequence[str]) -> NoReturn:
    """Say what an unknown option may have been meant to be."""
    from ludus.config import homes

    first = strangers[0]
    name = first.lstrip("-").partition("=")[0].replace("-", "_")
    home = homes().get(name) if first.startswith("-") else None
    hint = f"; did you mean --{home}?" if home else ""
    parser.error(f"unknown argument {first}{hint}")


def _run(arguments: Arguments) -> int:
    from ludus.errors import LudusError

    try:
        return _command(arguments)
    except LudusError as error:
        print(f"ludus: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ludus: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _command(arguments: Arguments) -> int:
    match arguments.command:
        case "process" | "evaluate":
            from ludus.cli import batches

            return batches.run(arguments)
        case "validate" | "doctor":
            from ludus.cli import checks

            return checks.run(arguments)
        case _:
            from ludus.cli import listings

            return listings.run(arguments)


# ---- the parser ---------------------------------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ludus",
        description="Run, score and record tool-using agents on tasks that can be verified.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ludus {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _listing_commands(commands)
    _checking_commands(commands)
    _batch_commands(commands)
    return parser


_Commands = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add(commands: _Commands, name: str, summary: str, example: str, *, settings: bool) -> argparse.ArgumentParser:
    parts = (f"example:\n{example}", _SETTINGS if settings else "")
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog="\n\n".join(part for part in parts if part),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if settings:
        parser.add_argument(
            "--config", action="append", default=[], metavar="FILE", help="settings in YAML; the later file wins"
        )
    return parser


def _json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine output on stdout")


def _listing_commands(commands: _Commands) -> None:
    envs = _add(commands, "envs", "list the environments that come with Ludus", "  ludus envs", settings=False)
    _json_option(envs)
    example = "  ludus tools\n  ludus tools --tools.mcp.files.command '[my-mcp-server, --stdio]'"
    tools = _add(commands, "tools", "list toolsets, their tools, and distributions", example, settings=True)
    _json_option(tools)
    example = "  ludus show runs/demo\n  ludus show runs/demo greeting.txt      # its first rollout\n"
    example += "  ludus show runs/demo greeting.txt#2    # its second"
    show = _add(commands, "show", "print the numbers of a run, or one transcript", example, settings=False)
    show.add_argument("run", metavar="RUN", help="a run directory, finished or not")
    show.add_argument("rollout", metavar="ROLLOUT", nargs="?", help="a task id, with #N for its Nth rollout")
    _json_option(show)
    _add(commands, "config", "print every setting, as Markdown", "  ludus config > settings.md", settings=False)


def _checking_commands(commands: _Commands) -> None:
    example = "  ludus validate terminal-test\n  ludus validate my_env.py --env.split test --env.limit 50"
    validate = _add(
        commands, "validate", "prove, without a model, that an environment scores rightly", example, settings=True
    )
    validate.add_argument("env", metavar="ENV", nargs="?", help="a name (`ludus envs`), module:Class or file.py")
    _json_option(validate)
    example = "  ludus doctor\n  ludus doctor --model.base_url http://127.0.0.1:8000/v1 --model.name qwen"
    doctor = _add(commands, "doctor", "say what works on this machine, and why not", example, settings=True)
    _json_option(doctor)


def _batch_commands(commands: _Commands) -> None:
    process = "write groups of scored rollouts as JSONL, and a page to look at them"
    example = "  ludus process terminal-test --env.group_size 4 --out runs/first\n  ludus process --resume --out runs/first"
    evaluate = "write the numbers of a model on an environment: mean, pass@k, interval, cost"
    example_2 = "  ludus evaluate gsm8k --model.base_url https://api.openai.com/v1 --model.name gpt-5-mini \\\n"
    example_2 += "      --model.api_key_var OPENAI_API_KEY --env.split test --env.group_size 4"
    for parser in (
        _add(commands, "process", process, example, settings=True),
        _add(commands, "evaluate", evaluate, example_2, settings=True),
    ):
        parser.add_argument("env", metavar="ENV", nargs="?", help="a name (`ludus envs`), module:Class or file.py")
        parser.add_argument("--out", metavar="DIR", help="the run directory; default: runs/<env>-<time>")
        parser.add_argument(
            "--resume", action="store_true", help="go on with the run in --out, with its own settings as a base"
        )
        parser.add_argument("--print-config", action="store_true", help="print the settings as YAML and stop")
        parser.add_argument("--quiet", action="store_true", help="print the path of the run and nothing else")
        _json_option(parser)
