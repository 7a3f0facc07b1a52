"""What a model sees of a function, by table; the environments of the kit are compared with the package."""

import enum
from typing import Any, Literal

import pytest

from ludus.compat.verifiers_env.v0_standin.tool_schema import make_schema, make_tool, read_docstring


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (list[float], {"items": {"type": "number"}, "type": "array"}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal["a", "b"], {"enum": ["a", "b"], "type": "string"}),
        (Literal[1], {"const": 1, "type": "integer"}),
        (Any, {}),
        (Color, {"$ref": "#/$defs/Color"}),
    ],
)
def test_types(hint: Any, schema: dict[str, Any]):
    definitions: dict[str, Any] = {}
    assert make_schema(hint, definitions) == schema
    assert bool(definitions) == (hint is Color)


def test_what_has_no_strict_schema_is_named():
    def takes_mapping(options: dict[str, int]) -> None: ...

    def takes_more(**options: int) -> None: ...

    with pytest.raises(TypeError, match="takes_mapping: the parameter options: dict"):
        make_tool(takes_mapping)
    with pytest.raises(TypeError, match=r"takes_more: \*options"):
        make_tool(takes_more)


def test_sections_of_a_docstring():
    docs = read_docstring(
        "Do it.\n\nMore.\n\nArgs:\n    a: first,\n        and more\n    b (int): second\n\nReturns:\n    it\n\nEnd."
    )
    assert docs.text == "Do it.\n\nMore.\n\nEnd." and docs.parameters == {"a": "first,\nand more", "b": "second"}
    assert read_docstring("Do.\n\n:param a: first\n:returns: it").parameters == {"a": "first"}
