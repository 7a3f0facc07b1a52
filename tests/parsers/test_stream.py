"""What holds for every format: it reads what it writes, in any pieces, and no text breaks it or slows it down."""

import json
import os
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.parser_kit import F, G

from ludus.parsers import Format, ParsedReply, Parser, ReplyStream, Text, list_names
from ludus.parsers.formats import ALIASES, FORMATS
from ludus.parsers.notations import Tags
from ludus.parsers.shapes import NamedCalls, Shape
from ludus.types import Call, ToolSpec

EVERY = [*FORMATS, "auto"]
quick = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
thorough = settings(quick, max_examples=150)


# ---- what a format can express ------------------------------------------------------------------------------------

word = st.from_regex(r"[a-z][a-z0-9_]{0,11}", fullmatch=True)
letters = st.characters(exclude_categories=["Cs"])
nasty = st.sampled_from(
    ["</tool_call>", "<tool_call>", '"', "'", "\\", "\\n", "\n", "{}", "]", "<|im_end|>", "1", "null"]
)
text = st.lists(st.text(letters, max_size=6) | nasty, max_size=4).map("".join)
scalar = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
prose = st.text("abc xyz.!?éß\n", max_size=20).map(str.strip)


def values(strings: st.SearchStrategy[str], keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalar | strings, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)
    )


def without(*tags: str) -> st.SearchStrategy[str]:
    """Strings that contain none of these, and cannot become one with what surrounds them."""
    return text.map(lambda s: re.sub("|".join(re.escape(tag) for tag in tags), "", s)).filter(
        lambda s: (
            not any(tag[:size] and s.endswith(tag[:size]) for tag in tags for size in range(1, len(tag)))
            and not any(tag in s for tag in tags)
        )
    )


flat = without("]<]minimax[>[")
not_item = word.filter(lambda key: key != "item")
EXPRESSIBLE: dict[str, st.SearchStrategy[Any]] = {
    # Text between tags cannot contain the tags.
    "glm45": values(without("</arg_value>", "<arg_key>"), text),
    "glm47": values(without("</arg_value>", "<arg_key>"), text),
    "ling3": values(without("</arg_value>", "<arg_key>"), text),
    "hunyuan": values(without("</arg_value>", "<arg_key>"), text),
    "hy_v3": values(without("</arg_value>", "<arg_key>"), text),
    "qwen3_coder": values(without("</parameter>", "<parameter="), text),
    "minimax_m2": values(without("</parameter>", "<parameter"), text),
    "dots": values(without("</parameter>", "<parameter"), text),
    "muse_glimmer": values(without("</atem:parameter>", "<atem:parameter"), text),
    "step3": values(without("</steptml:parameter>", "<steptml:parameter"), text),
    "deepseek_v32": values(without("</｜DSML｜parameter>", "<｜DSML｜parameter"), text),
    "deepseek_v4": values(without("</｜DSML｜parameter>", "<｜DSML｜parameter"), text),
    "kimi_k3": values(without("<|close|>argument<|sep|>", "<|open|>argument"), text),
    "minicpm5": values(without("]]>", "</param>", "<param"), text),
    # Nothing is escaped, so keys are words.
    "gemma4": values(without('<|"|>'), word),
    "functiongemma": values(without("<escape>"), word),
    # An item has no name of its own, and no type but its list's.
    "minimax_m3": scalar | flat | st.lists(flat, max_size=3) | st.dictionaries(not_item, flat),
}
ANYTHING = values(text, text)


def schema_of(value: Any) -> dict[str, Any]:
    kinds: list[tuple[type, str]] = [(bool, "boolean"), (str, "string"), (int, "integer"), (float, "number")]
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: schema_of(item) for key, item in value.items()}}
    if isinstance(value, list):
        return {"type": "array", "items": schema_of(value[0]) if value else {}}
    return {"type": next((name for kind, name in kinds if isinstance(value, kind)), "null")}


def identity(format: str, name: str, number: int) -> str:
    own = {"kimi_k2": f"functions.{name}:{number}", "cohere_command3": str(number)}
    return own.get(format, Parser(format).format.ids.format(n=number))


@st.composite
def replies(sample: st.DrawFn, format: str) -> tuple[ParsedReply, list[ToolSpec]]:
    """A reply that a format can write, and the tools it is written for."""
    sampled = sample(
        st.dictionaries(word, st.dictionaries(word, EXPRESSIBLE.get(format, ANYTHING), max_size=3), max_size=3)
    )
    tools = [ToolSpec(name, "", schema_of(given)) for name, given in sampled.items()]
    calls = tuple(
        Call(identity(format, name, number), name, json.dumps(given, ensure_ascii=False))
        for number, (name, given) in enumerate(sampled.items())
    )
    alone = calls and Parser(format).format.keep == "nothing"
    return ParsedReply("" if alone else sample(prose), calls), tools


# ---- the properties -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_a_format_reads_what_it_writes(format: str) -> None:
    @quick
    @given(replies(format))
    def check(sampled: tuple[ParsedReply, list[ToolSpec]]) -> None:
        reply, tools = sampled
        parser = Parser(format)
        assert parser.parse(parser.render(reply.calls, reply.content), tools) == reply

    check()


@pytest.mark.parametrize("format", [f for f in FORMATS if f not in {"dots", "minicpm5", "mistral"}])
def test_auto_reads_what_each_format_writes(format: str) -> None:
    """Save what only a format itself can know: that unknown tools are no calls, and its own numbering."""

    @quick
    @given(replies(format), st.booleans())
    def check(sampled: tuple[ParsedReply, list[ToolSpec]], spoken: bool) -> None:
        reply, tools = sampled
        bare = Parser(format).format.shapes and Parser(format).format.shapes[0].bare
        content = reply.content if spoken and not bare else ""
        read = Parser("auto").parse(Parser(format).render(reply.calls, content), tools)
        assert (read.content, read.calls) == (content, reply.calls)

    check()


def fragments(format: str) -> st.SearchStrategy[str]:
    """Text of the worst kind: markup in no order, halves of calls, brackets, quotes."""
    known = Parser(format).format
    openers = re.findall(r"<[^>]*>|\[\w+\]|\S+", known.render([Call("call_0", "f", '{"a": "b", "c": [1, {"d": 2}]}')]))
    call = known.render([Call("call_0", "f", '{"a": "b <x> c", "n": 1}')], "Hi.")
    halves = st.integers(0, len(call)).map(lambda n: call[:n]) | st.integers(0, len(call)).map(lambda n: call[n:])
    bits = ["<think>", "</think>", '{"name": "f", "arguments": {"x": 1}}', '{"name":', "f(x=1)", "[f(", '"', "'", "\\"]
    bits += ["{", "}", "[", "]", "(", ")", "<", ">", ",", ";", "=", ":", " ", "\n", "é", "x", "</", "|>", "```json\n"]
    return st.lists(st.sampled_from(openers + bits) | halves | st.just(call), max_size=12).map("".join)


def in_pieces(stream: ReplyStream, text: str, sizes: list[int]) -> ParsedReply:
    events = []
    at, turn = 0, 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        events += stream.feed(text[at : at + size])
        at, turn = at + size, turn + 1
    return ParsedReply.from_events([*events, *stream.finish()])


TOOLS = [ToolSpec("f", "", {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}})]


@pytest.mark.parametrize("format", EVERY)
def test_any_pieces_give_the_whole(format: str) -> None:
    @quick
    @example("Hi.\n[f(a='[f(a='b',", [1], False, False)  # a letter that may begin the next string
    @example("[f(a=+.5, b=-.5)]", [1], False, False)
    @given(fragments(format), st.lists(st.integers(1, 30), min_size=1, max_size=5), st.booleans(), st.booleans())
    def check(text: str, sizes: list[int], thinking: bool, offered: bool) -> None:
        parser, tools = Parser(format), TOOLS if offered else []
        whole = parser.parse(text, tools, thinking=thinking)
        assert in_pieces(parser.stream(tools, thinking=thinking), text, sizes) == whole
        assert in_pieces(parser.stream(tools, thinking=thinking), text, [1]) == whole

    check()


@thorough
@given(st.sampled_from(EVERY), st.text(max_size=200), st.sampled_from(EVERY).flatmap(fragments))
def test_nothing_raises_and_every_call_is_json(format: str, text: str, markup: str) -> None:
    read = Parser(format).parse(text + markup + text)
    for call in read.calls:
        assert call.name
        assert json.loads(call.arguments) is not None
    assert len({call.id for call in read.calls}) == len(read.calls)


@pytest.mark.parametrize("name", list_names())
def test_plain_text_is_content(name: str) -> None:
    said = " Let me see: 2 < 3, a[0] = {x}; é.\n"
    assert Parser(name).parse(said) == ParsedReply(said)


# ---- time ---------------------------------------------------------------------------------------------------------


def hostile(format: str) -> dict[str, Callable[[int], str]]:
    known = Parser(format).format
    call = known.render([Call("call_0", "f", '{"a": "b", "c": {"d": [1, "e"]}}')])
    opener = re.match(r"<[^>]*>|\[\w+\]|.", call)
    assert opener
    repeated = {
        "markers": opener.group(),
        "half calls": call[: len(call) // 2],
        "nearly calls": call[: len(call) * 5 // 6],
        "markers and objects": opener.group() + '{"name":',
        "markers and bad objects": opener.group() + '{"a" "b"},',
        "objects": '{"name": "f", "arguments":',
        "unknown words": "f(a=b), ",
        "brackets": "[",
        "backslashes": "\\",
        "spaces": " ",
    }
    texts: dict[str, Callable[[int], str]] = {
        name: lambda size, seed=seed: seed * (size // len(seed)) for name, seed in repeated.items()
    }
    for name, seed in repeated.items():
        texts[f"a marker and {name}"] = lambda size, seed=seed: opener.group() + seed * (size // len(seed))
    texts["one long string"] = lambda size: known.render([Call("call_0", "f", json.dumps({"a": "x\\" * size}))])[:-9]
    return texts


def seconds(work: Callable[[], object], runs: int = 1) -> float:
    """The least CPU time of a few runs: other work on the machine only adds to it."""
    times: list[float] = []
    for _ in range(runs):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def check_linear(small: Callable[[], object], large: Callable[[], object], name: str) -> None:
    """Eight times the text takes about eight times as long; a quadratic reader would take sixty-four times. What is
    done in no time is not measured: two figures of noise have any ratio. One of three measurements must show it,
    since a busy machine disturbs some."""
    if seconds(large) > 0.03:
        assert any(seconds(large, 3) / seconds(small, 3) < 32 for _ in range(3)), name


timed = pytest.mark.skipif(
    not os.environ.get("LUDUS_TEST_TIMES"), reason="measures time: make bench runs it (LUDUS_TEST_TIMES=1)"
)


@timed
@pytest.mark.parametrize("format", EVERY)
def test_time_is_linear_in_the_length(format: str) -> None:
    parse = Parser(format).parse
    for name, make in hostile(format).items():
        small, large = make(1000), make(8000)
        check_linear(lambda text=small: parse(text), lambda text=large: parse(text), name)


@timed
@pytest.mark.parametrize("format", ["hermes", "qwen3_coder", "pythonic", "deepseek_v3", "gemma4", "auto"])
def test_a_long_call_in_small_pieces_takes_linear_time(format: str) -> None:
    parser = Parser(format)

    def stream(size: int) -> None:
        text = Parser(format if format != "auto" else "hermes").render(
            [Call("call_0", "f", json.dumps({"a": "if (x) { y }\n" * size}))]
        )
        read = in_pieces(parser.stream(), text, [4])
        assert len(read.calls) == 1

    check_linear(lambda: stream(150), lambda: stream(1200), format)


def shapes_of(format: Format) -> list[Shape]:
    return [*format.shapes, *(shape for section in format.sections for shape in section.shapes)]


def is_tagged(shape: Shape) -> bool:
    return isinstance(shape, NamedCalls) and isinstance(shape.notation, Tags)


def test_tagged_text_is_what_needs_a_list_of_what_it_cannot_express() -> None:
    """Every format whose arguments are text between tags is listed above."""
    tagged = {name for name, format in FORMATS.items() if any(map(is_tagged, shapes_of(format)))}
    assert tagged <= EXPRESSIBLE.keys()
    assert not set(ALIASES) & set(FORMATS)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("<think>a <think>b</think> {f}</think>c {g}", ["g"]),
        ("<think>a <think>b <think>c</think> {f}</think> {f}</think> {g}", ["g"]),
        ("<think>the tag <think> opens it</think> {f} c", ["f"]),  # it speaks of the tag
        ("<think>the tag <think> opens it</think> {f} <think>{g}</think> {f}", ["f", "f"]),
    ],
    ids=["nested", "twice", "mentioned", "mentioned, and another thought"],
)
def test_a_thought_within_a_thought_ends_with_its_own_tag_if_there_is_one(text: str, names: list[str]) -> None:
    text = text.format(f=f"<tool_call>{F}</tool_call>", g=f"<tool_call>{G}</tool_call>")
    reply = Parser("hermes").parse(text)
    assert [call.name for call in reply.calls] == names
    assert reply.problems == ()
    stream = Parser("hermes").stream()
    pieces = [event for char in text for event in stream.feed(char)] + stream.finish()
    assert ParsedReply.from_events(pieces) == reply


def test_a_thought_that_the_prompt_began_and_the_model_begins_again_is_one() -> None:
    text = f"\n<think>hm</think> <tool_call>{F}</tool_call>"
    stream = Parser("hermes").stream(thinking=True)
    assert Call("call_0", "f", '{"x": 1}') in stream.feed(text), "nothing more is waited for"


def feed_text(stream: Any, piece: str) -> str:
    return "".join(event.text for event in stream.feed(piece) if isinstance(event, Text))


def test_content_is_passed_on_as_soon_as_it_is_certain() -> None:
    stream = Parser("hermes").stream()
    assert feed_text(stream, "Hello wor") == "Hello wor"
    assert feed_text(stream, "ld, 1 <") == "ld, 1"
    assert feed_text(stream, " 2 <tool") == " < 2"
    assert feed_text(stream, "box> <tool_call>") == " <toolbox>"
    assert feed_text(stream, "\n") == ""
    assert feed_text(stream, "is a tag") == " <tool_call>\nis a tag"
    assert feed_text(stream, f". <tool_call>{F}") == "."
    assert stream.feed("</tool_call>") == [Call("call_0", "f", '{"x": 1}')]
    assert feed_text(stream, "\nDone") == "\nDone"
    assert stream.finish() == []


def test_a_thought_is_passed_on_while_it_is_thought() -> None:
    stream = Parser("hermes").stream()
    assert feed_text(stream, "<think>hm <tool_call>x") == "<think>hm <tool_call>x"
    assert feed_text(stream, "y</thin") == "y"
    assert feed_text(stream, "k>z") == "</think>z"


def test_calls_of_a_section_come_one_by_one() -> None:
    stream = Parser("kimi_k2").stream()
    call = "<|tool_call_begin|>functions.f:{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    assert stream.feed("Ok. <|tool_calls_section_begin|>" + call.format(0)) == [
        Text("Ok."),
        Call("functions.f:0", "f", "{}"),
    ]
    assert stream.feed(call.format(1)) == [Call("functions.f:1", "f", "{}")]


def test_at_most_a_hundred_problems_are_reported() -> None:
    reply = Parser("hermes").parse("<tool_call>" * 1000)
    assert reply.content == "<tool_call>" * 1000
    assert len(reply.problems) == 100


def list_ids(format: str, text: str, **options: Any) -> list[str]:
    return [call.id for call in Parser(format).parse(text, **options).calls]


def test_ids_are_counted_or_the_formats_own() -> None:
    assert list_ids("hermes", f"<tool_call>{F}</tool_call>" * 2) == ["call_0", "call_1"]
    assert list_ids("hermes", f"<tool_call>{F}</tool_call>", first=7) == ["call_7"]
    assert list_ids("mistral", '[TOOL_CALLS]f{"x": 1}[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}') == [
        "call00000",
        "abcdefghi",
    ]
    call = "<|tool_call_begin|>functions.f:5<|tool_call_argument_begin|>{}<|tool_call_end|>"
    assert list_ids("kimi_k2", call) == ["functions.f:5"]
    assert list_ids("kimi_k2", call * 2) == ["functions.f:5", "call_0"], "no id twice"
