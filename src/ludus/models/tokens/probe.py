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
from ludus.models.tokens import Engine
from ludus.models.tokens.codec import Codec
from ludus.models.tokens.render import Renderer, Situation
from ludus.models.tokens.template import TemplateFault
from ludus.types import Call, Message, ToolSpec

Level = Literal["fatal", "warning", "info"]

PROBE_TEXT = (
    "Grüße, 世界! \U0001f600 don't 12345 3.14\n\n\tx = {'a': [1,2]}  # ok\r\n<tool_call> <|im_start|> [INST] </s> "
    "naïve café — “quoted” \u00a0 e\u0301 ﬁn"
)
"""Numbers, spaces, line ends, accents, several scripts, emoji and other models' special tokens."""


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
    told = await engine.tokenize(PROBE_TEXT)
    if told is None:
        text = "the engine cannot tell how it encodes text, so whether its tokenizer is the same was not checked"
        return (Finding("warning", "unchecked", text),)
    own = codec.tokenizer.encode(PROBE_TEXT)
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

_TOOL = ToolSpec(
    "xqtoolqx", "Xqdescqx", {"type": "object", "properties": {"xqparamqx": {"type": "string"}}, "required": []}
)
_USER = Message("user", "Xquserqx")
_ASKED = Message("assistant", "Xqsaidqx", (Call("call00001", "xqtoolqx", '{"xqparamqx": "Xqargqx"}'),))
_ANSWER = Message("tool", "Xqanswerqx", call_id="call00001")


def _text_findings(renderer: Renderer) -> list[Finding]:
    try:
        text = renderer.opening((_USER,), ())
    except TemplateFault as error:
        return [Finding("fatal", "cannot_render", f"template: {error}")]
    found: list[Finding] = []
    if _USER.content not in text:
        found.append(Finding("fatal", "drops_user", "template: it leaves out what the user says"))
    try:
        shown = renderer.opening((Message("system", "Xqsystemqx"), _USER), ())
    except TemplateFault as error:
        return [*found, Finding("warning", "refuses_system", f"template: it takes no system text ({error})")]
    if "Xqsystemqx" not in shown:
        found.append(Finding("warning", "drops_system", "template: it leaves out the system text"))
    return found


def _tool_findings(renderer: Renderer) -> list[Finding]:
    try:
        text = renderer.opening((_USER,), (_TOOL,))
    except TemplateFault as error:
        return [_for_tools("fatal", "refuses_tools", f"template: it cannot show tools ({error}). {_OTHER_TEMPLATE}")]
    found: list[Finding] = []
    if _TOOL.name not in text:
        said = f"template: it leaves out the tools, so the model would not know of them. {_OTHER_TEMPLATE}"
        found.append(_for_tools("fatal", "drops_tools", said))
    elif "xqparamqx" not in text:
        found.append(_for_tools("warning", "drops_parameters", "template: it leaves out the parameters of tools"))
    return [*found, *_answer_findings(renderer)]


def _answer_findings(renderer: Renderer) -> list[Finding]:
    messages = (Message("system", "Xqsystemqx"), _USER, _ASKED, _ANSWER)
    try:
        text = renderer.opening(messages[1:], (_TOOL,))
    except TemplateFault as error:
        said = f"template: it cannot show the answer of a tool ({error}). {_OTHER_TEMPLATE}"
        return [_for_tools("fatal", "refuses_answers", said)]
    found: list[Finding] = []
    if _ANSWER.content not in text:
        said = f"template: it leaves out the answers of tools. {_OTHER_TEMPLATE}"
        found.append(_for_tools("fatal", "drops_answers", said))
    if renderer.habits.calls == "in content":
        said = "template: it leaves out earlier calls; those that were not sampled here are shown in the parser's form"
        found.append(_for_tools("info", "drops_calls", said))
    with suppress(TemplateFault):  # that it takes no system text was found already
        before, after = renderer.opening(messages[:2], (_TOOL,)), renderer.opening(messages, (_TOOL,))
        if "Xqsystemqx" in before and "Xqsystemqx" not in after:
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
