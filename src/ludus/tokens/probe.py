"""What is wrong with a template or an engine, said before it costs a run.

Templates fail silently: one ignores the tools it is given, another the answers of tools, a third moves the system text
about so that no prompt continues the one before. `probe` renders small conversations with marks in them and looks
where the marks went. `check_engine` asks the engine to encode a text that tokenizers disagree about. A `Finding` says
what was seen and what to do; `refuse` raises those that make the intended use impossible.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from ludus.errors import ConfigError
from ludus.tokens import Engine
from ludus.tokens.codec import Codec
from ludus.tokens.render import Renderer, Situation
from ludus.tokens.session_tree import Node
from ludus.tokens.template import TemplateFault
from ludus.types import Call, Message, ToolSpec

Level = Literal["fatal", "warning", "info"]

PROBE_TEXT = (
    "Grüße, 世界! \U0001f600 don't 12345 3.14\n\n\tx = {'a': [1,2]}  # ok\r\n<tool_call> <|im_start|> [INST] </s> "
    "naïve café — “quoted” \u00a0 e\u0301 ﬁn"
)
"""Numbers, spaces, line ends, accents, several scripts, emoji and other models' special tokens. The tokens that end a
turn are put behind it: a vocabulary of the same words may know others."""


class Finding(Struct, frozen=True):
    """Something to know about a template or an engine."""

    level: Level
    code: str
    message: str
    for_tools: bool = False
    """It matters only when tools are offered."""


_OTHER_TEMPLATE = (
    "Give a template that can: `template: FILE`, or `template: chatml` for a model of that format that was trained to "
    "call tools."
)


def probe(codec: Codec) -> tuple[Finding, ...]:
    """What there is to say about a template."""
    renderer = codec.renderer
    found = [*_text_findings(renderer), *_tool_findings(renderer)]
    if not codec.tokenizer.ends:
        found.append(
            Finding("warning", "no_end", "the tokenizer names no token that ends a turn; replies run to their limit")
        )
    if renderer.history == "template" and not any(f.level == "fatal" and not f.for_tools for f in found):
        tools = not any(f.level == "fatal" for f in found)
        found += _history_findings(renderer, tools)
    return tuple(found)


def refuse(findings: Sequence[Finding], *, tools: bool) -> None:
    """Raise what makes the use impossible.

    Raises:
        ConfigError: naming every reason.
    """
    reasons = [f.message for f in findings if f.level == "fatal" and (tools or not f.for_tools)]
    if reasons:
        raise ConfigError("; ".join(reasons))


async def check_engine(engine: Engine, codec: Codec) -> tuple[Finding, ...]:
    """Compare an engine with the tokenizer.

    Raises:
        ConfigError: they are not of the same model.
    """
    facts = await engine.facts()
    size = codec.tokenizer.size
    if facts.vocabulary is not None and facts.vocabulary < size:
        raise ConfigError(
            f"tokenizer: it has {size} ids, but the engine's model only {facts.vocabulary}. They are of different "
            "models: give the tokenizer of the model that the engine serves."
        )
    text = PROBE_TEXT + "".join(f" x{end}" for end in codec.tokenizer.ends.values())
    told = await engine.tokenize(text)
    if told is None:
        said = "the engine cannot tell how it encodes text, so whether its tokenizer is the same was not checked"
        return (Finding("warning", "unchecked", said),)
    own = codec.tokenizer.encode(text)
    bos = codec.tokenizer.id_of(codec.tokenizer.bos) if codec.tokenizer.bos else None
    if list(told) != own and not (told and told[0] == bos and list(told[1:]) == own):
        raise ConfigError(
            "tokenizer: the engine encodes a probe text differently "
            f"({_shown(told)} instead of {_shown(own)}). Give the tokenizer of the model that the engine serves."
        )
    return ()


def _shown(ids: Sequence[int]) -> str:
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
_AGAIN = Message("user", "Xqagainqx")
_SAID = Message("assistant", "Xqsaidqx")
_ASKED = Message("assistant", "Xqsaidqx", (Call("call00001", "xqtoolaqx", '{"xqparamaqx": "Xqargqx"}'),))
_BOTH = Message("assistant", "Xqsaidqx", (*_ASKED.calls, Call("call00002", "xqtoolaqx", '{"xqparamaqx": "Xqargqx"}')))
_ANSWER = Message("tool", f"Xqanswerqx{' and so on' * 500} Xqendqx", call_id="call00001")
_OTHER = Message("tool", "Xqotherqx", call_id="call00002")


def _text_findings(renderer: Renderer) -> list[Finding]:
    try:
        text = renderer.opening((_USER,), ())
    except TemplateFault as error:
        return [Finding("fatal", "cannot_render", f"template: {error}")]
    found: list[Finding] = []
    if _USER.content not in text:
        found.append(Finding("fatal", "drops_user", "template: it leaves out or changes what the user says"))
    if refusal := _refusal(renderer, (_USER, _SAID, _AGAIN), ()):
        said = f"template: it cannot show a second message of the user ({refusal})"
        found.append(Finding("warning", "refuses_user", said))
    if refusal := _refusal(renderer, (_SYSTEM, _USER), ()):
        found.append(Finding("warning", "refuses_system", f"template: it takes no system text ({refusal})"))
    elif _SYSTEM.content not in renderer.opening((_SYSTEM, _USER), ()):
        found.append(Finding("warning", "drops_system", "template: it leaves out the system text"))
    return found


def _refusal(renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
    """What the template has against a conversation; empty if nothing."""
    try:
        renderer.opening(messages, tools)
    except TemplateFault as error:
        return str(error)
    return ""


def _tool_findings(renderer: Renderer) -> list[Finding]:
    if refusal := _refusal(renderer, (_USER,), _TOOLS):
        return [_for_tools("fatal", "refuses_tools", f"template: it cannot show tools ({refusal}). {_OTHER_TEMPLATE}")]
    found: list[Finding] = []
    text = renderer.opening((_USER,), _TOOLS)
    if missing := [tool.name for tool in _TOOLS if tool.name not in text]:
        which = "the tools" if len(missing) == len(_TOOLS) else "some of the tools"
        said = f"template: it leaves out {which}, so the model would not know of them. {_OTHER_TEMPLATE}"
        found.append(_for_tools("fatal", "drops_tools", said))
    elif any(mark not in text for tool in _TOOLS for mark in (tool.description, *tool.parameters["properties"])):
        said = "template: it leaves out the descriptions or the parameters of tools"
        found.append(_for_tools("warning", "drops_parameters", said))
    if not missing:
        found += _system_findings(renderer)
    return [*found, *_answer_findings(renderer)]


def _system_findings(renderer: Renderer) -> list[Finding]:
    """Whether tools and system text get in each other's way."""
    with suppress(TemplateFault):  # that it takes no system text was found already
        plain, text = (renderer.opening((_SYSTEM, _USER), tools) for tools in ((), _TOOLS))
        if any(tool.name not in text for tool in _TOOLS):
            said = f"template: it leaves out the tools when there is system text. {_OTHER_TEMPLATE}"
            return [_for_tools("fatal", "drops_tools", said)]
        if _SYSTEM.content in plain and _SYSTEM.content not in text:
            said = "template: it leaves out the system text when there are tools; put it into the user's message"
            return [_for_tools("warning", "drops_system", said)]
    return []


def _answer_findings(renderer: Renderer) -> list[Finding]:
    if refusal := _refusal(renderer, (_USER, _ASKED, _ANSWER), _TOOLS):
        said = f"template: it cannot show the answer of a tool ({refusal}). {_OTHER_TEMPLATE}"
        return [_for_tools("fatal", "refuses_answers", said)]
    text = renderer.opening((_USER, _ASKED, _ANSWER), _TOOLS)
    found: list[Finding] = []
    if "Xqanswerqx" not in text:
        said = f"template: it leaves out the answers of tools. {_OTHER_TEMPLATE}"
        found.append(_for_tools("fatal", "drops_answers", said))
    elif "Xqendqx" not in text:
        said = f"template: it cuts long answers of tools. {_OTHER_TEMPLATE}"
        found.append(_for_tools("fatal", "drops_answers", said))
    else:
        found += _parallel_findings(renderer)
    if renderer.habits.calls == "in content":
        said = "template: it leaves out earlier calls; those that were not sampled here are shown in the parser's form"
        found.append(_for_tools("info", "drops_calls", said))
    return [*found, *_later_findings(renderer)]


def _parallel_findings(renderer: Renderer) -> list[Finding]:
    """Two answers at once, behind a reply that was sampled here."""
    opening = Node(Node(None, ()), (_USER,), shape=renderer.opening((_USER,), _TOOLS))
    try:
        text = renderer.whole(Node(opening, (_BOTH,), sampled=True, ended=True), (_ANSWER, _OTHER), _TOOLS).text
    except TemplateFault as error:
        said = f"template: it cannot show the answers of two tools at once ({error})"
        return [_for_tools("warning", "refuses_parallel", said)]
    if "Xqanswerqx" in text and _OTHER.content in text:
        return []
    said = f"template: of two answers of tools it leaves out one. {_OTHER_TEMPLATE}"
    return [_for_tools("fatal", "drops_answers", said)]


def _later_findings(renderer: Renderer) -> list[Finding]:
    """What is no longer shown once a tool has answered."""

    def lost(mark: str, *opening: Message) -> bool:
        with suppress(TemplateFault):  # that it takes no system text was found already
            before = renderer.opening(opening, _TOOLS)
            return mark in before and mark not in renderer.opening((*opening, _ASKED, _ANSWER), _TOOLS)
        return False

    found: list[Finding] = []
    if lost(_TOOLS[1].name, _USER):
        said = "template: it leaves out the tools once one of them has answered"
        found.append(_for_tools("warning", "drops_tools_later", said))
    if lost(_SYSTEM.content, _SYSTEM, _USER):
        said = "template: it leaves out the system text once a tool has answered; put it into the user's message"
        found.append(_for_tools("warning", "drops_system_later", said))
    return found


def _for_tools(level: Level, code: str, message: str) -> Finding:
    return Finding(level, code, message, for_tools=True)


def _history_findings(renderer: Renderer, tools: bool) -> list[Finding]:
    """What happens to a conversation as it goes on."""
    found: list[Finding] = []
    for system in (False, True):
        first = renderer.facts(Situation(tools, system, False, False))
        later = renderer.facts(Situation(tools, system, True, True)) if tools else first
        where = " when there is system text" if system else ""
        if tools and not ("tool" in first.stable and "tool" in later.stable):
            found.append(_for_tools("warning", "unstable", _unstable("the answer of a tool", where)))
        if "user" not in first.stable:
            found.append(Finding("info", "unstable_user", _unstable("a message of the user", where)))
        if tools and "tool" in later.stable and "tool" not in later.keeps_thinking:
            said = f"template: it drops reasoning as soon as a tool answers{where}; each turn starts a new sequence"
            found.append(_for_tools("warning", "drops_thinking", said))
        elif "user" in first.stable and "user" not in first.keeps_thinking:
            said = f"template: it drops earlier reasoning when the user speaks{where}; a new sequence starts there"
            found.append(Finding("info", "drops_thinking", said))
    return _once(found)


def _unstable(what: str, where: str) -> str:
    return (
        f"template: it rewrites the conversation before {what}{where}, so a new sequence starts there. That is exact, "
        "but makes rows shorter; `history: append` keeps the conversation as it was instead"
    )


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """Each code once: what holds without system text need not be said for it again."""
    kept: dict[str, Finding] = {}
    for finding in findings:
        kept.setdefault(finding.code, finding)
    return list(kept.values())
