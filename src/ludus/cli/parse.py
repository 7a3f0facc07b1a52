"""`ludus parse`: read tool calls from a model's text.

Rows are read and printed one by one, so a file may be larger than memory. Errors name the line.
"""

import sys
from pathlib import Path
from typing import Any

import msgspec

from ludus.arguments import Arguments, make_argument
from ludus.command import PARSER, Command
from ludus.errors import ConfigError
from ludus.parsers import Parser, ReplyParser, list_names
from ludus.parsers.parse_rows import parse_rows, parse_text
from ludus.rl.token_rows import print_line
from ludus.whole_files import read_whole


class ParseArguments(Arguments):
    parser: str
    tools: str
    jsonl: bool


def run(arguments: ParseArguments) -> int:
    parser = _load_parser(arguments.parser) if arguments.parser else ""  # fails before stdin is read
    if not parser and not arguments.jsonl:
        raise ConfigError(f"--parser: which format? One of {', '.join(list_names())}")
    tools = _read_json(arguments.tools, "--tools") if arguments.tools else None
    if not arguments.jsonl:
        print_line(parse_text(_decode(sys.stdin.buffer.read(), "stdin"), parser, tools).encode())
        return 0
    lines = (_decode(line, f"line {number}") for number, line in enumerate(sys.stdin.buffer, 1))
    for line in parse_rows(lines, parser, tools):
        print_line(line.encode())
    return 0


def _load_parser(name: str) -> ReplyParser:
    """A built-in parser, or one of the user's own. Settings are imported for the latter only: they take a while."""
    if name in list_names():
        return Parser(name)
    from ludus.config.references import load_parser

    return load_parser(name, "--parser")


def _decode(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}") from None


def _read_json(path: str, option: str) -> Any:
    try:
        return msgspec.json.decode(read_whole(Path(path)))
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{option}: {path} is not JSON: {error}") from None


COMMAND = Command(
    run,
    "ludus parse --parser hermes --tools tools.json < reply.txt\nludus parse --jsonl < rows.jsonl",
    (
        PARSER,
        make_argument(
            "--tools", metavar="FILE", default="", help="the tools that were offered: a JSON list in an API's form"
        ),
        make_argument(
            "--jsonl", action="store_true", help='read rows {"parser", "input", "tools"}; print a line for each'
        ),
    ),
    ParseArguments,
)
