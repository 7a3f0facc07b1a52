"""Tool calls in text: a parser and a renderer for each format that models write them in.

    >>> from ludus.parsers import Parser
    >>> hermes = Parser("hermes")
    >>> reply = hermes.parse('Sure. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    >>> reply.content, reply.calls
    ('Sure.', (Call(id='call_0', name='add', arguments='{"a": 1}'),))
    >>> hermes.render(reply.calls, reply.content)
    'Sure.\\n<tool_call>\\n{"name": "add", "arguments": {"a": 1}}\\n</tool_call>'

Read `formats` (the table) → `shapes` and `notations` (how calls are written) → `stream` (a reply, piece by piece).
`docs/parsers.md` lists the formats, the choices made where two readings are defensible, and what no format can express.
"""

from collections.abc import Sequence

from ludus.parsers.formats import Format, combine_formats, find_format, list_names
from ludus.parsers.shapes import CallProblem
from ludus.parsers.stream import Event, ParsedReply, ReplyStream, Text, Thought
from ludus.types import Call, ToolSpec

__all__ = ["CallProblem", "Event", "Format", "ParsedReply", "Parser", "ReplyStream", "Text", "Thought", "list_names"]


class Parser:
    """One format, by name or as it is; `auto` tells the formats apart by their markers. An unknown name is a
    ConfigError."""

    def __init__(self, format: str | Format) -> None:
        self.name = format if isinstance(format, str) else "own"
        self.format = find_format(format) if isinstance(format, str) else format

    def parse(
        self, text: str, tools: Sequence[ToolSpec] = (), *, thinking: bool = False, first: int = 0
    ) -> ParsedReply:
        """A whole reply. `thinking`: the prompt has opened a think block. `first`: the number of the first call."""
        return ParsedReply.from_events(self.stream(tools, thinking=thinking, first=first).finish(text))

    def stream(self, tools: Sequence[ToolSpec] = (), *, thinking: bool = False, first: int = 0) -> ReplyStream:
        """A reply that comes in pieces."""
        return ReplyStream(self.format, tools, thinking=thinking, first=first)

    def render(self, calls: Sequence[Call], content: str = "") -> str:
        """A reply with these calls, as the model itself would write it; `auto` writes as hermes does."""
        return (find_format("hermes") if self.format is combine_formats() else self.format).render(calls, content)
