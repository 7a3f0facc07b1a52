"""What the agent can do: `Tool`, and `@tool`, which makes one from a function.

The signature is the schema. `@tool` reads parameter names, types, defaults and `Annotated[..., Meta(description=…)]`
once and makes a JSON schema of them for the model. Every call's arguments are checked against it before the function
runs, so a tool's body never gets a wrong type. Wrong arguments raise `BadArguments`, which the loop shows to the model.
Other exceptions of a tool are shown to the model, too, except a `RolloutError`: that is a failure of the world. With
`bound=True` the first parameter is not the model's (it is the slot, or a store); `bind` supplies it for one rollout.
"""

import inspect
import re
import types
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypedDict, Unpack, overload

import msgspec

from ludus.types import JsonObject, Observation, ToolSpec

ToolFunction = Callable[..., Awaitable["str | Observation"]]
"""An async function that returns what the model sees: text, or an `Observation` with pictures."""
Run = Callable[[JsonObject], Awaitable["str | Observation"]]


class BadArguments(Exception):
    """The model called a tool with wrong arguments. The text tells it what to change."""


class ToolOptions(TypedDict, total=False):
    """The optional fields of `Tool`, as `@tool` takes them."""

    parallel: bool
    ends_episode: bool
    seconds: float | None
    result_chars: int | None


class Tool:
    """A spec and a function that runs it."""

    def __init__(
        self,
        spec: ToolSpec,
        run: Run,
        *,
        parallel: bool = False,
        ends_episode: bool = False,
        seconds: float | None = None,
        result_chars: int | None = None,
    ) -> None:
        self.spec = spec
        self.run = run
        self.parallel = parallel
        """May run at the same time as other calls of the turn: it does not depend on them and changes nothing."""
        self.ends_episode = ends_episode
        """A successful call ends the rollout, as `submitted`."""
        self.seconds = seconds
        """Its own time limit, instead of the policy's."""
        self.result_chars = result_chars
        """Its own limit for the length of a result, instead of the policy's."""

    @property
    def name(self) -> str:
        return self.spec.name


class BoundTool:
    """A tool whose first argument is not bound yet."""

    def __init__(self, function: ToolFunction, options: ToolOptions) -> None:
        self._function = function
        self._options = options
        self.spec, self._signature = _read_signature(function, skip_first=True)

    def bind(self, first: object) -> Tool:
        function, signature = self._function, self._signature

        async def run(raw: JsonObject) -> str | Observation:
            return await function(first, **_check_arguments(raw, signature))

        return Tool(self.spec, run, **self._options)


@overload
def tool(function: ToolFunction, /) -> Tool: ...
@overload
def tool(*, bound: typing.Literal[True], **options: Unpack[ToolOptions]) -> Callable[[ToolFunction], BoundTool]: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[ToolFunction], Tool]: ...
def tool(function: ToolFunction | None = None, /, *, bound: bool = False, **options: Unpack[ToolOptions]) -> Any:
    """Make a `Tool` of an async function that returns text. Options are those of `Tool`.

    >>> @tool(parallel=True)
    ... async def add(a: int, b: int) -> str:
    ...     '''Add two whole numbers.'''
    ...     return str(a + b)
    """

    def make(function: ToolFunction) -> Tool | BoundTool:
        return BoundTool(function, options) if bound else _make_tool(function, options)

    return make if function is None else make(function)


def _make_tool(function: ToolFunction, options: ToolOptions) -> Tool:
    spec, signature = _read_signature(function, skip_first=False)

    async def run(raw: JsonObject) -> str | Observation:
        return await function(**_check_arguments(raw, signature))

    return Tool(spec, run, **options)


# ---- checking arguments -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Signature:
    """The types of a call's arguments, and their schema as the model sees it."""

    struct: type[msgspec.Struct]
    properties: Mapping[str, JsonObject]


def _check_arguments(raw: JsonObject, signature: _Signature) -> JsonObject:
    """The arguments with their declared types. Raises `BadArguments`.

    Spelling is lax ("42" for 42, "true" for true, null for "not given", a list written as text), because models write
    like that. Names are strict.
    """
    try:
        value = msgspec.convert(raw, signature.struct, strict=False)
    except msgspec.ValidationError as error:
        try:
            value = msgspec.convert(_repair_arguments(raw, signature.properties), signature.struct, strict=False)
        except (msgspec.ValidationError, RecursionError):
            raise BadArguments(_explain_error(str(error), list(signature.properties))) from None
    except RecursionError:
        raise BadArguments("The arguments are nested too deeply") from None
    return {name: getattr(value, name) for name in signature.properties}


def _repair_arguments(raw: JsonObject, properties: Mapping[str, JsonObject]) -> JsonObject:
    """What the model most likely meant: nulls are dropped, lists and objects in quotes are parsed, and a single value
    for a list parameter becomes a list of one."""
    repaired: JsonObject = {}
    for name, value in raw.items():
        arms: list[JsonObject] = properties[name].get("anyOf", [properties[name]]) if name in properties else []
        kinds = {"object" if "$ref" in arm else arm.get("type") for arm in arms}
        if isinstance(value, str) and kinds & {"array", "object"} and "string" not in kinds:
            value = _parse_text(value)
        if "array" in kinds and value is not None and not isinstance(value, list):
            value = [value]
        if value is not None:
            repaired[name] = value
    return repaired


def _parse_text(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return text


def _explain_error(error: str, names: Sequence[str]) -> str:
    """The checker's message in words for the model, with the names of the parameters."""
    text = error.replace("`$.", "`").replace("`$`", "the arguments").replace("Object contains", "The arguments contain")
    text = text.replace("Object missing", "Missing")
    if re.search(r"(unknown|required) field `[^`]*`$", text):
        text += f"; the parameters are: {', '.join(names) or 'none'}"
    return text


# ---- the schema ---------------------------------------------------------------------------------------------------


def _read_signature(function: ToolFunction, *, skip_first: bool) -> tuple[ToolSpec, _Signature]:
    """The spec and the types of a function's arguments. Environments define tools anew in every rollout: what is equal
    is read once."""
    try:
        return _read_declared(_declare(function), skip_first)
    except (AttributeError, TypeError):  # not a plain function, or a type that has no hash: it is read as it is
        return _read_function(function, skip_first)


@dataclass(frozen=True)
class _Declaration:
    """What decides the signature of a function."""

    code: types.CodeType
    parts: tuple[object, ...]
    function: ToolFunction = field(compare=False)


def _declare(function: Any) -> _Declaration:
    defaults = repr((function.__defaults__, function.__kwdefaults__))  # as text, 1 differs from True
    parts = (function.__name__, function.__doc__, defaults, *function.__annotations__.items())
    return _Declaration(function.__code__, parts, _drop_closure(function))


def _drop_closure(function: Any) -> Any:
    """The function without the values that it refers to, so that they are not kept."""
    cells = tuple(types.CellType() for _ in function.__code__.co_freevars)
    bare = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    bare.__kwdefaults__, bare.__annotations__ = function.__kwdefaults__, function.__annotations__
    bare.__doc__ = function.__doc__
    return bare


@lru_cache(maxsize=512)
def _read_declared(declared: _Declaration, skip_first: bool) -> tuple[ToolSpec, _Signature]:
    return _read_function(declared.function, skip_first)


def _read_function(function: ToolFunction, skip_first: bool) -> tuple[ToolSpec, _Signature]:
    name: str = function.__name__
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"tool '{name}': write it as `async def`")
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())[1 if skip_first else 0 :]
    untyped = [p.name for p in parameters if p.name not in hints]
    if untyped:
        raise TypeError(f"tool '{name}': give a type to {', '.join(untyped)}; the model's schema is made from it")
    fields: list[Any] = [
        (p.name, hints[p.name]) if p.default is inspect.Parameter.empty else (p.name, hints[p.name], p.default)
        for p in parameters
    ]
    struct = msgspec.defstruct(f"{name}_arguments", fields, forbid_unknown_fields=True, kw_only=True)
    (_,), components = msgspec.json.schema_components((struct,), ref_template="#/$defs/{name}")
    schema = components.pop(struct.__name__)
    shown = _simplify_object(schema)
    if components:
        shown["$defs"] = {key: _simplify_object(value) for key, value in components.items()}
    return ToolSpec(name, _unwrap_docstring(function.__doc__ or ""), shown), _Signature(struct, shown["properties"])


def _unwrap_docstring(docstring: str) -> str:
    """A docstring without the line breaks inside paragraphs. Lists and indented text stay."""
    return re.sub(r"(?<=\S)\n(?=\w)", " ", inspect.cleandoc(docstring))


def _simplify_object(schema: JsonObject) -> JsonObject:
    if "properties" not in schema:  # an enumeration or the like
        return schema
    return {
        "type": "object",
        "properties": {key: _simplify_schema(value) for key, value in schema["properties"].items()},
        "required": schema.get("required", []),
        "additionalProperties": False,
    }


def _simplify_schema(schema: JsonObject) -> JsonObject:
    """A parameter's schema in its simplest form: some servers and most small models fail on others.

    Null is accepted for an optional parameter, but the schema does not show it.
    """
    kept: list[JsonObject] = [arm for arm in schema.get("anyOf", []) if arm != {"type": "null"}]
    if "default" in schema and schema["default"] is None and len(kept) == 1:
        schema = {**kept[0], **{key: value for key, value in schema.items() if key not in ("anyOf", "default")}}
    if all(isinstance(choice, str) for choice in schema.get("enum", [None])):
        schema = {"type": "string", **schema}
    return schema
