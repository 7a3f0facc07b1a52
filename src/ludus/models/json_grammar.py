"""Grammars in llama.cpp's notation (GBNF), which vLLM and SGLang read too: JSON values, and objects of a schema."""

import json
from collections.abc import Sequence

from ludus.types import JsonObject

COMMON_RULES = r"""
value ::= string | number | boolean | "null" | array | object
array ::= "[" (value (", " value)*)? "]"
object ::= "{" (string ": " value (", " string ": " value)*)? "}"
string ::= "\"" ([^"\\\x00-\x1F\x7F] | "\\" ["\\bfnrt])* "\""
integer ::= "-"? [0-9]{1,15}
number ::= integer ("." [0-9]{1,15})?
boolean ::= "true" | "false"
"""
"""Rules for JSON values of any kind, with one space after commas and colons."""


def build_object_rule(schema: JsonObject) -> str:
    """Required members in the order of the schema, then any optional members in that order."""
    required, optional = split_parameters(schema)
    pairs = [_build_pair_rule(name, schema) for name in required]
    rest = [_build_pair_rule(name, schema) for name in optional]
    if pairs:
        inside = ' ", " '.join(pairs) + _build_optional_rules(rest)
    else:
        starts = [f"{pair}{_build_optional_rules(rest[i + 1 :])}" for i, pair in enumerate(rest)]
        inside = f"({' | '.join(starts)})?" if starts else ""
    return f'"{{" {inside} "}}"'


def split_parameters(schema: JsonObject) -> tuple[list[str], list[str]]:
    names: list[str] = list(schema.get("properties", {}))
    required = schema.get("required", [])
    return [n for n in names if n in required], [n for n in names if n not in required]


def _build_optional_rules(pairs: Sequence[str]) -> str:
    return "".join(f' (", " {pair})?' for pair in pairs)


def _build_pair_rule(name: str, schema: JsonObject) -> str:
    return f"{quote_literal(json.dumps(name) + ': ')} {_build_value_rule(schema['properties'][name])}"


def _build_value_rule(schema: JsonObject) -> str:
    """Types and enums are enforced. Patterns, bounds and references are not; the agent loop checks them."""
    match schema:
        case {"enum": [*choices]}:
            return f"({' | '.join(quote_literal(json.dumps(choice)) for choice in choices)})"
        case {"type": "string" | "integer" | "number" | "boolean" as kind}:
            return kind
        case {"type": "array", "items": _}:
            item = _build_value_rule(schema["items"])
            return f'"[" ({item} (", " {item})*)? "]"'
        case {"type": "object", "properties": _}:
            return build_object_rule(schema)
        case _:
            return "value"


def quote_literal(text: str) -> str:
    """The text as a literal of the grammar, which follows JSON's rules."""
    return json.dumps(text)
