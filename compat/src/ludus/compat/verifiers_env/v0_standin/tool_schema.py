"""What a model sees of a function: its name, the text of its docstring, and a strict JSON schema of its parameters.

The schema is the one that the package makes: every parameter is required, with its title, its description and its
default. Parameters of other types than those below are refused, as mappings are there.
"""

# Values of foreign code have no types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

import enum
import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from ludus.compat.verifiers_env.v0_standin.values import Tool

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_SECTION = re.compile(r"^([A-Z][\w ]*):\s*$")
_ARGUMENTS = ("args", "arguments", "params", "parameters")
_GOOGLE = re.compile(r"^(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_SPHINX = re.compile(r"^:param\s+(?:[\w\[\], ]+\s)?(\w+):\s*(.*)$")


def make_tool(function: Callable[..., Any]) -> Tool:
    """The definition of a function as a tool.

    Raises:
        TypeError: a parameter has a type that has no strict schema.
    """
    name = getattr(function, "__name__", type(function).__name__)
    docs = read_docstring(inspect.getdoc(function) or "")
    return Tool(name=name, description=docs.text, parameters=_make_parameters(function, name, docs.parameters))


def _make_parameters(function: Callable[..., Any], name: str, texts: dict[str, str]) -> dict[str, Any]:
    hints = _read_hints(function)
    properties, definitions = dict[str, Any](), dict[str, Any]()
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"the tool {name}: *{parameter.name} has no strict schema")
        if parameter.name in ("self", "cls"):
            continue
        hint = hints.get(parameter.name, Any)
        try:
            properties[parameter.name] = _describe(parameter, hint, texts.get(parameter.name, ""), definitions)
        except TypeError as error:
            raise TypeError(f"the tool {name}: the parameter {parameter.name}: {error}") from None
    schema = {"properties": properties, "required": list(properties), "title": f"{name}_args", "type": "object"}
    return {**({"$defs": definitions} if definitions else {}), **schema, "additionalProperties": False}


def _read_hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # a name in an annotation that cannot be resolved: foreign code
        return dict(getattr(function, "__annotations__", {}))


def _describe(parameter: inspect.Parameter, hint: Any, text: str, definitions: dict[str, Any]) -> dict[str, Any]:
    if typing.get_origin(hint) is typing.Annotated:
        hint, *notes = typing.get_args(hint)
        text = text or next((note for note in notes if isinstance(note, str)), "")
    schema = make_schema(hint, definitions)
    if "$ref" in schema:
        return schema
    if parameter.default not in (parameter.empty, None):
        schema["default"] = parameter.default
    if text:
        schema["description"] = text
    return {**schema, "title": parameter.name.replace("_", " ").strip().title()}


def make_schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type. Types with a name are put into `definitions`.

    Raises:
        TypeError: the type has no strict schema.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is inspect.Parameter.empty:
        return {}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [make_schema(each, definitions) for each in inner]}
    if origin is Literal:
        return _describe_choice(inner)
    if hint in (list, Sequence) or origin in (list, Sequence):
        return {"items": make_schema(inner[0], definitions) if inner else {}, "type": "array"}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        definitions[hint.__name__] = {**_describe_enum(hint), "title": hint.__name__}
        return {"$ref": f"#/$defs/{hint.__name__}"}
    raise TypeError(f"{getattr(hint, '__name__', hint)} has no strict schema: use text, numbers, lists or choices")


def _describe_choice(choices: Sequence[Any]) -> dict[str, Any]:
    kinds = {_PLAIN.get(type(choice)) for choice in choices}
    named = {"type": kinds.pop()} if len(kinds) == 1 else {}
    return {**({"const": choices[0]} if len(choices) == 1 else {"enum": list(choices)}), **named}


def _describe_enum(kind: type[enum.Enum]) -> dict[str, Any]:
    return _describe_choice([member.value for member in kind])


# ---- docstrings ---------------------------------------------------------------------------------------------------


class DocText(NamedTuple):
    """What a docstring says."""

    text: str
    parameters: dict[str, str]


def read_docstring(docstring: str) -> DocText:
    """The text without its sections, and the descriptions of the parameters (Google's and Sphinx's form)."""
    kept, parameters = list[str](), dict[str, str]()
    lines = docstring.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if found := _SPHINX.match(line):
            parameters[found[1]] = found[2]
        elif line.startswith((":return", ":raise", ":type", ":rtype")):
            continue
        elif (section := _SECTION.match(line)) and number < len(lines) and lines[number].startswith(" "):
            block, number = _take_block(lines, number)
            if section[1].lower() in _ARGUMENTS:
                parameters |= _read_arguments(block)
        else:
            kept.append(line)
    return DocText("\n".join(kept).strip(), parameters)


def _take_block(lines: Sequence[str], start: int) -> tuple[list[str], int]:
    """The indented lines from here, without their indentation, and the number of the line after them."""
    end = start
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" ")):
        end += 1
    return inspect.cleandoc("\n" + "\n".join(lines[start:end])).splitlines(), end


def _read_arguments(block: Sequence[str]) -> dict[str, str]:
    found, name = dict[str, list[str]](), ""
    for line in block:
        if not line.startswith(" ") and (head := _GOOGLE.match(line)):
            name = head[1].lstrip("*")
            found[name] = [head[2]]
        elif name and line.strip():
            found[name].append(line.strip())
    return {name: "\n".join(texts).strip() for name, texts in found.items()}
