"""The types of arguments follow the schemas of the offered tools."""

from typing import Any

import pytest
from tests.parser_kit import WEATHER, make_tool, read

from ludus.parsers.offered_tools import OfferedTools, as_mapping, convert_text


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("city", "1", "1"),
        ("city", "null", "null"),
        ("city", "", ""),
        ("city", ' {"a": 1} ', ' {"a": 1} '),
        ("days", "1", 1),
        ("days", " 2 ", 2),
        ("days", "3.0", 3),
        ("days", "soon", "soon"),
        ("detailed", "True", True),
        ("detailed", "FALSE", False),
        ("where", '{"a": [1]}', {"a": [1]}),
        ("where", "{'a': True}", {"a": True}),
        ("where", '{\\"a\\": 1}', {"a": 1}),
        ("where", '"{\\"a\\": 1}"', {"a": 1}),
        ("also", "null", None),
        ("also", "none", "none"),
        ("other", "1", 1),
        ("other", "1 or 2", "1 or 2"),
        ("other", "True", True),
        ("days", "NaN", "NaN"),  # no JSON, so it is not taken for a number
        ("other", "NaN", "NaN"),
        ("other", "-1e999", "-1e999"),
        ("other", "[1, Infinity]", "[1, Infinity]"),
    ],
)
def test_types_follow_the_schema(key: str, text: str, value: Any) -> None:
    for format, spelled in {
        "glm47": f"<tool_call>get_weather<arg_key>{key}</arg_key><arg_value>{text}</arg_value></tool_call>",
        "qwen3_coder": f"<function=get_weather>\n<parameter={key}>\n{text}\n</parameter>\n</function>",
        "dots": f'<dots_function_call><invoke name="get_weather"><parameter name="{key}">{text}</parameter></invoke>',
    }.items():
        assert read(format, spelled, WEATHER)[1] == [("get_weather", {key: value})], format


def test_a_schema_may_refer_to_its_definitions() -> None:
    spec = make_tool("f", x={"$ref": "#/$defs/Color"}, y={"anyOf": [{"type": "integer"}, {"enum": ["1", "2"]}]})
    spec.parameters["$defs"] = {"Color": {"enum": ["1", "2"]}}
    given = "".join(f"<arg_key>{key}</arg_key><arg_value>1</arg_value>" for key in "xy")
    text = f"<tool_call>f{given}</tool_call>"
    assert read("glm47", text, spec)[1] == [("f", {"x": "1", "y": 1})]


def test_a_namespace_is_dropped_if_only_the_tool_exists() -> None:
    tools = OfferedTools([WEATHER, make_tool("a.b")])
    assert tools.resolve("x.get_weather") == "get_weather"
    assert tools.resolve("a.b") == "a.b"
    assert tools.resolve("x.other") == "x.other"


def test_without_tools_nothing_is_known() -> None:
    tools = OfferedTools()
    assert not tools
    assert "get_weather" not in tools
    assert (tools.get_schema("f"), tools.get_required("f")) == ({}, set())
    assert tools.convert("f", "x", "1") == 1


def test_a_tool_is_found_by_its_arguments_if_only_one_fits() -> None:
    details = make_tool("get_details", id="string")
    details.parameters["required"] = ["id"]
    tools = OfferedTools([details, make_tool("now")])
    assert tools.find_by_arguments("get_line_details", {"line_id": "7"}) == ("get_details", {"id": "7"})
    assert tools.find_by_arguments("other", {"x": 1}) is None
    twice = OfferedTools([details, make_tool("other", id="string")])
    assert twice.find_by_arguments("wrong", {"id": "7"}) is None, "two tools fit"


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": ["integer", "string"]}, 5),
        ("5", {"type": "str"}, "5"),
        ("5", {"const": "5"}, "5"),
        ("[1]", {"type": "array"}, [1]),
        ("true", {"type": "integer"}, "true"),
        ("2.0", {"type": "number"}, 2.0),
    ],
)
def test_a_text_becomes_a_value_of_an_allowed_type(text: str, schema: dict[str, Any], value: Any) -> None:
    found = convert_text(text, schema, {})
    assert (found, type(found)) == (value, type(value))


def test_what_is_no_mapping_is_an_empty_one() -> None:
    assert as_mapping({"a": 1}) == {"a": 1}
    assert as_mapping([1]) == as_mapping(None) == {}
