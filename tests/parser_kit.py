"""Shared by the tests of parsers: a short form of parsed replies, tools, and two calls."""

import json
from typing import Any

from ludus.parsers import Parser
from ludus.types import ToolSpec


def read(format: str, text: str, *tools: ToolSpec, **options: Any) -> tuple[str, list[tuple[str, Any]], list[str]]:
    """Content, calls as (name, arguments), and the kinds of the problems."""
    reply = Parser(format).parse(text, tools, **options)
    return reply.content, [(c.name, json.loads(c.arguments)) for c in reply.calls], [p.kind for p in reply.problems]


def make_tool(name: str, **kinds: Any) -> ToolSpec:
    properties = {key: {"type": kind} if isinstance(kind, str) else kind for key, kind in kinds.items()}
    return ToolSpec(name, "", {"type": "object", "properties": properties})


F = '{"name": "f", "arguments": {"x": 1}}'


G = '{"name": "g", "arguments": {}}'


WEATHER = make_tool(
    "get_weather", city="string", days="integer", detailed="boolean", where="object", also=["string", "null"]
)
