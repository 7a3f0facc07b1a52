"""`@tool`: the signature is the schema, and every call is checked against it."""

from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from ludus.tools import BadArguments, Tool, tool
from ludus.tools.files import search_files


class Point(Struct, forbid_unknown_fields=True):
    x: int
    y: int | None = None


@tool(parallel=True)
async def plot(
    points: list[Point],
    title: str | None = None,
    size: Annotated[int, Meta(ge=1, le=10, description="How large.")] = 3,
    kind: Literal["line", "bar"] = "line",
    bold: bool = False,
) -> str:
    """Sample points
    on paper.

    - one
    - two
    """
    return f"{points} {title!r} {size!r} {kind} {bold!r}"


async def called(t: Tool, arguments: dict[str, Any]) -> str:
    return await t.run(arguments)  # pyright: ignore[reportArgumentType]


async def refusal(t: Tool, arguments: dict[str, Any]) -> str:
    with pytest.raises(BadArguments) as raised:
        await called(t, arguments)
    return str(raised.value)


def test_the_schema_is_plain_and_complete():
    assert search_files.spec.parameters == {
        "type": "object",
        "properties": {
            "pattern": {
                "type": "string",
                "description": "content: a regular expression. files: a name, or a glob such as *.py.",
            },
            "path": {
                "type": "string",
                "minLength": 1,
                "default": ".",
                "description": "The file or folder to search.",
            },
            "target": {
                "type": "string",
                "enum": ["content", "files"],
                "default": "content",
                "description": "Search in the lines of files, or for names of files.",
            },
            "glob": {"type": "string", "description": "Only files whose name fits, e.g. *.py."},
            "limit": {"type": "integer", "minimum": 1, "default": 50, "description": "How many matches to show."},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    }


def test_nested_types_are_plain_too():
    schema = plot.spec.parameters
    assert schema["required"] == ["points"]
    assert schema["properties"]["points"] == {"type": "array", "items": {"$ref": "#/$defs/Point"}}
    assert schema["$defs"]["Point"] == {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
        "required": ["x"],
        "additionalProperties": False,
    }


def test_a_description_loses_the_breaks_of_the_source_and_keeps_its_lists():
    assert plot.spec.description == "Sample points on paper.\n\n- one\n- two"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"points": []}, "[] None 3 line False"),
        ({"points": [{"x": 1}], "size": "5"}, "[Point(x=1, y=None)] None 5 line False"),
        ({"points": [], "bold": "true"}, "[] None 3 line True"),
        ({"points": [], "size": None, "title": None, "kind": None}, "[] None 3 line False"),
        ({"points": '[{"x": "1"}]'}, "[Point(x=1, y=None)] None 3 line False"),
        ({"points": {"x": 1}}, "[Point(x=1, y=None)] None 3 line False"),
        ({"points": '{"x": 1}'}, "[Point(x=1, y=None)] None 3 line False"),
        ({"points": [], "title": "[1]"}, "[] '[1]' 3 line False"),
        ({"points": [], "title": "null"}, "[] 'null' 3 line False"),
    ],
)
async def test_what_models_write_is_understood(arguments: dict[str, Any], shown: str):
    assert await called(plot, arguments) == shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "Missing required field `points`; the parameters are: points, title, size, kind, bold"),
        (
            {"points": [], "colour": 1},
            "The arguments contain unknown field `colour`; the parameters are: points, title, size, kind, bold",
        ),
        ({"points": [], "size": "five"}, "Expected `int`, got `str` - at `size`"),
        ({"points": [], "size": 0}, "Expected `int` >= 1 - at `size`"),
        ({"points": [], "size": 1.5}, "Expected `int`, got `float` - at `size`"),
        ({"points": [], "kind": "pie"}, "Invalid enum value 'pie' - at `kind`"),
        ({"points": [{"x": "a"}]}, "Expected `int`, got `str` - at `points[0].x`"),
        ({"points": [{}]}, "Missing required field `x` - at `points[0]`"),
        ({"points": "here and there"}, "Expected `array`, got `str` - at `points`"),
        ({"points": None}, "Expected `array`, got `null` - at `points`"),
        ({"points": [], "title": 5}, "Expected `str | null`, got `int` - at `title`"),
    ],
)
async def test_what_does_not_fit_is_explained(arguments: dict[str, Any], says: str):
    assert await refusal(plot, arguments) == says


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["points", "title", "size", "kind", "bold", "colour"]), json_values))
async def test_no_argument_gets_past_the_check(arguments: dict[str, Any]):
    try:
        await called(plot, arguments)
    except BadArguments as error:
        assert str(error)


async def test_a_bound_tool_keeps_its_first_parameter_from_the_model():
    @tool(bound=True, ends_episode=True, seconds=5, result_chars=10)
    async def note(store: list[str], text: str) -> str:
        """Keep a note."""
        store.append(text)
        return str(len(store))

    assert list(note.spec.parameters["properties"]) == ["text"]
    mine: list[str] = []
    yours: list[str] = []
    assert await called(note.bind(mine), {"text": "a"}) == "1"
    assert await called(note.bind(yours), {"text": "b"}) == "1"
    assert (mine, yours) == (["a"], ["b"])
    bound = note.bind(mine)
    assert (bound.name, bound.ends_episode, bound.seconds, bound.result_chars) == ("note", True, 5, 10)
    assert "unknown field `store`" in await refusal(bound, {"text": "a", "store": []})


def test_a_parameter_without_a_type_is_refused_at_once():
    async def odd(value) -> str:  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
        return str(value)  # pyright: ignore[reportUnknownArgumentType]

    with pytest.raises(TypeError, match="tool 'odd': give a type to value"):
        tool(odd)  # pyright: ignore[reportUnknownArgumentType]


def test_a_function_that_is_not_async_is_refused_at_once():
    def add(a: int) -> str:
        return str(a)

    with pytest.raises(TypeError, match="tool 'add': write it as `async def`"):
        tool(add)  # type: ignore


async def test_a_tool_without_parameters():
    @tool
    async def now() -> str:
        """Tell the time."""
        return "late"

    assert now.spec.parameters["properties"] == {}
    assert await called(now, {}) == "late"
    assert (await refusal(now, {"zone": "UTC"})).endswith("the parameters are: none")


async def test_a_tool_that_is_defined_again_is_read_once_and_keeps_its_own_values():
    def make(word: str, default: object = 1, kind: type = int) -> Any:
        @tool
        async def say(count: kind = default) -> str:  # pyright: ignore[reportInvalidTypeForm]
            """Say it."""
            return f"{word} {count!r}"

        return say

    first, second = make("a"), make("b")
    assert first.spec is second.spec
    assert [await each.run({}) for each in (first, second)] == ["a 1", "b 1"]
    assert make("c", True).spec.parameters["properties"]["count"]["default"] is True
    assert await make("d", kind=str, default="x").run({}) == "d 'x'"
    assert await make("e", kind=list, default=None).run({}) == "e None"
