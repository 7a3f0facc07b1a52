"""The offered tools as parsers need them: the names, and the types of arguments.

Formats that write arguments as tagged text carry no types: `1` may be a number or a string, and only the tool's schema
says which. `OfferedTools.convert` follows the schema. Without a schema, a value is JSON if it can be read as JSON, and
text otherwise.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ludus.parsers.values import PYTHON, loads
from ludus.types import JsonObject, ToolSpec

_ALIASES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "dict": "object", "list": "array"}
_WORDS = {"True": True, "False": False, "None": None}


class OfferedTools:
    """The names and schemas of tools. Without tools nothing is known, and every call is accepted."""

    def __init__(self, specs: Sequence[ToolSpec] = ()) -> None:
        self._schemas = {spec.name: spec.parameters for spec in specs}

    def __bool__(self) -> bool:
        return bool(self._schemas)

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    def resolve(self, name: str) -> str:
        """The tool for a name: `namespace.tool` is `tool` if only that exists."""
        last = name.rpartition(".")[2]
        return last if name not in self and last in self else name

    def get_schema(self, tool: str) -> JsonObject:
        return self._schemas.get(tool, {})

    def get_properties(self, tool: str) -> Mapping[str, Any]:
        return as_mapping(self.get_schema(tool).get("properties"))

    def get_required(self, tool: str) -> set[str]:
        names = self.get_schema(tool).get("required")
        return {str(name) for name in cast(list[Any], names)} if isinstance(names, list) else set()

    def convert(self, tool: str, key: str, text: str) -> Any:
        """Convert the text of the argument `key` of a tool to a value."""
        return convert_text(text, as_mapping(self.get_properties(tool).get(key)), self.get_schema(tool))

    def find_by_arguments(self, name: str, arguments: JsonObject) -> tuple[str, JsonObject] | None:
        """The only tool whose parameters fit a call with an unknown name, and its arguments. None if several fit.

        A parameter is given by its own name, or by one with a word of the called name before it: `line_id` of
        `get_line_details` for `id`.
        """
        found = [(tool, given) for tool in self._schemas if (given := self._match_arguments(tool, name, arguments))]
        return found[0] if len(found) == 1 else None

    def _match_arguments(self, tool: str, name: str, arguments: JsonObject) -> JsonObject:
        given: JsonObject = {}
        for key in self.get_properties(tool):
            qualified = (f"{word}_{key}" for word in name.split("_"))
            spelled = next((k for k in (key, *qualified) if k in arguments), None)
            if spelled is not None:
                given[key] = arguments[spelled]
        return given if self.get_required(tool) <= given.keys() else {}


def convert_text(text: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """Convert a text to a value of a schema's type; the text itself if no type fits."""
    kinds = _list_types(schema, root)
    if kinds == {"string"}:
        return text
    for value in _list_readings(text, plain="string" in kinds or not kinds):
        if not kinds:
            return value
        if (fitted := _fit_type(value, kinds)) is not _MISFIT:
            return fitted
    return text


_MISFIT = object()


def _fit_type(value: Any, kinds: set[str]) -> Any:
    """The value as one of these types; `_MISFIT` if it has none of them."""
    if isinstance(value, bool):
        return value if "boolean" in kinds else _MISFIT
    if isinstance(value, float) and "number" not in kinds and "integer" in kinds and value.is_integer():
        return int(value)
    fits = {
        "null": value is None,
        "integer": isinstance(value, int),
        "number": isinstance(value, int | float),
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
    }
    return value if any(fits.get(kind, False) for kind in kinds) else _MISFIT


def _list_readings(text: str, *, plain: bool) -> list[Any]:
    """The values that a text may mean, likeliest first. `plain`: it may also be just text, so fewer are tried."""
    stripped = text.strip()
    found: list[Any] = []
    try:
        found.append(loads(stripped))
        if isinstance(found[0], str) and not plain:
            found.append(loads(found[0]))
        return found
    except ValueError:
        pass
    if stripped in _WORDS:
        return [*found, _WORDS[stripped]]
    if stripped.lower() in {"true", "false", "null"} and not plain:
        return [*found, loads(stripped.lower())]
    if plain and not stripped.startswith(("[", "{", "(")):
        return found
    for read in (PYTHON.loads, _read_escaped):
        try:
            return [*found, read(stripped)]
        except ValueError:
            pass
    return found


def _read_escaped(text: str) -> Any:
    """Read JSON that was escaped once too often: `[{\\"id\\": 1}]`."""
    return loads(loads(f'"{text}"'))


def _list_types(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """The JSON types that a schema allows; empty if it does not say."""
    if depth > 8:
        return set()
    kind = schema.get("type")
    if isinstance(kind, str | list):
        names = [kind] if isinstance(kind, str) else cast(list[Any], kind)
        return {_ALIASES.get(str(name).lower(), str(name).lower()) for name in names}
    if isinstance(schema.get("enum"), list):
        return {_name_type(value) for value in schema["enum"]}
    if "const" in schema:
        return {_name_type(schema["const"])}
    if isinstance(schema.get("$ref"), str):
        return _list_types(_follow_reference(schema["$ref"], root), root, depth + 1)
    parts = [part for word in ("anyOf", "oneOf", "allOf") for part in _as_list(schema.get(word))]
    return {kind for part in parts for kind in _list_types(as_mapping(part), root, depth + 1)}


def _name_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    kinds: list[tuple[type, str]] = [(str, "string"), (int, "integer"), (float, "number"), (list, "array")]
    return next((name for kind, name in kinds if isinstance(value, kind)), "object")


def _follow_reference(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    found = root
    for word in reference.removeprefix("#/").split("/"):
        found = as_mapping(found.get(word))
    return found


def as_mapping(value: Any) -> Mapping[str, Any]:
    """The value, if it is a mapping; an empty one if not."""
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}


def _as_list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []
