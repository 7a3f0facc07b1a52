"""`ludus parse` without the command line: text and tools in, lines of JSON out."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec

from ludus.errors import ConfigError
from ludus.parsers import ParsedReply, ReplyParser, is_parser, make_parser
from ludus.parsers.offered_tools import as_mapping
from ludus.parsers.values import dumps
from ludus.types import JsonObject, ToolSpec


def parse_text(text: str, parser: str | ReplyParser, tools: Any = None) -> str:
    """Parse one reply. Returns a line of JSON. `tools` is in the form that `read_tools` accepts."""
    return _format_line(make_parser(parser).parse(text, read_tools(tools)))


def parse_rows(lines: Iterable[str], parser: str | ReplyParser = "", tools: Any = None) -> Iterator[str]:
    """Parse rows `{"parser", "input", "tools"}`. Yields a line of JSON for each; blank rows are skipped. `parser` and
    `tools` are used where a row has none of its own.

    Raises:
        ConfigError: a row is wrong. The error names the line.
    """
    named: dict[str, ReplyParser] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = _decode_row(line)
                chosen = _find_parser(row.get("parser") or parser, named)
                yield _parse_row(chosen, row["input"], row.get("tools", tools))
            except ConfigError as error:
                raise ConfigError(f"line {number}: {error}") from None


def _find_parser(parser: Any, named: dict[str, ReplyParser]) -> ReplyParser:
    if is_parser(parser):
        return parser
    if not isinstance(parser, str) or not parser:
        raise ConfigError('no parser: set "parser" in the row, or --parser')
    if parser not in named:
        named[parser] = make_parser(parser)
    return named[parser]


def _parse_row(parser: ReplyParser, text: str, tools: Any) -> str:
    """Tools that are not a list do not stop a file of many rows. The row gets a warning that they were ignored."""
    if tools is None or isinstance(tools, list):
        return _format_line(parser.parse(text, read_tools(cast(Any, tools))))
    return _format_line(parser.parse(text, ()), warning='"tools" is not a list and was ignored')


def _decode_row(line: str) -> JsonObject:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}") from None
    if not isinstance(row, dict) or not isinstance(cast(JsonObject, row).get("input"), str):
        raise ConfigError('expected an object with a text in "input"')
    return cast(JsonObject, row)


def read_tools(tools: Any) -> tuple[ToolSpec, ...]:
    """Read tools in the form of a chat API, each with or without `function` around it. Unnamed tools are skipped."""
    if tools is not None and not isinstance(tools, list):
        raise ConfigError("tools: expected a list of tools, in the form of a chat API")
    found: list[ToolSpec] = []
    for tool in cast(list[Any], tools or []):
        spec = as_mapping(as_mapping(tool).get("function")) or as_mapping(tool)
        name = spec.get("name")
        if isinstance(name, str) and name:
            found.append(ToolSpec(name, str(spec.get("description") or ""), dict(as_mapping(spec.get("parameters")))))
    return tuple(found)


def _format_line(reply: ParsedReply, warning: str = "") -> str:
    calls = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in reply.calls]
    row: JsonObject = {"content": reply.content or None, "tool_calls": calls}
    if reply.reasoning:
        row["reasoning"] = reply.reasoning
    if reply.problems:
        row["problems"] = msgspec.to_builtins(reply.problems)
    if warning:
        row["warning"] = warning
    return dumps(row)
