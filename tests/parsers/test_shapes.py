"""The three shapes of calls: what each reads, what it reports, what it writes."""

from typing import Any

import pytest
from tests.parser_kit import F, G

from ludus.parsers.markup_reader import NotACall, TextSource
from ludus.parsers.notations import JSON
from ludus.parsers.offered_tools import OfferedTools
from ludus.parsers.shapes import JsonCalls, NamedCalls, PythonCalls, Shape, make_problem
from ludus.parsers.values import IncompleteText, MalformedText
from ludus.types import Call

TAGGED = JsonCalls("<t>{call}</t>", between="\n")
BARE = JsonCalls("[{calls}]", strict=True)
NAMED = NamedCalls("<c>{name}<s>{arguments}</c>", JSON)
PYTHON = PythonCalls("<p>[{calls}]</p>")
CALLS = [Call("call_0", "f", '{"x": 1}'), Call("call_1", "g", "{}")]


def read(shape: Shape, text: str, *, final: bool = True) -> tuple[int, list[tuple[str, Any]], list[str]]:
    """The end, the calls, and the kinds of the problems."""
    found = shape.read(TextSource(text, final, OfferedTools()), 0)
    return found.end, [(call.name, call.arguments) for call in found.calls], [p.kind for p in found.problems]


@pytest.mark.parametrize(
    ("shape", "text", "opener", "bare"),
    [
        (TAGGED, f"<t>{F}</t>\n<t>{G}</t>", "<t>", False),
        (BARE, f"[{F}, {G}]", "[", True),
        (NAMED, '<c>f<s>{"x": 1}</c><c>g<s>{}</c>', "<c>", False),
        (PYTHON, "<p>[f(x=1), g()]</p>", "<p>", False),
    ],
    ids=["json", "bare", "named", "python"],
)
def test_a_shape_writes_its_spelling(shape: Shape, text: str, opener: str, bare: bool) -> None:
    assert shape.write(CALLS) == text
    assert (shape.opener, shape.bare) == (opener, bare)


def test_json_calls() -> None:
    assert read(TAGGED, f"<t>{F}</t> rest") == (len(f"<t>{F}</t>"), [("f", {"x": 1})], [])
    assert read(TAGGED, f"<t>[{F}, {G}]</t>")[1] == [("f", {"x": 1}), ("g", {})]
    assert read(TAGGED, f"<t>{F}")[1] == [("f", {"x": 1})], "a closing tag may be missing"
    assert read(TAGGED, f"<t>[{F}, {{bad}}, {G}]</t>")[1:] == ([("f", {"x": 1}), ("g", {})], ["malformed"])
    assert read(TAGGED, f"<t>[{F}")[1:] == ([("f", {"x": 1})], ["truncated"])
    with pytest.raises(MalformedText, match="without a name"):
        read(TAGGED, "<t>{}</t>")
    with pytest.raises(IncompleteText):
        read(TAGGED, '<t>{"name": "f"', final=False)


def test_a_bare_object_must_look_like_a_call() -> None:
    assert read(BARE, f"[{F}]")[1] == [("f", {"x": 1})]
    with pytest.raises(NotACall):
        read(BARE, '[{"other": 1}]')
    with pytest.raises(MalformedText, match="without arguments"):
        read(BARE, '[{"name": "f"}]')


def test_keys_may_have_other_names() -> None:
    other = JsonCalls("<t>{call}</t>", ("tool", "input"), id_key="id")
    assert other.write(CALLS[:1]) == '<t>{"id": "call_0", "tool": "f", "input": {"x": 1}}</t>'
    found = other.read(TextSource('<t>{"tool": "f", "input": {}, "id": "7"}</t>', True, OfferedTools()), 0)
    assert (found.calls[0].name, found.calls[0].id) == ("f", "7")
    keyed = JsonCalls("<t>[{calls}]</t>", keyed=True)
    assert read(keyed, keyed.write(CALLS))[1] == [("f", {"x": 1}), ("g", {})]


def test_named_calls() -> None:
    assert read(NAMED, '<c> f <s>{"x": 1}</c>!') == (21, [("f", {"x": 1})], [])
    assert read(NAMED, '<c>f<s>{"x": 1}')[1] == [("f", {"x": 1})], "JSON shows where it ends"
    with pytest.raises(MalformedText) as caught:
        read(NAMED, "<c><s>{}</c>")
    assert caught.value.early, "the opening tag is wrong"


def test_python_calls() -> None:
    assert read(PYTHON, "<p>[f(x=1, y='a, b'), m.g()]</p>")[1] == [("f", {"x": 1, "y": "a, b"}), ("m.g", {})]
    assert read(PYTHON, "<p>[f(x=oops), g()]</p>")[1:] == ([("g", {})], ["malformed"])
    assert read(PYTHON, "<p>[f(x='it's'), g()]</p>")[1] == [("f", {"x": "it's"}), ("g", {})]
    with pytest.raises(NotACall):
        read(PythonCalls("[{calls}]"), "[1, 2]")
    with pytest.raises(IncompleteText):
        read(PYTHON, "<p>[f(x=1", final=False)


def test_a_problem_has_the_text_up_to_where_reading_stopped() -> None:
    source = TextSource("a <t>{bad} b", True, OfferedTools())
    malformed = make_problem(source, 2, MalformedText(6, "why"))
    assert (malformed.kind, malformed.at, malformed.raw, malformed.why) == ("malformed", 2, "<t>{b", "why")
    assert make_problem(source, 2, IncompleteText()).raw == "<t>{bad} b"
