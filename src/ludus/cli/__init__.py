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
import textwrap
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from typing import Any, NamedTuple, NoReturn

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


_FLAGS = "settings: --section.setting VALUE (all of them: ludus config)\n"

_TRAINING = """\
settings (all of them: ludus config; what they mean: docs/skill-training.md):
  --data.pool train,test --data.ratio 2:1:7                which tasks train, decide and judge
  --model.base_url URL --model.name NAME                   the agent
  --optimizer.base_url URL --optimizer.name NAME           who proposes changes
  --train.epochs 4 --train.batch_size 40 --train.edit_budget 4 --agent.skill SKILL.md --budget.dollars 2
"""


_DOCTOR = """\
ludus doctor
ludus doctor --model.base_url http://127.0.0.1:8000/v1 --model.name qwen    # is the server there, and the model?"""


class Arguments(argparse.Namespace):
    """What was typed, after parsing. `flags` are the dotted ones: path and words."""

    command: str
    env: str | None
    config: list[str]
    out: str | None
    resume: bool
    dry_run: bool
    skillopt: str
    json: bool
    print_config: bool
    quiet: bool
    run: str
    rollout: str | None
    action: str
    words: list[str]
    file: str
    parser: str
    tools: str
    jsonl: bool
    tokenizer: str
    template: str
    retokenize: str
    flags: list[tuple[str, str]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that knows no arrows is no reason to fail
            stream.reconfigure(errors="replace")
    typed = list(sys.argv[1:] if argv is None else argv)
    parser = make_parser()
    rest, flags, lacking = split_flags(typed)
    if lacking:
        parser.error(f"--{lacking} needs a value: --{lacking} VALUE")
    arguments, strangers = parser.parse_known_args(rest, Arguments())
    if getattr(arguments, "words", None) == [] and (words := _lost_words(strangers)):
        arguments.words, strangers = words, []
    if strangers:
        _refuse(parser, strangers)
    if flags and not hasattr(arguments, "config"):
        parser.error(f"{arguments.command} takes no settings, such as --{flags[0][0]}")
    arguments.flags = flags
    return _run(arguments)


def split_flags(typed: Sequence[str]) -> tuple[list[str], list[tuple[str, str]], str]:
    """Take the dotted flags (`--a.b value`, `--a.b=value`) out of what was typed, up to a `--`.

    Returns what is left, the flags, and the name of a flag that has no value, if there is one.
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


def _lost_words(strangers: Sequence[str]) -> list[str]:
    """The words of a command, which argparse does not find behind an option; none if an option is among them."""
    if strangers[:1] == ["--"]:
        return list(strangers[1:])
    return [] if any(word.startswith("-") for word in strangers) else list(strangers)


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
        case "train":
            from ludus.cli import train

            return train.run(arguments)
        case "validate" | "doctor":
            from ludus.cli import checks

            return checks.run(arguments)
        case "sandbox":
            from ludus.cli import sandbox

            return sandbox.run(arguments)
        case "gateway":
            from ludus.cli import gateway

            return gateway.run(arguments)
        case "parse" | "check" | "export":
            from ludus.cli import tokens

            return tokens.run(arguments)
        case _:
            from ludus.cli import listings

            return listings.run(arguments)


# ---- the parser ---------------------------------------------------------------------------------------------------


class Command(NamedTuple):
    """What a command is called, does, and takes."""

    name: str
    summary: str
    example: str
    takes: tuple[str, ...]


COMMANDS = (
    Command("envs", "list the environments that come with Ludus", "ludus envs", ("--json",)),
    Command(
        "tools",
        "list toolsets, their tools, and distributions",
        "ludus tools\nludus tools --tools.mcp.files.command '[my-mcp-server, --stdio]'",
        ("--config", "--json"),
    ),
    Command("config", "print every setting, as Markdown", "ludus config > settings.md", ()),
    Command("doctor", "say what works on this machine, and why not", _DOCTOR, ("--config", "--json")),
    Command(
        "sandbox",
        "say which slots can be had, try one, or remove what dead drivers have left",
        "ludus sandbox status\n"
        "ludus sandbox exec 'python3 --version'\n"
        "ludus sandbox shell --sandbox.backend docker --sandbox.docker.image python:3.11\n"
        "ludus sandbox prune",
        ("action", "words", "--config", "--json"),
    ),
    Command(
        "validate",
        "prove, without a model, that an environment scores rightly",
        "ludus validate terminal-test\nludus validate my_env.py --env.split test --env.limit 50",
        ("env", "--config", "--json"),
    ),
    Command(
        "process",
        "write groups of scored rollouts as JSONL, and a page to look at them",
        "ludus process terminal-test --env.group_size 4 --out runs/first\nludus process --resume --out runs/first",
        ("env", "--config", "--out", "--resume", "--print-config", "--quiet", "--json"),
    ),
    Command(
        "evaluate",
        "write the numbers of a model on an environment: mean, pass@k, interval, cost",
        "ludus evaluate gsm8k --env.split test --env.group_size 4 --model.name gpt-5-mini \\\n"
        "    --model.base_url https://api.openai.com/v1 --model.api_key_var OPENAI_API_KEY",
        ("env", "--config", "--out", "--resume", "--print-config", "--quiet", "--json"),
    ),
    Command(
        "train",
        "train the skill of a frozen agent: rollouts, proposals, edits that pass a gate",
        "ludus train gsm8k --dry-run        # what it would take\n"
        "ludus train gsm8k --data.pool train,test --data.ratio 1:1:1 --out runs/skill\n"
        "ludus train --resume --out runs/skill",
        ("env", "--config", "--skillopt", "--out", "--resume", "--dry-run", "--print-config", "--quiet", "--json"),
    ),
    Command(
        "gateway",
        "serve the model to any agent, and record what it asks and gets",
        "ludus gateway --model.base_url http://127.0.0.1:8000/v1 --model.name qwen --out runs/agents\n"
        "OPENAI_BASE_URL=http://127.0.0.1:8100/s/first/v1 OPENAI_API_KEY=first my-agent   # recorded as 'first'",
        ("--config", "--out", "--print-config", "--json"),
    ),
    Command(
        "show",
        "print the numbers of a run, the steps of a training run, or one transcript",
        "ludus show runs/first\n"
        "ludus show runs/first greeting.txt      # its first rollout\n"
        "ludus show runs/first greeting.txt#2    # its second",
        ("run", "rollout", "--json"),
    ),
    Command(
        "check",
        "check rows before a trainer learns from them: any Atropos JSONL, or a run",
        "ludus check runs/first\nludus check groups.jsonl --tokenizer Qwen/Qwen3-8B",
        ("file", "--tokenizer", "--json"),
    ),
    Command(
        "export",
        "print the rows of a run to train on, as Atropos JSONL",
        "ludus export runs/first > rows.jsonl\n"
        "ludus export runs/chat --retokenize Qwen/Qwen3-8B --parser hermes > sft.jsonl   # from text; not for RL",
        ("run", "--retokenize", "--parser", "--template"),
    ),
    Command(
        "parse",
        "read tool calls out of a model's text on stdin",
        "ludus parse --parser hermes --tools tools.json < reply.txt\nludus parse --jsonl < rows.jsonl",
        ("--parser", "--tools", "--jsonl"),
    ),
)

_TAKES: Mapping[str, Mapping[str, Any]] = {
    "env": {"metavar": "ENV", "nargs": "?", "help": "a name (`ludus envs`), module:Class or file.py"},
    "action": {"choices": ("status", "exec", "shell", "prune"), "help": "what to do"},
    "words": {"metavar": "COMMAND", "nargs": "*", "help": "for exec: the command, best in quotes"},
    "run": {"metavar": "RUN", "help": "a run directory, finished or not"},
    "rollout": {"metavar": "ROLLOUT", "nargs": "?", "help": "a task id, with #N for its Nth rollout"},
    "file": {"metavar": "FILE", "help": "a file of JSON lines, a run directory, or - for stdin"},
    "--tokenizer": {"metavar": "WHICH", "default": "", "help": "a tokenizer.json, a folder, a GGUF file or owner/name"},
    "--retokenize": {"metavar": "TOKENIZER", "default": "", "help": "make rows from text, for supervised fine-tuning"},
    "--template": {"metavar": "WHICH", "default": "", "help": "a chat template in place of the model's own"},
    "--parser": {"metavar": "NAME", "default": "", "help": "the format of tool calls: hermes, llama3_json, … or auto"},
    "--tools": {"metavar": "FILE", "default": "", "help": "the tools on offer: a JSON list, as an API takes them"},
    "--jsonl": {"action": "store_true", "help": 'read rows {"parser", "input", "tools"} and print a line for each'},
    "--config": {"action": "append", "default": [], "metavar": "FILE", "help": "settings in YAML; the later file wins"},
    "--skillopt": {"metavar": "FILE", "default": "", "help": "settings of SkillOpt, in its own YAML, beneath --config"},
    "--out": {"metavar": "DIR", "help": "the run directory; default: runs/<env>-<time>"},
    "--resume": {"action": "store_true", "help": "go on with the run in --out; its own settings are the base"},
    "--dry-run": {"action": "store_true", "help": "estimate calls, tokens and money, and stop"},
    "--print-config": {"action": "store_true", "help": "print the settings as YAML, and stop"},
    "--quiet": {"action": "store_true", "help": "print the path of the run and nothing else"},
    "--json": {"action": "store_true", "help": "machine output on stdout"},
}


def make_parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="ludus",
        description="Run, score and record tool-using agents on tasks that can be verified.",
        epilog=_EPILOG,
        formatter_class=layout,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ludus {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        epilog = "example:\n" + textwrap.indent(command.example, "  ")
        if "--config" in command.takes:
            epilog += f"\n\n{_TRAINING if command.name == 'train' else _SETTINGS if 'env' in command.takes else _FLAGS}"
        added = commands.add_parser(
            command.name,
            help=command.summary,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
            epilog=epilog,
            formatter_class=layout,
            allow_abbrev=False,
        )
        for name in command.takes:
            added.add_argument(name, **_TAKES[name])
    return parser
