"""What each format reads from good, malformed and cut replies of models."""

import json
import re
from typing import Any

import pytest
from tests.parser_kit import WEATHER, F, G, make_tool, read

from ludus.errors import ConfigError
from ludus.parsers import ParsedReply, Parser, list_names
from ludus.parsers.formats import ALIASES, FORMATS
from ludus.types import Call

# ---- hermes: JSON between tags ------------------------------------------------------------------------------------

HERMES = {
    "text before": (f"hi <tool_call>{F}</tool_call>", "hi", [("f", {"x": 1})], []),
    "text between and after": (
        f"a <tool_call>{F}</tool_call> b <tool_call>{G}</tool_call>\nc",
        "a b\nc",
        [("f", {"x": 1}), ("g", {})],
        [],
    ),
    "no closing tag": (f"<tool_call>\n{F}", "", [("f", {"x": 1})], []),
    "half a closing tag": (f"<tool_call>{F}</tool_c", "", [("f", {"x": 1})], []),
    "cut JSON": ('<tool_call>{"name": "f", "arg', '<tool_call>{"name": "f", "arg', [], ["truncated"]),
    "a good call and a cut one": (
        f'<tool_call>{F}</tool_call>\n<tool_call>{{"name": "g',
        '<tool_call>{"name": "g',
        [("f", {"x": 1})],
        ["truncated"],
    ),
    "a bad call between two good ones": (
        f"<tool_call>{F}</tool_call><tool_call>{{'name'}}</tool_call><tool_call>{G}</tool_call>",
        "<tool_call>{'name'}</tool_call>",
        [("f", {"x": 1}), ("g", {})],
        ["malformed"],
    ),
    "a string that is not closed": (
        f'<tool_call>{{"name": "f", "arguments": {{"x": "1}}}}</tool_call>\n<tool_call>{G}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": "1}}</tool_call>',
        [("g", {})],
        ["malformed"],
    ),
    "calls in a thought": (
        f"<think>maybe <tool_call>{F}</tool_call></think>real <tool_call>{G}</tool_call>",
        f"<think>maybe <tool_call>{F}</tool_call></think>real",
        [("g", {})],
        [],
    ),
    "a thought without end": (f"<think>so <tool_call>{F}</tool_call>", f"<think>so <tool_call>{F}</tool_call>", [],
                              ["truncated"]),
    "arguments encoded twice": (
        '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [("f", {"x": 1})], []),
    "arguments encoded three times": (
        f'<tool_call>{{"name": "f", "arguments": {json.dumps(json.dumps(json.dumps({"x": 1})))}}}</tool_call>',
        "", [("f", {"x": 1})], []),
    "a closing tag in a string": (
        '<tool_call>{"name": "f", "arguments": {"x": "a</tool_call>b"}}</tool_call>', "",
        [("f", {"x": "a</tool_call>b"})], []),
    "raw newlines in a string": (
        '<tool_call>{"name": "f", "arguments": {"x": "a\nb\tc"}}</tool_call>', "", [("f", {"x": "a\nb\tc"})], []),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', "", [("f", {})], []),
    "arguments that are null": ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", {})], []),
    "no name": ('<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', [],
                ["malformed"]),
    "an empty tag": ("<tool_call></tool_call>", "<tool_call></tool_call>", [], ["malformed"]),
    "a list in a tag": (f"<tool_call>[{F}, {G}]</tool_call>", "", [("f", {"x": 1}), ("g", {})], []),
    "two objects in a tag": (f"<tool_call>{F}\n{G}</tool_call>", "", [("f", {"x": 1}), ("g", {})], []),
    "an upper-case tag": (f"<TOOL_CALL>{F}</TOOL_CALL>", f"<TOOL_CALL>{F}</TOOL_CALL>", [], []),
    "the API's own form": (
        '<tool_call>{"type": "function", "function": {"name": "f", "arguments": "{}"}}</tool_call>', "",
        [("f", {})], []),
    "NaN": ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
            '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', [], ["malformed"]),
    "the tag in prose": ("Use the <tool_call> tag.", "Use the <tool_call> tag.", [], ["malformed"]),
    "an end token": (f"<tool_call>{F}</tool_call><|im_end|>", "", [("f", {"x": 1})], []),
}  # fmt: skip


@pytest.mark.parametrize("case", HERMES)
def test_hermes(case: str) -> None:
    text, content, calls, problems = HERMES[case]
    assert read("hermes", text) == (content, calls, problems)


def test_a_problem_has_its_position_and_text() -> None:
    (problem,) = Parser("hermes").parse('Well: <tool_call>{"name": "f", "arguments": {"x" 1}}</tool_call>').problems
    assert (problem.kind, problem.at) == ("malformed", 6)
    assert problem.raw == '<tool_call>{"name": "f", "arguments": {"x" 1'
    assert "bad JSON" in problem.why


def test_a_thought_that_the_prompt_began() -> None:
    text = f"first <tool_call>{F}</tool_call></think> then <tool_call>{G}</tool_call>"
    assert read("hermes", text, thinking=True)[1] == [("g", {})]
    assert read("hermes", text)[1] == [("f", {"x": 1}), ("g", {})]


# ---- qwen2_5_coder: JSON in fenced blocks -------------------------------------------------------------------------

FENCED = {
    "a call": (f"```json\n{F}\n```", "", [("f", {"x": 1})], []),
    "text around": (f"I look.\n```json\n{F}\n```\nThen I go on.", "I look.\nThen I go on.", [("f", {"x": 1})], []),
    "on several lines": (
        '```json\n{\n  "name": "f",\n  "arguments": {\n    "x": 1\n  }\n}\n```', "", [("f", {"x": 1})], []),
    "two objects in a block": (f"```json\n{F}\n{G}\n```", "", [("f", {"x": 1}), ("g", {})], []),
    "two blocks": (f"```json\n{F}\n```\n```json\n{G}\n```", "", [("f", {"x": 1}), ("g", {})], []),
    "a list": (f"```json\n[{F}, {G}]\n```", "", [("f", {"x": 1}), ("g", {})], []),
    "no end of the block": (f"```json\n{F}", "", [("f", {"x": 1})], []),
    "the tags of its template": (f"<tool_call>\n{F}\n</tool_call>", "", [("f", {"x": 1})], []),
    "nothing around it": (F, "", [("f", {"x": 1})], []),
    "an object in prose": (f"Write {F} for it.", f"Write {F} for it.", [], []),
    "ordinary JSON": ('```json\n{"name": "Ann", "age": 3}\n```', '```json\n{"name": "Ann", "age": 3}\n```', [], []),
    "an ordinary list": ('```json\n[{"name": "Ann"}]\n```', '```json\n[{"name": "Ann"}]\n```', [], []),
    "other keys": ('```json\n{"a": [1]}\n```', '```json\n{"a": [1]}\n```', [], []),
    "a tool without arguments": ('```json\n{"name": "f"}\n```', '```json\n{"name": "f"}\n```', [], []),
    "an unknown tool": (
        '```json\n{"name": "Ann", "arguments": {}}\n```', '```json\n{"name": "Ann", "arguments": {}}\n```', [],
        ["unknown_tool"]),
    "another language": ('```python\nprint({"name": 1})\n```', '```python\nprint({"name": 1})\n```', [], []),
    "cut": ('```json\n{"name": "f", "argum', '```json\n{"name": "f", "argum', [], ["truncated"]),
    "an end token": (f"```json\n{F}\n```<|im_end|>", "", [("f", {"x": 1})], []),
}  # fmt: skip


@pytest.mark.parametrize("case", FENCED)
def test_qwen2_5_coder(case: str) -> None:
    text, content, calls, problems = FENCED[case]
    tools = make_tool("f", x="integer"), make_tool("g")
    assert read("qwen2_5_coder", text, *tools) == (content, calls, problems)
    stream = Parser("qwen2_5_coder").stream(tools)
    events = [event for letter in text for event in stream.feed(letter)] + stream.finish()
    streamed = ParsedReply.from_events(events)
    assert (streamed.content, [c.name for c in streamed.calls]) == (content, [name for name, _ in calls])


# ---- the other shapes ---------------------------------------------------------------------------------------------


OTHERS: list[tuple[str, str, str, list[tuple[str, Any]], list[str]]] = [
    # mistral: three generations
    ("mistral", f"[TOOL_CALLS] [{F}, {G}]", "", [("f", {"x": 1}), ("g", {})], []),
    ("mistral", f"a[TOOL_CALLS] [{F}] b", "a", [("f", {"x": 1})], ["stray"]),
    ("mistral", f'[TOOL_CALLS] [{F}, {{"name": "g", "ar', "", [("f", {"x": 1})], ["truncated"]),
    ("mistral", f'[TOOL_CALLS] [{{"name": "b", "arguments": {{bad}}}}, {F}]', "", [("f", {"x": 1})], ["malformed"]),
    ("mistral", '[TOOL_CALLS]f{"x": 1}[TOOL_CALLS]g{"y": {"z": 2}}', "", [("f", {"x": 1}), ("g", {"y": {"z": 2}})], []),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"x": 1}', "", [("f", {"x": 1})], []),
    ("mistral", '[TOOL_CALLS]f{"x": ', '[TOOL_CALLS]f{"x": ', [], ["truncated"]),
    ("mistral", '[THINK]use [TOOL_CALLS]f{"x": 1}[/THINK]No.', '[THINK]use [TOOL_CALLS]f{"x": 1}[/THINK]No.', [], []),
    # llama: JSON without markers
    ("llama3_json", f"{F}{G}", "", [("f", {"x": 1}), ("g", {})], []),
    ("llama3_json", f"<|python_tag|>{F}; {G}<|eom_id|>", "", [("f", {"x": 1}), ("g", {})], []),
    ("llama4_json", f'Like {{"a": 1}}: {F} ok?', 'Like {"a": 1}: ok?', [("f", {"x": 1})], []),
    ("llama3_json", f'{{"type": "list", "calls": [{F}]}}', f'{{"type": "list", "calls": [{F}]}}', [], ["malformed"]),
    ("llama3_json", f'{{"name": "w", "parameters": {{"calls": [{F}]', f'{{"name": "w", "parameters": {{"calls": [{F}]',
     [], ["truncated"]),
    # deepseek
    ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f \n ```json\n\n"
     '{"x": 1} \n```\n<｜tool▁call▁end｜>\n'
     "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```", "",
     [("f", {"x": 1}), ("g", {})], []),
    ("deepseek_v3_1", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>oops<｜tool▁call▁end｜>"
     '<｜tool▁call▁begin｜>g<｜tool▁sep｜>{"y": "<｜tool▁call▁end｜>"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
     "<｜tool▁call▁begin｜>f<｜tool▁sep｜>oops<｜tool▁call▁end｜>",
     [("g", {"y": "<｜tool▁call▁end｜>"})], ["malformed"]),
    ("deepseek_v3_1", '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜>', "", [("f", {"x": 1})], []),
    # kimi: calls outside their section are read too
    ("kimi_k2", 'Ok.<|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{"x": 1}<|tool_call_end|> Done.',
     "Ok. Done.", [("f", {"x": 1})], []),
    ("kimi_k2", "<|tool_call_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
     "<|tool_call_end|><|tool_call_section_end|>", "", [("f", {})], []),
    # glm
    ("glm45", "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>True</arg_value>\n<arg_key>y</arg_key>\n"
     "<arg_value>007</arg_value>\n</tool_call>", "", [("f", {"x": True, "y": "007"})], []),
    ("glm47", "<tool_call>f</tool_call>", "", [("f", {})], []),
    ("glm47", '<tool_call>{"name": "a"}</tool_call>', '<tool_call>{"name": "a"}</tool_call>', [], ["malformed"]),
    ("glm45", "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>a </tool_call> b</arg_value>\n</tool_call>", "",
     [("f", {"x": "a </tool_call> b"})], []),
    ("glm45", "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>a", "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>a",
     [], ["truncated"]),
    # qwen3_coder
    ("qwen3_coder", "<function=f>\n<parameter=x>\n1\n</parameter>\n</function>", "", [("f", {"x": 1})], []),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=x>\necho 'a > b'\n</function>\n</tool_call>\n"
     "<tool_call>\n<function=g>\n<parameter=y>\n2\n</parameter>\n</function>\n</tool_call>", "",
     [("f", {"x": "echo 'a > b'"}), ("g", {"y": 2})], []),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=x>\nif a:\n</function>\n\n</parameter>\n</function>", "",
     [("f", {"x": "if a:\n</function>\n"})], []),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n",
     "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n", [], ["truncated"]),
    # ling3: no newline between two arguments
    ("ling3", "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value><arg_key>y</arg_key>\n<arg_value>a\nb"
     "</arg_value>\n</tool_call>", "", [("f", {"x": 1, "y": "a\nb"})], []),
    ("ling3", "<tool_call>f\\n<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>", "", [("f", {"x": 1})], []),
    ("ling3", "<tool_call>ping</tool_call><|role_end|>", "", [("ping", {})], []),
    # gpt_oss: channels and recipients
    ("gpt_oss", "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
     '<|constrain|>json<|message|>{"x":1}<|call|>', "", [("f", {"x": 1})], []),
    ("gpt_oss", ' to=functions.f<|channel|>commentary json<|message|>{"x": 1}', "", [("f", {"x": 1})], []),
    ("gpt_oss", '<|channel|>analysis to=functions.f<|message|>{"x": 1}<|call|>', "", [("f", {"x": 1})], []),
    ("gpt_oss", '<|channel|>commentary to=browser.open<|constrain|>json<|message|>{"id": 1}<|call|>', "",
     [("browser.open", {"id": 1})], []),
    ("gpt_oss", '<|start|>assistant to=browser.open<|channel|>analysis json<|message|>{"id": 1}<|call|>', "",
     [("browser.open", {"id": 1})], []),
    ("gpt_oss", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.f<|channel|>commentary "
     'json<|message|>{"x": 1}<|call|>', "I look.", [("f", {"x": 1})], []),
    ("gpt_oss", "<|channel|>analysis<|message|>Use <|channel|>commentary to=functions.f<|message|>{}.<|end|>"
     "<|start|>assistant<|channel|>final<|message|>Say to=functions.f.<|return|>", "Say to=functions.f.", [], []),
    ("gpt_oss", '<|channel|>final <|constrain|>json<|message|>{"a": 1}<|return|>', '{"a": 1}', [], []),
    ("gpt_oss", '<|channel|>commentary to=functions.f json<|message|>{"x": ',
     '<|channel|>commentary to=functions.f json<|message|>{"x": ', [], ["truncated"]),
    ("gpt_oss", "<|channel|>commentary to=functions.f json<|message|>ls<|call|>",
     "<|channel|>commentary to=functions.f json<|message|>ls", [], ["malformed"]),
    ("gpt_oss", "Plain text.", "Plain text.", [], []),
    # muse_glimmer: what it tells itself is no content
    ("muse_glimmer", " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Yes.<|eot|>", "Yes.", [], []),
    # python
    ("pythonic", "[f(x=-1.5, y=[1, (2, 3)], z={'a': None}), g()]", "",
     [("f", {"x": -1.5, "y": [1, [2, 3]], "z": {"a": None}}), ("g", {})], []),
    ("pythonic", "see [1] and [f(x)]", "see [1] and [f(x)]", [], ["malformed"]),
    ("olmo3", "<function_calls>f(x=1)\ng(y=oops)\nh(z='</function_calls>')</function_calls> ok", "ok",
     [("f", {"x": 1}), ("h", {"z": "</function_calls>"})], ["malformed"]),
    ("lfm2", "<|tool_call_start|>[f(x='it's', y='ok'), g()]<|tool_call_end|>", "",
     [("f", {"x": "it's", "y": "ok"}), ("g", {})], []),
    # braces
    ("gemma4", '<|tool_call>call:f{x:{y:[1,<|"|>a, b}<|"|>],z:null}}<tool_call|>', "",
     [("f", {"x": {"y": [1, "a, b}"], "z": None}})], []),
    # sections without a call are text
    ("minimax_m2", "<minimax:tool_call>nothing</minimax:tool_call>", "<minimax:tool_call>nothing</minimax:tool_call>",
     [], []),
    ("kimi_k3", "<|open|>think<|sep|><|open|>tools<|sep|><|close|>think<|sep|>"
     "<|open|>response<|sep|>Hi<|close|>response<|sep|>", "Hi", [], []),
    ("kimi_k3", '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>json type="object"<|sep|>{"x": 1}'
     "<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>", "", [("f", {"x": 1})], []),
]  # fmt: skip


@pytest.mark.parametrize(("format", "text", "content", "calls", "problems"), OTHERS)
def test_formats(format: str, text: str, content: str, calls: list[tuple[str, Any]], problems: list[str]) -> None:
    assert read(format, text) == (content, calls, problems)


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (
            "gpt_oss",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        ),
        ("muse_glimmer", " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Yes.<|eot|>"),
    ],
)
def test_the_formats_own_thinking_channel_is_reasoning(format: str, text: str) -> None:
    for name in (format, "auto"):
        reply = Parser(name).parse(text)
        assert (reply.content, reply.reasoning, reply.problems) == ("Yes.", "Hm.", ())


def test_qwen3_coder_writes_booleans_and_null_as_its_template_does() -> None:
    """The template writes scalars with Jinja's `string`, and lists and objects with `tojson`."""
    given = {"a": True, "b": None, "c": [True, None], "d": "true", "e": 1.5}
    written = Parser("qwen3_coder").render([Call("call_0", "f", json.dumps(given))])
    values = re.findall(r"<parameter=\w>\n(.*)\n</parameter>", written)
    assert values == ["True", "None", "[true, null]", "true", "1.5"]
    tool = make_tool("f", a="boolean", b="null", c="array", d="string", e="number")
    assert read("qwen3_coder", written, tool) == ("", [("f", given)], [])


CALL = "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_call_ends_an_open_thought_of_ling3_if_nothing_closes_it(size: int) -> None:
    def parse(text: str) -> tuple[str, int]:
        stream = Parser("ling3").stream(thinking=True)
        events = [event for at in range(0, len(text), size) for event in stream.feed(text[at : at + size])]
        reply = ParsedReply.from_events([*events, *stream.finish()])
        assert not reply.problems
        return reply.content, len(reply.calls)

    assert parse(f"I look.\n{CALL}") == ("I look.", 1)
    assert parse(f"I look.\n{CALL}\n{CALL} Done.") == ("I look. Done.", 2)
    closed = f"Maybe {CALL} or {CALL}.</think>"
    assert parse(f"{closed}Yes.\n{CALL}") == (f"{closed}Yes.", 1)


# ---- names and ids ------------------------------------------------------------------------------------------------


def test_names_are_found_in_any_spelling() -> None:
    assert Parser("DeepSeek-V3.1").format is Parser("deepseek_v31").format is FORMATS["deepseek_v3_1"]
    assert Parser("granite-20b-fc").format is FORMATS["granite_20b_fc"]
    assert {*FORMATS, *ALIASES, "auto"} == set(list_names())


def test_an_unknown_parser_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="unknown tool-call parser 'hermez'; did you mean 'hermes'"):
        Parser("hermez")


# ---- auto ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_auto_tells_formats_apart(format: str) -> None:
    written = Parser(format).render([Call("call_0", "get_weather", '{"city": "Rome", "days": 2}')])
    assert read("auto", written, WEATHER) == ("", [("get_weather", {"city": "Rome", "days": 2})], [])


def test_auto_does_not_look_for_bare_calls_in_prose() -> None:
    said = f"The log says {F}, and [f(x=1)]."
    assert read("auto", said) == (said, [], [])
    assert read("auto", f" {F}; {G}")[1] == [("f", {"x": 1}), ("g", {})]


# ---- cut short ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_a_cut_call_is_never_run_in_half(format: str) -> None:
    """Of a reply that is cut anywhere, every call that is read is one that was written."""
    spec = make_tool("f", path="string", text="string", n="integer")
    calls = [
        Call("call_0", "f", '{"path": "/tmp/a", "text": "one, two) three", "n": 12}'),
        Call("call_1", "f", '{"path": "b", "text": "x", "n": 345}'),
    ]
    whole = [("f", json.loads(call.arguments)) for call in calls]
    parser = Parser(format)
    text = parser.render(calls)
    assert read(format, text, spec)[1] == whole
    for end in range(len(text)):
        found = read(format, text[:end], spec)[1]
        assert found == whole[: len(found)], text[:end]
    one = parser.render(calls[:1])
    cut = one[: len(one) * 3 // 4]
    assert read(format, cut, spec)[1:] == ([], ["truncated"])
