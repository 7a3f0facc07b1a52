"""Tool calls in text: a parser and a renderer for each format in which models write them.

    >>> from ludus.parsers import Parser
    >>> hermes = Parser("hermes")
    >>> reply = hermes.parse('Sure. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    >>> reply.content, reply.calls
    ('Sure.', (Call(id='call_0', name='add', arguments='{"a": 1}'),))
    >>> hermes.render(reply.calls, reply.content)
    'Sure.\\n<tool_call>\\n{"name": "add", "arguments": {"a": 1}}\\n</tool_call>'

A parser of your own is a `Format` (data: usually enough), or any object with the methods of `ReplyParser`. Both are
accepted wherever a name is: by `Codec.open`, by `model.parser` in the settings, and by `ludus parse --parser`.

Read `formats` (the table) → `shapes` and `notations` (how calls are written) → `stream` (a reply, piece by piece).
`docs/parsers.md` lists the formats, the choices made where two readings are defensible, and what no format can express.
"""

from collections.abc import Sequence
from typing import Protocol, TypeGuard, runtime_checkable

from ludus.errors import ConfigError
from ludus.parsers.formats import Format, combine_formats, find_format, list_names
from ludus.parsers.shapes import CallProblem
from ludus.parsers.stream import Event, ParsedReply, ReplyStream, Text, Thought
from ludus.types import Call, ToolSpec

__all__ = [
    "CallProblem",
    "Event",
    "Format",
    "ParsedReply",
    "Parser",
    "ReplyParser",
    "ReplyStream",
    "Text",
    "Thought",
    "is_parser",
    "list_names",
    "make_parser",
]


@runtime_checkable
class ReplyParser(Protocol):
    """What a `Codec` needs of a parser. `Parser` is the one that reads a `Format`."""

    @property
    def name(self) -> str: ...

    def parse(self, text: str, tools: Sequence[ToolSpec], *, thinking: bool = False, first: int = 0) -> ParsedReply:
        """Read a whole reply. It must not raise, whatever the text is: what cannot be read is a `CallProblem`.

        `tools` are those that were offered. `thinking`: the prompt ends with an open think block. `first`: the number
        of the first call, for ids that count through a conversation. Arguments of calls are JSON text.
        """
        ...

    def render(self, calls: Sequence[Call], content: str = "") -> str:
        """Write a reply as the model would have written it, so that `parse` reads the same calls from it."""
        ...


def is_parser(value: object) -> TypeGuard[ReplyParser]:
    """Whether an object has the methods of a parser. A class is not a parser, an instance is."""
    return isinstance(value, ReplyParser) and not isinstance(value, type)


def make_parser(parser: "str | Format | ReplyParser") -> ReplyParser:
    """The parser for a name, a format, or an object that is a parser already.

    Raises:
        ConfigError: the name is unknown, or the object lacks a method.
    """
    if isinstance(parser, str | Format):
        return Parser(parser)
    if not is_parser(parser):
        raise ConfigError(
            f"a parser must be a name, a ludus.parsers.Format, or an object with `name`, `parse` and `render` "
            f"(see ludus.parsers.ReplyParser), not {type(parser).__name__}"
        )
    return parser


class Parser:
    """Reads and writes one format, given by name or as a `Format`. `auto` tells all formats apart by their markers.

    Raises:
        ConfigError: the name is unknown.
    """

    def __init__(self, format: str | Format) -> None:
        self.name = format if isinstance(format, str) else "custom"
        self.format = find_format(format) if isinstance(format, str) else format

    def parse(
        self, text: str, tools: Sequence[ToolSpec] = (), *, thinking: bool = False, first: int = 0
    ) -> ParsedReply:
        """Read a whole reply. `thinking`: the prompt ends with an open think block. `first`: the number of the first
        call."""
        return ParsedReply.from_events(self.stream(tools, thinking=thinking, first=first).finish(text))

    def stream(self, tools: Sequence[ToolSpec] = (), *, thinking: bool = False, first: int = 0) -> ReplyStream:
        """Start to read a reply that comes in pieces."""
        return ReplyStream(self.format, tools, thinking=thinking, first=first)

    def render(self, calls: Sequence[Call], content: str = "") -> str:
        """Write a reply with these calls as the model itself would. `auto` writes the hermes format."""
        return (find_format("hermes") if self.format is combine_formats() else self.format).render(calls, content)
