"""The formats: how each family of models writes its tool calls, in the spelling of its own chat template.

A format is data: the shapes of its calls, what encloses them, and what else in a reply is markup. Reading and writing
calls is in `shapes`, the order of things in a reply in `stream`. To add a format, add an entry to the table. The tests
then check that it reads what it writes, whole and in pieces.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

from ludus.errors import ConfigError, suggest
from ludus.parsers.markup_reader import Spelling, TextSource
from ludus.parsers.notations import JSON, Braces, Nested, Tags
from ludus.parsers.shapes import FENCE, JsonCalls, NamedCalls, PythonCalls, Shape
from ludus.parsers.values import IncompleteText
from ludus.types import Call


@dataclass(frozen=True)
class Section:
    """Markup around all calls of a reply, and the shapes that are calls inside it."""

    begin: str
    end: str
    shapes: tuple[Shape, ...]

    @cached_property
    def spelling(self) -> Spelling:
        return Spelling(self.begin)

    @cached_property
    def markers(self) -> "Markers":
        return Markers((*self.shapes, End(self.end)))


@dataclass(frozen=True)
class End:
    """The end of a section."""

    tag: str

    @cached_property
    def spelling(self) -> Spelling:
        return Spelling(self.tag)


@dataclass(frozen=True)
class Span:
    """A part of a reply in which nothing is a call: thinking, or a message to the user."""

    begin: str
    ends: tuple[str, ...]
    thought: bool = False
    """The text is reasoning, not content."""
    tags: bool = False
    """The tags stay in the content: other code looks for them there."""
    calls: tuple[str, ...] = ()
    """Markers of calls. The first of them ends the span if no tag does. Without any, nothing in a span is a call."""

    @cached_property
    def spelling(self) -> Spelling:
        return Spelling(self.begin)

    @cached_property
    def edges(self) -> "Markers":
        """The tags that end it and, if it may be nested, the tag that begins another one."""
        return Markers((*map(End, (*self.ends, *self.calls)), *([End(self.begin)] if self.tags else [])))


@dataclass(frozen=True)
class Noise:
    """Markup without meaning. It is dropped."""

    tag: str

    @cached_property
    def spelling(self) -> Spelling:
        return Spelling(self.tag)


Markup = Shape | Section | Span | Noise | End


class Markers:
    """The markers to look for in a text, and the markup that may begin with each."""

    def __init__(self, markup: Sequence[Markup]) -> None:
        openers = [(each.opener if isinstance(each, Shape) else each.spelling.opener, each) for each in markup]
        literals = sorted({opener for opener, _ in openers}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, literals)))
        self._beginnings = {literal[:size] for literal in literals for size in range(1, len(literal))}
        self._longest = len(literals[0])
        self._markup = {
            literal: [each for opener, each in openers if literal.startswith(opener)] for literal in literals
        }

    def find(self, source: TextSource, at: int) -> tuple[int, int]:
        """Where the next marker begins and ends. Both are equal if there is none: the position from which to wait for
        more text, if the text may end inside a marker, or else the end of the text."""
        text = source.text
        found = self._pattern.search(text, at)
        end = len(text)
        begin = found.start() if found else end
        if not source.final:
            # A longer marker may begin before the one that was found.
            sizes = range(min(self._longest, end - at), end - begin, -1)
            partial = next((size for size in sizes if text[-size:] in self._beginnings), 0)
            if partial:
                return end - partial, end - partial
        return begin, found.end() if found else end

    def list_choices(self, source: TextSource, begin: int, end: int) -> list[Markup]:
        """The markup that may begin with the marker that `find` returned, in the order of the format."""
        if not source.final and source.text[begin : begin + self._longest] in self._beginnings:
            raise IncompleteText  # it may become a longer marker
        return self._markup[source.text[begin:end]]


THINK = Span("<think>", ("</think>",), tags=True)


@dataclass(frozen=True)
class Format:
    """How one family of models writes replies. Markup is tried in the order shapes, sections, spans, noise. The first
    shape is the one that is written."""

    shapes: tuple[Shape, ...] = ()
    sections: tuple[Section, ...] = ()
    spans: tuple[Span, ...] = (THINK,)
    noise: tuple[str, ...] = ()
    glue: str = ""
    """Characters without meaning between two calls, besides white space."""
    keep: Literal["all", "before", "nothing"] = "all"
    """Which text is content if there are calls. Other text is reported as stray."""
    known: Literal["", "name", "schema"] = ""
    """If tools are given, a call must have a known name, or also fit the tool's schema. Empty: neither."""
    repair: bool = False
    """A wrong or missing name may be inferred from the arguments."""
    anchored: bool = False
    """A call without a marker counts only at the beginning of a reply."""
    ids: str = "call_{n}"
    """The ids of calls that have none of their own."""
    gap: str = ""
    """The text between content and calls."""
    content: str = "{content}"
    """The markup around content."""
    preamble: str = ""
    """The markup around content that comes before calls, if it is another one."""

    @cached_property
    def markers(self) -> Markers:
        return Markers((*self.shapes, *self.sections, *self.spans, *map(Noise, self.noise)))

    @cached_property
    def between_calls(self) -> re.Pattern[str]:
        return re.compile(rf"[\s{re.escape(self.glue)}]*+")

    def render(self, calls: Sequence[Call], content: str = "") -> str:
        """Write a reply as the model would have written it."""
        markup = self.preamble if calls and self.preamble else self.content
        before = markup.replace("{content}", content) if content else ""
        if not calls:
            return before
        section = self.sections[0] if self.sections else Section("", "", self.shapes)
        written = f"{section.begin}{section.shapes[0].write(calls)}{section.end}"
        return f"{before}{self.gap}{written}" if before else written


# ---- the table ----------------------------------------------------------------------------------------------------


def _make_invoke(prefix: str, hint: str = "") -> NamedCalls:
    """`<invoke name="…">` with a `<parameter name="…">` for each argument; all tags have a prefix."""
    plain = f'<{prefix}parameter name="{{key}}">{{value}}</{prefix}parameter>\n'
    tags = Tags(plain.replace('">{', f'"{hint}>{{'), also=(plain,)) if hint else Tags(plain)
    return NamedCalls(f'<{prefix}invoke name="{{name}}">\n{{arguments}}</{prefix}invoke>\n', tags)


def _make_kimi_k2(identity: str) -> NamedCalls:
    tail = "<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
    return NamedCalls(f"<|tool_call_begin|>{identity}{tail}", JSON, id=identity if "name" in identity else "")


def _make_kimi_k3() -> tuple[Shape, ...]:
    call = '<|open|>call tool="{name}" index="{index}"<|sep|>%s<|close|>call<|sep|>'
    tags = Tags('<|open|>argument key="{key}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>')
    block = '<|open|>json type="object"<|sep|>{arguments}<|close|>json<|sep|>'
    return NamedCalls(call % "{arguments}", tags), NamedCalls(call % block, JSON)


def _make_harmony() -> tuple[Shape, ...]:
    """The recipient stands before the channel (as in the template) or after it (as models write)."""
    channels = ("commentary", "analysis")
    headers = [f" to=functions.{{name}}<|channel|>{channel}" for channel in channels]
    for recipient in ("functions.{name}", "{name}"):
        headers += [f"<|channel|>{channel} to={recipient}" for channel in channels]
        headers += [f"<|start|>assistant to={recipient}<|channel|>{channel}" for channel in channels]
    return tuple(
        NamedCalls(f"{header}{kind}<|message|>{{arguments}}<|call|>", JSON, between="<|start|>assistant")
        for header in headers
        for kind in (" json", " <|constrain|>json", "")
    )


def _make_special(*words: str) -> tuple[str, ...]:
    return tuple(f"<|{word}|>" for word in words)


_M3 = "]<]minimax[>["
_EOS = "<｜end▁of▁sentence｜>"
_HARMONY_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_HERMES = JsonCalls("<tool_call>\n{call}\n</tool_call>", between="\n")
_QWEN = Tags("<parameter={key}>\n{value}\n</parameter>\n", python=True)
_GLM = Tags("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
_GLM47 = Tags("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>")
_LING3 = Tags("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>")
_DSML = _make_invoke("｜DSML｜", hint=' string="{string}"')
_KIMI_K2 = tuple(map(_make_kimi_k2, ("functions.{name}:{index}", "{name}:{index}", "{index}")))
_DEEPSEEK_V3 = tuple(
    NamedCalls(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{name}}\n{arguments}<｜tool▁call▁end｜>", JSON, between="\n"
    )
    for arguments in ("```json\n{arguments}\n```", "{arguments}")
)
_DEEPSEEK_V3_1 = (NamedCalls("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>", JSON),)


def _make_deepseek(shapes: tuple[Shape, ...]) -> Format:
    section = Section("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", shapes)
    return Format(shapes, (section,), noise=(_EOS,), keep="before")


FORMATS: Mapping[str, Format] = {
    # JSON objects
    "hermes": Format((_HERMES,), noise=_make_special("im_end"), gap="\n"),
    "ernie45": Format((_HERMES,), noise=("<response>", "</response>"), gap="\n"),
    "longcat": Format(
        (JsonCalls("<longcat_tool_call>\n{call}\n</longcat_tool_call>", between="\n"),),
        spans=(THINK, Span("<longcat_think>", ("</longcat_think>",), tags=True)),
        gap="\n",
    ),
    "internlm": Format((JsonCalls("<|action_start|><|plugin|>\n{call}<|action_end|>", ("name", "parameters")),)),
    "granite_20b_fc": Format((JsonCalls("<function_call> {call}", between="\n"),), gap="\n"),
    "gigachat3": Format(
        (
            JsonCalls("<|message_sep|>\n\nfunction call<|role_sep|>\n{call}", strict=True),
            JsonCalls("<|function_call|>{call}", strict=True),
        ),
        noise=("<|message_sep|>", "</s>"),
    ),
    "inkling": Format(
        (
            JsonCalls("<|message_model|>{to}<|content_invoke_tool_json|>{call}<|end_message|>", ("name", "args")),
            JsonCalls("<|content_invoke_tool_json|>{call}<|end_message|>", ("name", "args")),
        ),
        spans=(THINK, Span("<|content_thinking|>", ("<|end_message|>",), thought=True)),
        noise=_make_special("message_model", "content_text", "end_message"),
        content="<|message_model|><|content_text|>{content}<|end_message|>",
    ),
    "llama3_json": Format(
        (JsonCalls("{call}", ("name", "parameters"), strict=True, between="; "),),
        noise=_make_special("python_tag", "python_start", "python_end", "eom_id", "eot_id"),
        glue=";,",
        gap="\n",
    ),
    "qwen2_5_coder": Format(
        # Its template has the tags of hermes. The model itself writes a fenced block, or nothing around the object.
        (_HERMES, JsonCalls(f"{FENCE}\n{{call}}\n```", strict=True), JsonCalls("{call}", strict=True)),
        noise=_make_special("im_end"),
        known="name",
        anchored=True,
        gap="\n",
    ),
    # lists of JSON objects
    "jamba": Format((JsonCalls("<tool_calls>[\n    {calls}\n]</tool_calls>", between=",\n    "),)),
    "hunyuan_a13b": Format((JsonCalls("<tool_calls>[{calls}]</tool_calls>"),), noise=("<answer>", "</answer>")),
    "granite": Format(
        # The first marker is a special token: a server may leave it out of the text.
        (JsonCalls("<|tool_call|>[{calls}]"), JsonCalls("<tool_call>[{calls}]"), JsonCalls("[{calls}]", strict=True)),
        anchored=True,
    ),
    "phi4_mini_json": Format(
        (JsonCalls("functools[{calls}]"), JsonCalls("<|tool_call|>[{calls}]<|/tool_call|>")), gap="\n"
    ),
    "apertus": Format(
        (JsonCalls("<|tools_prefix|>[{calls}]<|tools_suffix|>", keyed=True),),
        noise=_make_special("inner_prefix", "inner_suffix"),
    ),
    "xlam": Format(
        (
            JsonCalls("[{calls}]", strict=True),
            JsonCalls(f"{FENCE}\n[{{calls}}]\n```"),
            JsonCalls("<tool_call>[{calls}]</tool_call>"),
            JsonCalls("[TOOL_CALLS][{calls}]"),
        ),
        gap="\n",
    ),
    "cohere_command3": Format(
        (
            JsonCalls(
                "<|START_ACTION|>[\n    {calls}\n]<|END_ACTION|>",
                ("tool_name", "parameters"),
                id_key="tool_call_id",
                between=",\n    ",
            ),
        ),
        spans=(THINK, Span("<|START_THINKING|>", ("<|END_THINKING|>",), thought=True)),
        noise=(*_make_special("START_RESPONSE", "END_RESPONSE", "START_TEXT", "END_TEXT"), "<co>", "</co: {sources}>"),
    ),
    # a name, and its arguments in JSON or in braces
    "mistral": Format(
        (
            NamedCalls("[TOOL_CALLS]{name}[ARGS]{arguments}", JSON),
            NamedCalls("[TOOL_CALLS]{name}[CALL_ID]{id}[ARGS]{arguments}", JSON),
            NamedCalls("[TOOL_CALLS]{name}{arguments}", JSON),
            JsonCalls("[TOOL_CALLS] [{calls}]"),
        ),
        spans=(THINK, Span("[THINK]", ("[/THINK]",), tags=True)),
        noise=("</s>",),
        keep="before",
        ids="call{n:05}",
    ),
    "gpt_oss": Format(
        _make_harmony(),
        spans=(
            THINK,
            Span("<|channel|>analysis<|message|>", _HARMONY_ENDS, thought=True),
            Span("<|channel|>commentary<|message|>", _HARMONY_ENDS),
            Span("<|channel|>final<|message|>", _HARMONY_ENDS),
            Span("<|channel|>final <|constrain|>json<|message|>", _HARMONY_ENDS),
        ),
        noise=("<|start|>assistant", *_HARMONY_ENDS),
        gap="<|start|>assistant",
        content="<|channel|>final<|message|>{content}<|end|>",
        preamble="<|channel|>commentary<|message|>{content}<|end|>",
    ),
    "deepseek_v3": _make_deepseek(_DEEPSEEK_V3),
    "deepseek_v3_1": _make_deepseek(_DEEPSEEK_V3_1),
    "kimi_k2": Format(
        _KIMI_K2,
        tuple(
            Section(f"<|{name}_section_begin|>", f"<|{name}_section_end|>", _KIMI_K2)
            for name in ("tool_calls", "tool_call")
        ),
        noise=_make_special("im_end"),
        repair=True,
    ),
    "gemma4": Format(
        (NamedCalls("<|tool_call>call:{name}{arguments}<tool_call|>", Braces('<|"|>')),),
        spans=(THINK, Span("<|channel>", ("<channel|>",), thought=True)),
        noise=("<turn|>",),
    ),
    "functiongemma": Format(
        (NamedCalls("<start_function_call>call:{name}{arguments}<end_function_call>", Braces("<escape>")),)
    ),
    # a name, and its arguments as tags
    "glm45": Format((NamedCalls("<tool_call>{name}\n{arguments}</tool_call>", _GLM, between="\n"),), gap="\n"),
    "glm47": Format((NamedCalls("<tool_call>{name}{arguments}</tool_call>", _GLM47),)),
    "ling3": Format(
        (NamedCalls("<tool_call>{name}\n{arguments}\n</tool_call>", _LING3, between="\n"),),
        # Its prompt opens a thought, and the model may call a tool without closing it.
        spans=(Span("<think>", ("</think>",), tags=True, calls=("<tool_call>",)),),
        noise=_make_special("role_end"),
        gap="\n",
    ),
    "hunyuan": Format(
        sections=(
            Section(
                "<tool_calls>\n",
                "\n</tool_calls>",
                (NamedCalls("<tool_call>{name}<tool_sep>\n{arguments}</tool_call>", _GLM, between="\n"),),
            ),
        ),
        gap="\n",
    ),
    "hy_v3": Format(
        sections=(
            Section(
                "<tool_calls>",
                "</tool_calls>",
                (NamedCalls("<tool_call>{name}<tool_sep>{arguments}</tool_call>", _GLM47),),
            ),
        )
    ),
    "qwen3_coder": Format(
        (
            NamedCalls("<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>", _QWEN, between="\n"),
            NamedCalls("<tool_call>\n<function={name}\n{arguments}</function>\n</tool_call>", _QWEN),
            NamedCalls("<function={name}>\n{arguments}</function>\n</tool_call>", _QWEN),
        ),
        noise=_make_special("im_end"),
        gap="\n",
    ),
    "deepseek_v32": Format(
        sections=(Section("<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>", (_DSML,)),),
        noise=(_EOS,),
        gap="\n\n",
    ),
    "deepseek_v4": Format(
        sections=(Section("<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>", (_DSML,)),),
        noise=(_EOS,),
        gap="\n\n",
    ),
    "minimax_m2": Format(
        sections=(Section("<minimax:tool_call>\n", "</minimax:tool_call>", (_make_invoke(""),)),), gap="\n"
    ),
    "minimax_m3": Format(
        sections=(
            Section(
                f"{_M3}<tool_call>",
                f"{_M3}</tool_call>",
                (NamedCalls(f'{_M3}<invoke name="{{name}}">{{arguments}}{_M3}</invoke>', Nested(_M3)),),
            ),
        ),
        spans=(THINK, Span("<mm:think>", ("</mm:think>",), tags=True)),
    ),
    "step3": Format(
        sections=(
            Section(
                "<｜tool_calls_begin｜>",
                "<｜tool_calls_end｜>",
                (
                    NamedCalls(
                        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">{arguments}'
                        "</steptml:invoke><｜tool_call_end｜>",
                        Tags('<steptml:parameter name="{key}">{value}</steptml:parameter>'),
                    ),
                ),
            ),
        )
    ),
    "dots": Format(
        sections=(Section("<dots_function_call>\n", "</dots_function_call>", (_make_invoke(""), JsonCalls("{call}"))),),
        known="name",
    ),
    "kimi_k3": Format(
        sections=(Section("<|open|>tools<|sep|>", "<|close|>tools<|sep|>", _make_kimi_k3()),),
        spans=(THINK, Span("<|open|> think <|sep|>", ("<|close|>think<|sep|>",), thought=True)),
        noise=(
            *(f"<|{edge}|> {tag} <|sep|>" for edge in ("open", "close") for tag in ("response", "message")),
            "<|end_of_msg|>",
        ),
        content="<|open|>response<|sep|>{content}<|close|>response<|sep|>",
    ),
    "muse_glimmer": Format(
        sections=(Section("<atem:function_calls>\n", "</atem:function_calls>", (_make_invoke("atem:"),)),),
        spans=tuple(
            Span(f"{start}to={name}<|message|>", ("<|eom|>", "<|eot|>"), thought=name == "self")
            for start in ("<|start|>assistant ", "")
            for name in ("self", "user")
        ),
        noise=("<|start|>assistant to={to}<|message|>", *_make_special("eom", "eot")),
        content="<|start|>assistant to=user<|message|>{content}<|eom|>",
    ),
    "minicpm5": Format(
        (
            NamedCalls(
                '<function name="{name}">{arguments}</function>',
                Tags('<param name="{key}">{value}</param>', xml=True),
                between="\n",
            ),
        ),
        keep="nothing",
        known="schema",
        repair=True,
        gap="\n",
    ),
    # Python
    "pythonic": Format((PythonCalls("[{calls}]"),), noise=_make_special("python_start", "python_end"), gap="\n"),
    "llama4_pythonic": Format(
        (PythonCalls("[{calls}]"), PythonCalls("<|python_start|>[{calls}]<|python_end|>")),
        noise=_make_special("python_start", "python_end", "eom", "eot"),
        gap="\n",
    ),
    "olmo3": Format((PythonCalls("<function_calls>{calls}</function_calls>", between="\n"),)),
    "lfm2": Format(
        (
            PythonCalls("<|tool_call_start|>[{calls}]<|tool_call_end|>"),
            JsonCalls("<|tool_call_start|>[{calls}]<|tool_call_end|>"),
        )
    ),
}

ALIASES: Mapping[str, str] = {
    "qwen": "hermes",
    "qwen25": "hermes",
    "harmony": "gpt_oss",
    "openai": "gpt_oss",
    "granite4": "hermes",
    "llama4_json": "llama3_json",
    "deepseek_v31": "deepseek_v3_1",
    "poolside_v1": "glm45",
    "qwen3_xml": "qwen3_coder",
    "step3p5": "qwen3_coder",
    "cohere_command4": "cohere_command3",
}
"""Other names of formats."""


@cache
def combine_formats() -> Format:
    """All formats at once, told apart by their markers. If two begin alike, the first in the table is tried first. A
    call without a marker counts only at the beginning of a reply."""
    formats = FORMATS.values()
    sections: dict[str, Section] = {}
    for section in (section for each in formats for section in each.sections):
        same = sections.get(section.begin)
        shapes = (*same.shapes, *section.shapes) if same else section.shapes
        sections[section.begin] = Section(section.begin, section.end, shapes)
    shapes = [shape for each in formats for shape in each.shapes if shape.opener != FENCE]
    return Format(
        shapes=tuple(sorted(shapes, key=lambda shape: shape.bare)),
        sections=tuple(sections.values()),
        spans=tuple(dict.fromkeys(span for each in formats for span in each.spans)),
        # Only tokens that ordinary text does not contain.
        noise=tuple(dict.fromkeys(tag for each in formats for tag in each.noise if re.match(r"<[|｜]", tag))),
        glue=";,",
        anchored=True,
        gap="\n",
    )


def list_names() -> list[str]:
    """All names of formats, with aliases and `auto`."""
    return sorted([*FORMATS, *ALIASES, "auto"])


def find_format(name: str) -> Format:
    """The format of a name. `-`, `.` and `_` are equal in names.

    Raises:
        ConfigError: the name is unknown.
    """
    plain = re.sub(r"[-. ]", "_", name.strip().lower())
    if plain == "auto":
        return combine_formats()
    plain = ALIASES.get(plain, plain)
    if plain not in FORMATS:
        raise ConfigError(f"unknown tool-call parser '{name}'; {suggest(plain, list_names())}")
    return FORMATS[plain]
