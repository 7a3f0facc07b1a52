"""What `ludus parse` does, without the command line: text and tools in, lines of JSON out."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec

from ludus.errors import ConfigError
from ludus.parsers import ParsedReply, Parser
from ludus.parsers.offered_tools import as_mapping
from ludus.parsers.values import dumps
from ludus.types import JsonObject, ToolSpec


def parse_text(text: str, parser: str | Parser, tools: Any = None) -> str:
    """One reply as a line of JSON. `tools` is what `read_tools` understands."""
    return _format_line(_find_parser(parser).parse(text, read_tools(tools)))


def parse_rows(lines: Iterable[str], parser: str | Parser = "", tools: Any = None) -> Iterator[str]:
    """A line for each row `{"parser", "input", "tools"}`; blank rows are passed over. What a row does not say is taken
    from the arguments. A bad row is a ConfigError that names the line."""
    parsers: dict[str | Parser, Parser] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = _decode_row(line)
                name = row.get("parser") or parser
                if not isinstance(name, str | Parser) or not name:
                    raise ConfigError('no parser: set "parser" in the row, or --parser')
                if name not in parsers:
                    parsers[name] = _find_parser(name)
                yield _parse_row(parsers[name], row["input"], row.get("tools", tools))
            except ConfigError as error:
                raise ConfigError(f"line {number}: {error}") from None


def _find_parser(parser: str | Parser) -> Parser:
    return Parser(parser) if isinstance(parser, str) else parser


def _parse_row(parser: Parser, text: str, tools: Any) -> str:
    """Tools that are no list do not stop a file of many rows; the row says that they were passed over."""
    if tools is None or isinstance(tools, list):
        return _format_line(parser.parse(text, read_tools(cast(Any, tools))))
    return _format_line(parser.parse(text), warning='"tools" is no list and was passed over')


def _decode_row(line: str) -> JsonObject:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}") from None
    if not isinstance(row, dict) or not isinstance(cast(JsonObject, row).get("input"), str):
        raise ConfigError('expected an object with a text in "input"')
    return cast(JsonObject, row)


def read_tools(tools: Any) -> tuple[ToolSpec, ...]:
    """Tools as an API takes them, with or without `function` around each. What has no name is passed over."""
    if tools is not None and not isinstance(tools, list):
        raise ConfigError("tools: expected a list of tools, as an API takes them")
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
