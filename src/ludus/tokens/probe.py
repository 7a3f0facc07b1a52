"""Checks a template and an engine before a run.

Templates fail silently: one ignores the tools, another ignores tool results, a third moves the system text so that no
prompt continues the one before. `probe_template` renders small conversations with marks in them and looks for the
marks in the text. `check_engine` makes the engine encode a text about which tokenizers disagree. A `TemplateFinding`
says what was found and what to do. `raise_fatal` raises the findings that make the intended use impossible.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from ludus.errors import ConfigError
from ludus.tokens import Engine
from ludus.tokens.codec import Codec
from ludus.tokens.render import ConversationState, Renderer
from ludus.tokens.session_tree import Node
from ludus.tokens.template import TemplateFault
from ludus.types import Call, Message, ToolSpec

Level = Literal["fatal", "warning", "info"]

PROBE_TEXT = (
    "Grüße, 世界! \U0001f600 don't 12345 3.14\n\n\tx = {'a': [1,2]}  # ok\r\n<tool_call> <|im_start|> [INST] </s> "
    "naïve café — “quoted” \u00a0 e\u0301 ﬁn"
)
"""Numbers, spaces, line ends, accents, several scripts, emoji and special tokens of other models. The stop tokens are
appended: two vocabularies with the same words may have different ones."""


class TemplateFinding(Struct, frozen=True):
    """A finding about a template or an engine."""

    level: Level
    code: str
    message: str
    for_tools: bool = False
    """Relevant only when tools are offered."""


_OTHER_TEMPLATE = (
    "Give a template that can: `template: FILE`, or `template: chatml` for a model of that format that was trained to "
    "call tools."
)


def probe_template(codec: Codec) -> tuple[TemplateFinding, ...]:
    """Check a template. Returns all findings."""
    renderer = codec.renderer
    found = [*_check_text(renderer), *_check_tools(renderer)]
    if not codec.tokenizer.stop_tokens:
        found.append(
            TemplateFinding("warning", "no_end", "the tokenizer names no stop token; replies run to their limit")
        )
    if renderer.history == "template" and not any(f.level == "fatal" and not f.for_tools for f in found):
        tools = not any(f.level == "fatal" for f in found)
        found += _check_history(renderer, tools)
    return tuple(found)


def raise_fatal(findings: Sequence[TemplateFinding], *, tools: bool) -> None:
    """Raise the fatal findings, if there are any.

    Raises:
        ConfigError: it names every reason.
    """
    reasons = [f.message for f in findings if f.level == "fatal" and (tools or not f.for_tools)]
    if reasons:
        raise ConfigError("; ".join(reasons))


async def check_engine(engine: Engine, codec: Codec) -> tuple[TemplateFinding, ...]:
    """Compare an engine with the tokenizer.

    Raises:
        ConfigError: they belong to different models.
    """
    facts = await engine.get_facts()
    size = codec.tokenizer.size
    if facts.vocabulary is not None and facts.vocabulary < size:
        raise ConfigError(
            f"tokenizer: it has {size} ids, but the engine's model only {facts.vocabulary}. They belong to different "
            "models: give the tokenizer of the model that the engine serves."
        )
    text = PROBE_TEXT + "".join(f" x{end}" for end in codec.tokenizer.stop_tokens.values())
    theirs = await engine.tokenize(text)
    if theirs is None:
        message = "the engine cannot encode text, so it was not checked that its tokenizer is the same"
        return (TemplateFinding("warning", "unchecked", message),)
    own = codec.tokenizer.encode(text)
    bos = codec.tokenizer.find_id(codec.tokenizer.bos) if codec.tokenizer.bos else None
    if list(theirs) != own and not (theirs and theirs[0] == bos and list(theirs[1:]) == own):
        raise ConfigError(
            f"tokenizer: the engine encodes a probe text differently ({_format_ids(theirs)} instead of "
            f"{_format_ids(own)}). Give the tokenizer of the model that the engine serves."
        )
    return ()


def _format_ids(ids: Sequence[int]) -> str:
    return f"{len(ids)} ids {list(ids[:6])}…"


# ---- the template -------------------------------------------------------------------------------------------------

_TOOLS = tuple(
    ToolSpec(
        f"xqtool{kind}qx",
        f"Xqdesc{kind}qx",
        {"type": "object", "properties": {f"xqparam{kind}qx": {"type": "string"}}, "required": []},
    )
    for kind in ("a", "b")
)
_SYSTEM = Message("system", "Xqsystemqx")
_USER = Message("user", "Xq<user>&qx")
_USER_AGAIN = Message("user", "Xqagainqx")
_REPLY = Message("assistant", "Xqsaidqx")
_ONE_CALL = Message("assistant", "Xqsaidqx", (Call("call00001", "xqtoolaqx", '{"xqparamaqx": "Xqargqx"}'),))
_TWO_CALLS = Message(
    "assistant", "Xqsaidqx", (*_ONE_CALL.calls, Call("call00002", "xqtoolaqx", '{"xqparamaqx": "Xqargqx"}'))
)
_RESULT = Message("tool", f"Xqanswerqx{' and so on' * 500} Xqendqx", call_id="call00001")
_OTHER_RESULT = Message("tool", "Xqotherqx", call_id="call00002")


def _check_text(renderer: Renderer) -> list[TemplateFinding]:
    try:
        text = renderer.render_prompt((_USER,), ())
    except TemplateFault as error:
        return [TemplateFinding("fatal", "cannot_render", f"template: {error}")]
    found: list[TemplateFinding] = []
    if _USER.content not in text:
        found.append(TemplateFinding("fatal", "drops_user", "template: it leaves out or changes what the user says"))
    if refusal := _find_refusal(renderer, (_USER, _REPLY, _USER_AGAIN), ()):
        message = f"template: it cannot show a second user message ({refusal})"
        found.append(TemplateFinding("warning", "refuses_user", message))
    if refusal := _find_refusal(renderer, (_SYSTEM, _USER), ()):
        found.append(TemplateFinding("warning", "refuses_system", f"template: it accepts no system text ({refusal})"))
    elif _SYSTEM.content not in renderer.render_prompt((_SYSTEM, _USER), ()):
        found.append(TemplateFinding("warning", "drops_system", "template: it leaves out the system text"))
    return found


def _find_refusal(renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
    """The error with which the template refuses a conversation; empty if it accepts it."""
    try:
        renderer.render_prompt(messages, tools)
    except TemplateFault as error:
        return str(error)
    return ""


def _check_tools(renderer: Renderer) -> list[TemplateFinding]:
    if refusal := _find_refusal(renderer, (_USER,), _TOOLS):
        return [
            _make_tool_finding(
                "fatal", "refuses_tools", f"template: it cannot show tools ({refusal}). {_OTHER_TEMPLATE}"
            )
        ]
    found: list[TemplateFinding] = []
    text = renderer.render_prompt((_USER,), _TOOLS)
    if missing := [tool.name for tool in _TOOLS if tool.name not in text]:
        which = "the tools" if len(missing) == len(_TOOLS) else "some of the tools"
        message = f"template: it leaves out {which}, so the model would not know them. {_OTHER_TEMPLATE}"
        found.append(_make_tool_finding("fatal", "drops_tools", message))
    elif any(mark not in text for tool in _TOOLS for mark in (tool.description, *tool.parameters["properties"])):
        message = "template: it leaves out the descriptions or the parameters of tools"
        found.append(_make_tool_finding("warning", "drops_parameters", message))
    if not missing:
        found += _check_system(renderer)
    return [*found, *_check_answers(renderer)]


def _check_system(renderer: Renderer) -> list[TemplateFinding]:
    """Whether tools and system text are shown together."""
    with suppress(TemplateFault):  # a template that accepts no system text was reported already
        plain, text = (renderer.render_prompt((_SYSTEM, _USER), tools) for tools in ((), _TOOLS))
        if any(tool.name not in text for tool in _TOOLS):
            message = f"template: it leaves out the tools when there is system text. {_OTHER_TEMPLATE}"
            return [_make_tool_finding("fatal", "drops_tools", message)]
        if _SYSTEM.content in plain and _SYSTEM.content not in text:
            message = "template: it leaves out the system text when there are tools; put it into the user message"
            return [_make_tool_finding("warning", "drops_system", message)]
    return []


def _check_answers(renderer: Renderer) -> list[TemplateFinding]:
    if refusal := _find_refusal(renderer, (_USER, _ONE_CALL, _RESULT), _TOOLS):
        message = f"template: it cannot show a tool result ({refusal}). {_OTHER_TEMPLATE}"
        return [_make_tool_finding("fatal", "refuses_answers", message)]
    text = renderer.render_prompt((_USER, _ONE_CALL, _RESULT), _TOOLS)
    found: list[TemplateFinding] = []
    if "Xqanswerqx" not in text:
        message = f"template: it leaves out tool results. {_OTHER_TEMPLATE}"
        found.append(_make_tool_finding("fatal", "drops_answers", message))
    elif "Xqendqx" not in text:
        message = f"template: it cuts long tool results. {_OTHER_TEMPLATE}"
        found.append(_make_tool_finding("fatal", "drops_answers", message))
    else:
        found += _check_parallel(renderer)
    if renderer.style.calls == "in content":
        message = (
            "template: it leaves out earlier calls; those that were not sampled here are shown in the parser's form"
        )
        found.append(_make_tool_finding("info", "drops_calls", message))
    return [*found, *_check_later(renderer)]


def _check_parallel(renderer: Renderer) -> list[TemplateFinding]:
    """Two tool results at once, after a sampled reply."""
    opening = Node(Node(None, ()), (_USER,), shape=renderer.render_prompt((_USER,), _TOOLS))
    try:
        text = renderer.render_whole(
            Node(opening, (_TWO_CALLS,), sampled=True, ended=True), (_RESULT, _OTHER_RESULT), _TOOLS
        ).text
    except TemplateFault as error:
        message = f"template: it cannot show two tool results at once ({error})"
        return [_make_tool_finding("warning", "refuses_parallel", message)]
    if "Xqanswerqx" in text and _OTHER_RESULT.content in text:
        return []
    message = f"template: it leaves out one of two tool results. {_OTHER_TEMPLATE}"
    return [_make_tool_finding("fatal", "drops_answers", message)]


def _check_later(renderer: Renderer) -> list[TemplateFinding]:
    """What is no longer shown after a tool result."""

    def is_lost(mark: str, *opening: Message) -> bool:
        with suppress(TemplateFault):  # a template that accepts no system text was reported already
            before = renderer.render_prompt(opening, _TOOLS)
            return mark in before and mark not in renderer.render_prompt((*opening, _ONE_CALL, _RESULT), _TOOLS)
        return False

    found: list[TemplateFinding] = []
    if is_lost(_TOOLS[1].name, _USER):
        message = "template: it leaves out the tools after a tool result"
        found.append(_make_tool_finding("warning", "drops_tools_later", message))
    if is_lost(_SYSTEM.content, _SYSTEM, _USER):
        message = "template: it leaves out the system text after a tool result; put it into the user message"
        found.append(_make_tool_finding("warning", "drops_system_later", message))
    return found


def _make_tool_finding(level: Level, code: str, message: str) -> TemplateFinding:
    return TemplateFinding(level, code, message, for_tools=True)


def _check_history(renderer: Renderer, tools: bool) -> list[TemplateFinding]:
    """What happens to earlier messages when a conversation continues."""
    found: list[TemplateFinding] = []
    for system in (False, True):
        first = renderer.find_facts(ConversationState(tools, system, False, False))
        later = renderer.find_facts(ConversationState(tools, system, True, True)) if tools else first
        where = " when there is system text" if system else ""
        if tools and not ("tool" in first.stable and "tool" in later.stable):
            found.append(_make_tool_finding("warning", "unstable", _describe_rewrite("a tool result", where)))
        if "user" not in first.stable:
            found.append(TemplateFinding("info", "unstable_user", _describe_rewrite("a user message", where)))
        if tools and "tool" in later.stable and "tool" not in later.keeps_thinking:
            message = f"template: it drops reasoning after a tool result{where}; each turn starts a new sequence"
            found.append(_make_tool_finding("warning", "drops_thinking", message))
        elif "user" in first.stable and "user" not in first.keeps_thinking:
            message = f"template: it drops earlier reasoning after a user message{where}; a new sequence starts there"
            found.append(TemplateFinding("info", "drops_thinking", message))
    return _drop_repeated(found)


def _describe_rewrite(what: str, where: str) -> str:
    return (
        f"template: it rewrites the conversation before {what}{where}, so a new sequence starts there. That is exact, "
        "but makes rows shorter; `history: append` keeps the conversation as it was instead"
    )


def _drop_repeated(findings: Sequence[TemplateFinding]) -> list[TemplateFinding]:
    """Keep each code once: a finding without system text need not be repeated for it."""
    kept: dict[str, TemplateFinding] = {}
    for finding in findings:
        kept.setdefault(finding.code, finding)
    return list(kept.values())
