"""Normalizes a call as it was written to a call as it is recorded: the tool's name, and arguments as JSON text.

For every format: arguments that were encoded twice or wrapped in an extra `arguments` are unwrapped, and a namespace is
removed from a name if the tool is known without it. A format may add more: that calls must be of known tools, or that a
wrong name is inferred from the arguments. What cannot be normalized is refused, with a reason.
"""

from typing import Any, NamedTuple, cast

from ludus.parsers.formats import Format
from ludus.parsers.offered_tools import OfferedTools, as_mapping
from ludus.parsers.shapes import Kind, RawCall
from ludus.parsers.values import dumps, loads
from ludus.types import JsonObject

_WRAPPERS = ("arguments", "parameters", "properties")


class CallRefused(Exception):
    """The call cannot be normalized."""

    def __init__(self, kind: Kind, why: str) -> None:
        super().__init__(why)
        self.kind: Kind = kind


class NormalizedCall(NamedTuple):
    """The name and arguments to record."""

    name: str
    arguments: str
    repaired: str = ""
    """What was changed in the meaning of the call; empty if nothing was."""


def normalize_call(raw: RawCall, tools: OfferedTools, format: Format) -> NormalizedCall:
    name = tools.resolve(raw.name)
    arguments = _unwrap_arguments(_decode_arguments(raw.arguments), name, tools)
    repaired = ""
    if format.repair and tools and name not in tools and isinstance(arguments, dict):
        fit = tools.find_by_arguments(name, cast(JsonObject, arguments))
        if fit:
            repaired = f"'{name}' is not a tool; the arguments are those of '{fit[0]}'"
            name, arguments = fit
    if not name:
        raise CallRefused("malformed", "a call without a name")
    if format.known and tools:
        arguments = _check_known(name, arguments, tools, strictly=format.known == "schema")
    try:
        return NormalizedCall(name, dumps(arguments), repaired)
    except ValueError as error:
        raise CallRefused("malformed", f"arguments that are not JSON: {error}") from None


def _decode_arguments(arguments: Any) -> Any:
    """Decode arguments that are strings of JSON. None and an empty string mean no arguments."""
    value = arguments
    for _ in range(2):
        if not isinstance(value, str):
            break
        try:
            value = loads(value) if value.strip() else None
        except ValueError:
            return arguments
    if value is None:
        return {}
    return cast(JsonObject, value) if isinstance(value, dict) else arguments


def _unwrap_arguments(arguments: Any, name: str, tools: OfferedTools) -> Any:
    if name in tools and len(given := as_mapping(arguments)) == 1:
        key, value = next(iter(given.items()))
        if (
            key in _WRAPPERS
            and key not in tools.get_properties(name)
            and isinstance(inner := _decode_arguments(value), dict)
        ):
            return cast(JsonObject, inner)
    return arguments


def _check_known(name: str, arguments: Any, tools: OfferedTools, *, strictly: bool) -> Any:
    if name not in tools:
        raise CallRefused("unknown_tool", f"there is no tool '{name}'")
    if not strictly:
        return arguments
    given = {key: value for key, value in as_mapping(arguments).items() if key in tools.get_properties(name)}
    if missing := tools.get_required(name) - given.keys():
        raise CallRefused("malformed", f"'{name}' lacks {', '.join(sorted(missing))}")
    return given
