"""Values in a text: JSON, Python literals and the braces of Gemma."""

import json
from typing import Any

import pytest

from ludus.parsers import Parser
from ludus.parsers.values import (
    LOOSE,
    MAX_DEPTH,
    PYTHON,
    GemmaLiterals,
    IncompleteText,
    MalformedText,
    dumps,
    loads,
    read_json,
    skip_separator,
)


def test_half_a_surrogate_is_kept_as_an_escape() -> None:
    (call,) = Parser("hermes").parse('<tool_call>{"name": "f", "arguments": {"x": "\\ud83d"}}</tool_call>').calls
    assert call.arguments == '{"x": "\\ud83d"}'
    assert call.arguments.encode()


# ---- JSON ---------------------------------------------------------------------------------------------------------


def test_json_is_read_from_a_position_to_its_end() -> None:
    assert read_json('x {"a": [1, "}"]} rest', 2) == ({"a": [1, "}"]}, 17)
    assert read_json('"line\nbreak"', 0) == ("line\nbreak", 12)
    long = json.dumps({"a": "x" * 5000})
    assert read_json(f"{long} rest", 0) == ({"a": "x" * 5000}, len(long))


@pytest.mark.parametrize("text", ["", '{"a', '{"a": ', '{"a": t', "[1, ", '{"a": -', '"\\u12', "[" * 50])
def test_json_that_is_cut_is_incomplete(text: str) -> None:
    with pytest.raises(IncompleteText):
        read_json(text, 0)


@pytest.mark.parametrize(("text", "at"), [("{'a': 1}", 1), ('{"a" 1}', 5), ("oops", 0), ('{"a": tru3}', 6)])
def test_json_that_is_wrong_says_where(text: str, at: int) -> None:
    with pytest.raises(MalformedText, match="bad JSON") as caught:
        read_json(text, 0)
    assert caught.value.at == at


def test_nesting_has_a_limit() -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert loads(deep)
    with pytest.raises(ValueError, match="nested deeper"):
        loads(f"[{deep}]")
    with pytest.raises(MalformedText, match="nested deeper"):
        PYTHON.read_value("(" * 200, 0)


@pytest.mark.parametrize("text", ["NaN", "[1e999]", '{"a": -Infinity}', "1 2", "{", ""])
def test_a_whole_text_is_one_finite_value(text: str) -> None:
    with pytest.raises(ValueError):
        loads(text)


def test_json_is_written_in_one_spelling() -> None:
    assert dumps({"a": ["ü", 1.5, None]}) == '{"a": ["ü", 1.5, null]}'
    assert dumps("\ud83d") == '"\\ud83d"'
    with pytest.raises(ValueError):
        dumps(float("inf"))


# ---- Python -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-1.5e3", -1500.0),
        ("0x1F", 31),
        ("007", 7),
        ("1_000", 1000),
        ("True", True),
        ("null", None),
        ("'a\\n\\x41\\u00e9\\101'", "a\nAéA"),
        ("r'\\n'", "\\n"),
        ("'a' \"b\"", "ab"),
        ("'''two\nlines'''", "two\nlines"),
        ("[1, (2,), (3), {'a': None}]", [1, [2], 3, {"a": None}]),
        ("{1: 2}", {"1": 2}),
        ("{1, 2}", [1, 2]),
    ],
)
def test_python_literals(text: str, value: Any) -> None:
    assert PYTHON.loads(text) == value


@pytest.mark.parametrize("text", ["", "'a", "[1, ", "Tru", "12", "'a' r", "+", "''"])
def test_a_literal_that_may_go_on_is_incomplete(text: str) -> None:
    with pytest.raises(IncompleteText):
        PYTHON.read_value(text, 0)


@pytest.mark.parametrize("text", ["oops ", "[1 2]", "1e999 ", "@"])
def test_what_is_no_literal_is_malformed(text: str) -> None:
    with pytest.raises(MalformedText):
        PYTHON.read_value(text, 0)


def test_unescaped_quotes_end_a_string_only_where_an_argument_can_end() -> None:
    text = "'it's', b='x')"
    assert LOOSE.read_value(text, 0) == ("it's", 6)
    with pytest.raises(MalformedText):
        PYTHON.read_value("['it's fine']", 0)
    assert LOOSE.read_value("['it's fine'] ", 0) == (["it's fine"], 13)


def test_a_separator_is_a_comma_or_the_closing_bracket() -> None:
    assert skip_separator(" , x", 0, "]") == 3
    assert skip_separator(" ]", 0, "]") == 1
    with pytest.raises(MalformedText, match="expected ','"):
        skip_separator("x", 0, "]")
    with pytest.raises(IncompleteText):
        skip_separator(" ", 0, "]")


# ---- Gemma --------------------------------------------------------------------------------------------------------


def test_braces_are_read_and_written() -> None:
    gemma = GemmaLiterals("<q>")
    value = {"city": "Paris, {x}", "days": 3, "on": True, "of": [None, "a"]}
    text = "{city:<q>Paris, {x}<q>,days:3,on:true,of:[null,<q>a<q>]}"
    assert gemma.write(value) == text
    assert gemma.read_value(text, 0) == (value, len(text))
    assert gemma.read_value("{a:bare words}", 0)[0] == {"a": "bare words"}
    with pytest.raises(IncompleteText):
        gemma.read_value("{a:<q>x", 0)
