"""What the agent can do: `Tool`, and `@tool`, which makes one from a function.

The signature is the schema. `@tool` reads parameter names, types, defaults and `Annotated[..., Meta(description=…)]`
once, gives the model a JSON schema of them, and checks every call's arguments against it before the function runs, so a
tool's body never meets a wrong type. A wrong argument is the model's mistake: it comes back as `BadArguments`, which the
loop shows to the model. `bound=True` marks a function whose first parameter is not the model's to give (the slot, a
store); `bind` supplies it for one rollout.
"""

import inspect
import typing
from collections.abc import Awaitable, Callable
from typing import Any, overload

import msgspec

from ludus.types import JsonObject, ToolSpec

Run = Callable[[JsonObject], Awaitable[str]]


class BadArguments(Exception):
    """The model called a tool with arguments that do not fit; the text tells it how to mend that."""


class Tool:
    """A spec and the way to run it."""

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
        """May run beside its neighbours in the same turn: it neither changes nor depends on what they do."""
        self.ends_episode = ends_episode
        self.seconds = seconds
        """Its own time limit instead of the policy's."""
        self.result_chars = result_chars
        """Its own result-size budget instead of the policy's."""

    @property
    def name(self) -> str:
        return self.spec.name


class BoundTool:
    """A tool that still lacks its first argument."""

    def __init__(self, function: Callable[..., Awaitable[str]], options: dict[str, Any]) -> None:
        self._function = function
        self._options = options
        self.spec, self._arguments = _schema(function, skip_first=True)

    def bind(self, first: object) -> Tool:
        function, arguments = self._function, self._arguments

        async def run(raw: JsonObject) -> str:
            return await function(first, **_checked(raw, arguments))

        return Tool(self.spec, run, **self._options)


@overload
def tool(function: Callable[..., Awaitable[str]], /) -> Tool: ...
@overload
def tool(*, bound: typing.Literal[True], **options: Any) -> Callable[[Callable[..., Awaitable[str]]], BoundTool]: ...
@overload
def tool(**options: Any) -> Callable[[Callable[..., Awaitable[str]]], Tool]: ...
def tool(function: Callable[..., Awaitable[str]] | None = None, /, *, bound: bool = False, **options: Any) -> Any:
    """Make a `Tool` of an async function that returns text. Options are those of `Tool`.

    >>> @tool(parallel=True)
    ... async def add(a: int, b: int) -> str:
    ...     '''Add two whole numbers.'''
    ...     return str(a + b)
    """
    if function is not None:
        return _free_tool(function, {})
    if bound:
        return lambda f: BoundTool(f, options)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType, reportUnknownVariableType]
    return lambda f: _free_tool(f, options)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType, reportUnknownVariableType]


def _free_tool(function: Callable[..., Awaitable[str]], options: dict[str, Any]) -> Tool:
    spec, arguments = _schema(function, skip_first=False)

    async def run(raw: JsonObject) -> str:
        return await function(**_checked(raw, arguments))

    return Tool(spec, run, **options)


def _checked(raw: JsonObject, arguments: type[msgspec.Struct]) -> JsonObject:
    """The arguments with their declared types, or `BadArguments`.

    Lax about spelling ("42" for 42, "true" for true), because models write numbers as text; strict about names.
    """
    try:
        return msgspec.structs.asdict(msgspec.convert(raw, arguments, strict=False))
    except msgspec.ValidationError as error:
        raise BadArguments(str(error).replace("Object ", "Arguments ").replace("$.", "")) from None


def _schema(function: Callable[..., Awaitable[str]], *, skip_first: bool) -> tuple[ToolSpec, type[msgspec.Struct]]:
    name: str = function.__name__
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())[1 if skip_first else 0 :]
    fields: list[Any] = [
        (p.name, hints[p.name]) if p.default is inspect.Parameter.empty else (p.name, hints[p.name], p.default)
        for p in parameters
    ]
    struct = msgspec.defstruct(f"{name}_arguments", fields, forbid_unknown_fields=True, kw_only=True)
    (_,), components = msgspec.json.schema_components((struct,), ref_template="#/$defs/{name}")
    schema = components.pop(struct.__name__)
    parameters_schema: JsonObject = {
        "type": "object",
        "properties": schema["properties"],
        "required": schema.get("required", []),
        "additionalProperties": False,
    }
    if components:
        parameters_schema["$defs"] = components
    return ToolSpec(name, inspect.cleandoc(function.__doc__ or ""), parameters_schema), struct
