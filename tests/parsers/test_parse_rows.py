"""`ludus parse` as a function of text."""

import json

import pytest

from ludus.errors import ConfigError
from ludus.parsers import ParsedReply
from ludus.parsers.parse_rows import parse_rows, parse_text, read_tools

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "string"}}}}}]
CALL = "<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>"


def test_a_reply_is_one_line() -> None:
    line = parse_text(f"Hi é\n{CALL}", "glm45", TOOLS)
    assert "\n" not in line and "é" in line
    assert json.loads(line) == {"content": "Hi é", "tool_calls": [{"name": "f", "arguments": {"x": "1"}}]}


def test_no_content_is_null_and_problems_are_listed() -> None:
    assert json.loads(parse_text(CALL, "glm45"))["content"] is None
    (problem,) = json.loads(parse_text(CALL[:40], "glm45"))["problems"]
    assert problem == {"kind": "truncated", "at": 0, "raw": CALL[:40], "why": "the text ends inside a call"}


def test_the_thinking_channel_is_reasoning() -> None:
    text = "<|START_THINKING|> a plan <|END_THINKING|><|START_RESPONSE|>foo <co>bar</co: 0:[1,2]><|END_RESPONSE|>"
    assert json.loads(parse_text(text, "cohere_command4")) == {
        "content": "foo bar",
        "tool_calls": [],
        "reasoning": "a plan",
    }


def test_rows_have_their_own_parser_and_tools() -> None:
    rows = [
        json.dumps({"parser": "glm45", "input": CALL, "tools": TOOLS}),
        "",
        json.dumps({"input": CALL}),
        json.dumps({"parser": "hermes", "input": "Hi", "tools": None}),
    ]
    lines = [json.loads(line) for line in parse_rows(rows, "glm47")]
    assert [line["tool_calls"] for line in lines] == [
        [{"name": "f", "arguments": {"x": "1"}}],
        [{"name": "f", "arguments": {"x": 1}}],
        [],
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[]", 'line 2: expected an object with a text in "input"'),
        ('{"parser": "hermes"}', 'line 2: expected an object with a text in "input"'),
        ('{"parser": "hermez", "input": ""}', "line 2: unknown tool-call parser 'hermez'; did you mean 'hermes'"),
        ('{"input": ""}', 'line 2: no parser: set "parser" in the row, or --parser'),
    ],
)
def test_a_bad_row_is_named(row: str, message: str) -> None:
    lines = parse_rows(['{"parser": "hermes", "input": "fine"}', row])
    assert next(lines)
    with pytest.raises(ConfigError, match=message):
        next(lines)


def test_tools_that_are_no_list_do_not_stop_the_rows() -> None:
    (line,) = parse_rows([json.dumps({"parser": "glm45", "input": CALL, "tools": {"name": "f"}})])
    assert json.loads(line)["tool_calls"] == [{"name": "f", "arguments": {"x": 1}}]
    assert json.loads(line)["warning"] == '"tools" is not a list and was ignored'
    with pytest.raises(ConfigError, match="tools: expected a list"):
        parse_text("", "hermes", {"name": "f"})


def test_tools_have_two_forms_and_the_rest_is_ignored() -> None:
    specs = read_tools([*TOOLS, {"name": "g", "description": "G", "parameters": None}, {"type": "web_search"}, 3])
    assert [(spec.name, spec.description) for spec in specs] == [("f", ""), ("g", "G")]
    assert read_tools(None) == ()


class Nothing:
    """A parser that reads no calls."""

    name = "nothing"

    def parse(self, text: str, tools: object, *, thinking: bool = False, first: int = 0) -> ParsedReply:
        return ParsedReply(text.upper())

    def render(self, calls: object, content: str = "") -> str:
        return content


def test_the_parser_may_be_an_object() -> None:
    assert json.loads(parse_text("hi", Nothing()))["content"] == "HI"
    rows = [json.dumps({"input": "hi"}), json.dumps({"parser": "hermes", "input": "hi"})]
    assert [json.loads(line)["content"] for line in parse_rows(rows, Nothing())] == ["HI", "hi"]
