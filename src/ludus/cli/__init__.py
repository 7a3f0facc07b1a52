"""The command line: parses what was typed, runs the command, and turns errors into exit codes.

    ludus COMMAND [ENV] [options] [--section.setting VALUE]…

Dotted flags are settings (`ludus.config`); argparse reads everything else. Importing this package and printing the help
import nothing heavy: the module of a command is imported when the command is used. With `--json`, stdout has only JSON;
messages, progress and errors go to stderr.

Exit codes: 0 done · 1 nothing could be scored or learned, the model cannot be used (its server refuses the key or the
model's name, or is not there), a check failed, or a rollout met a bug · 2 settings or run directory are wrong · 3 a
budget is spent · 4 nothing moved for too long · 5 too many rollouts without a score · 130 interrupted. A traceback is a
bug in Ludus or in foreign code.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any, NoReturn

from ludus import __version__
from ludus.arguments import Arguments
from ludus.cli.commands import COMMANDS, Listing, format_commands
from ludus.command import Command, make_parser, split_flags

_HELP = """\
usage: ludus COMMAND [ENV] [options] [--section.setting VALUE]...

Run, score and train tool-using agents on tasks that can be verified.

{commands}

start here:
  ludus doctor             what works on this machine
  ludus evaluate gsm8k     run the small embedded model: no key, no account
  ludus COMMAND --help     the options of a command, with an example
  ludus --version

exit codes:
  0 done   1 nothing could be scored or learned, the model's server refused, a check failed, or there is a bug
  2 wrong settings or run directory   3 a budget is spent   4 nothing moved for too long (limits.stall_seconds)
  5 too many rollouts without a score (limits.failed_share)
  130 interrupted (Ctrl-C once: finish the running rollouts; twice: stop at once)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without some characters must not be an error
            stream.reconfigure(errors="replace")
    typed = list(sys.argv[1:] if argv is None else argv)
    if wrong := _find_bad_text(typed):
        print(f"ludus: {wrong!r} is not valid UTF-8 text: type it in UTF-8, or rename the file", file=sys.stderr)
        return 2
    words, flags, incomplete = split_flags(typed)
    listing = _find_command(words)
    from ludus.errors import LudusError

    try:
        command = listing.load()
        parser = make_parser(listing.name, listing.summary, command)
        if incomplete:
            parser.error(f"--{incomplete} needs a value: --{incomplete} VALUE")
        if flags and not command.takes_settings:
            parser.error(f"{listing.name} takes no settings, such as --{flags[0][0]}")
        arguments = _parse_words(parser, command, listing.name, words[1:])
        arguments.command, arguments.flags, arguments.typed = listing.name, flags, typed
        if flags or getattr(arguments, "config", None):
            from ludus.cli.unused_sections import check_sections

            check_sections(command, arguments)
        return command.run(arguments)
    except LudusError as error:
        from ludus.command.terminal import print_notice

        print_notice(str(error))
        return 2
    except KeyboardInterrupt:
        print("ludus: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _find_bad_text(words: Sequence[str]) -> str:
    """The first word that is not valid text; empty if all are. Python reads bytes that are not UTF-8 as surrogates."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            return word
    return ""


def _find_command(words: Sequence[str]) -> Listing:
    """The command that was typed; prints the help or an error and exits if there is none."""
    parser = argparse.ArgumentParser(prog="ludus", usage="ludus COMMAND [options]; see ludus --help", add_help=False)
    first = words[0] if words else ""
    if first in ("-h", "--help"):
        print(_HELP.format(commands=format_commands()), end="")
        parser.exit()
    if first == "--version":
        print(f"ludus {__version__}")
        parser.exit()
    by_name = {listing.name: listing for listing in COMMANDS}
    if first in by_name:
        return by_name[first]
    if not first:
        parser.error("which COMMAND? For example: ludus evaluate gsm8k")
    if first.startswith("-"):
        parser.error(f"COMMAND comes first, before {first}")
    from ludus.errors import suggest

    return parser.error(f"unknown COMMAND '{first}'; {suggest(first, list(by_name))}")


def _parse_words(parser: argparse.ArgumentParser, command: Command[Any], name: str, words: Sequence[str]) -> Arguments:
    """Parse what was typed behind the command; exits with an error if some of it is unknown. What sources add to the
    arguments is looked up only where it is needed."""
    arguments = command.arguments()
    wants_help = "-h" in words or "--help" in words
    if command.takes_sources and wants_help:
        _add_source_arguments(parser, name)
    _, unknown = parser.parse_known_args(words, arguments)
    if command.takes_sources and any(word.startswith("--") for word in unknown):
        arguments = command.arguments()
        arguments.for_sources = _add_source_arguments(parser, name)
        _, unknown = parser.parse_known_args(words, arguments)
    if getattr(arguments, "words", None) == [] and (late := _find_late_words(unknown)):
        arguments.words, unknown = late, []
    if unknown:
        _refuse_argument(parser, command, unknown[0])
    return arguments


def _add_source_arguments(parser: argparse.ArgumentParser, command: str) -> bool:
    """Add what installed sources take. Returns whether there is something."""
    from ludus.sources import list_arguments

    added = list_arguments(command)
    for each in added:
        parser.add_argument(each.name, **each.options)
    return bool(added)


def _find_late_words(unknown: Sequence[str]) -> list[str]:
    """The words of a command that argparse misses behind an option; empty if an option is among them."""
    if unknown[:1] == ["--"]:
        return list(unknown[1:])
    return [] if any(word.startswith("-") for word in unknown) else list(unknown)


def _refuse_argument(parser: argparse.ArgumentParser, command: Command[Any], word: str) -> NoReturn:
    """Exit with an error that names the package which brings an unknown option, or the option or setting that it may
    have meant."""
    if command.takes_sources:
        from ludus.sources import refuse_missing_argument

        refuse_missing_argument(word.partition("=")[0])
    meant = _find_meant(command, word.lstrip("-").partition("=")[0]) if word.startswith("--") else ""
    parser.error(f"unknown argument {word}{f'; did you mean {meant}?' if meant else ''}")


_MAIN_SETTINGS = {
    "env": "env.name",
    "model": "model.name",
    "optimizer": "optimizer.name",
    "judge": "judge.name",
    "sandbox": "sandbox.backend",
}
"""What someone means who names only the section."""


def _find_meant(command: Command[Any], name: str) -> str:
    """The option or the setting that a name is most like; empty if there is none.

    The name may be that of a setting without its section (`--group_size`), or that of a section (`--model`).
    """
    from difflib import get_close_matches

    from ludus.config import list_paths

    options = {each.name.lstrip("-"): each.name for each in command.takes if each.name.startswith("-")}
    paths = {**list_paths(), **_MAIN_SETTINGS} if command.takes_settings else {}
    known = {key: f"--{path}" for key, path in paths.items()}
    setting = name.replace("-", "_")
    if setting in known:
        return known[setting]
    for names, typed in ((options, name), (known, setting)):
        if near := get_close_matches(typed, names, n=1, cutoff=0.75):
            return names[near[0]]
    return ""
