"""Calls as they are recorded."""

import json
from typing import Any

import pytest
from tests.parser_kit import WEATHER, F, make_tool, read

from ludus.parsers.formats import Format
from ludus.parsers.normalize import CallRefused, NormalizedCall, normalize_call
from ludus.parsers.offered_tools import OfferedTools
from ludus.parsers.shapes import RawCall
from ludus.types import ToolSpec


def test_a_missing_name_is_inferred_from_the_arguments() -> None:
    text = '<|tool_call_begin|>0<|tool_call_argument_begin|>{"city": "Rome"}<|tool_call_end|>'
    assert read("kimi_k2", text, WEATHER, make_tool("now")) == ("", [("get_weather", {"city": "Rome"})], ["repaired"])
    assert read("kimi_k2", text)[1:] == ([], ["malformed"])


def test_a_namespace_is_dropped_only_where_the_tool_is_known_without_it() -> None:
    text = "[weather.get_weather(city='Rome')]"
    assert read("pythonic", text, WEATHER)[1] == [("get_weather", {"city": "Rome"})]
    assert read("pythonic", text)[1] == [("weather.get_weather", {"city": "Rome"})]


def test_an_unknown_tool_is_a_call_unless_the_format_says_otherwise() -> None:
    assert read("hermes", f"<tool_call>{F}</tool_call>", WEATHER)[1] == [("f", {"x": 1})]
    text = f"<dots_function_call>{F}</dots_function_call>"
    assert read("dots", text, WEATHER) == (text, [], ["unknown_tool"])


def normalize(arguments: Any, *tools: ToolSpec, name: str = "f", **format: Any) -> NormalizedCall:
    return normalize_call(RawCall(0, name, arguments), OfferedTools(tools), Format(**format))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x": 1}, '{"x": 1}'),
        ('{"x":1}', '{"x": 1}'),
        (json.dumps('{"x": 1}'), '{"x": 1}'),
        (None, "{}"),
        ("", "{}"),
        ("no JSON", '"no JSON"'),
        ([1], "[1]"),
    ],
    ids=str,
)
def test_arguments_are_decoded_and_written_in_one_spelling(arguments: Any, text: str) -> None:
    assert normalize(arguments) == NormalizedCall("f", text)


def test_arguments_are_unwrapped_unless_the_tool_has_such_a_parameter() -> None:
    wrapped = {"arguments": {"x": 1}}
    assert normalize(wrapped, make_tool("f", x="integer")).arguments == '{"x": 1}'
    assert normalize(wrapped, make_tool("f", arguments="object")).arguments == '{"arguments": {"x": 1}}'
    assert normalize(wrapped).arguments == '{"arguments": {"x": 1}}', "the tool is not known"


def test_a_format_may_demand_known_tools_and_their_arguments() -> None:
    spec = make_tool("f", x="integer")
    spec.parameters["required"] = ["x"]
    with pytest.raises(CallRefused, match="no tool 'g'") as caught:
        normalize({}, spec, name="g", known="name")
    assert caught.value.kind == "unknown_tool"
    with pytest.raises(CallRefused, match="'f' lacks x"):
        normalize({"y": 1}, spec, known="schema")
    assert normalize({"x": 1, "y": 2}, spec, known="schema").arguments == '{"x": 1}'


def test_a_call_without_a_name_or_with_nan_is_refused() -> None:
    with pytest.raises(CallRefused, match="without a name"):
        normalize({}, name="")
    with pytest.raises(CallRefused, match="not JSON"):
        normalize({"x": float("nan")})


def test_a_repair_is_reported() -> None:
    repaired = normalize({"x": 1}, make_tool("f", x="integer"), name="wrong", repair=True)
    assert repaired == NormalizedCall("f", '{"x": 1}', "'wrong' is not a tool; the arguments are those of 'f'")
