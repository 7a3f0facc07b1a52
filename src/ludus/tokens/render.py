"""Renders the delta of a turn: the text that a template adds after replies whose ids are known.

A template is a program over whole conversations. Running it again each turn and encoding its output loses the sampled
ids, and the cost is quadratic in the number of turns. Here the replies are rendered as *stand-ins* (`views`), so that
the text around them can be cut out:

    known   … user: fix it <end> assistant: ⟨reply 1⟩                              the path so far
    whole   … user: fix it <end> assistant: ⟨reply 1⟩<end> tool: ok <end> assistant:     the template over everything
    delta                                            <end> tool: ok <end> assistant:     (<end> only if not sampled)

If `whole` begins with `known`, the conversation is *extended*. If not, the template rewrote history: it dropped the
thinking of an earlier round, moved the tools, and so on. Then the longest prefix of the path that is still valid is
kept, the rest is rendered as text, and a branch starts there.

Rendering everything each turn would still be quadratic. So a short conversation is rendered instead, wherever it gives
the same delta: a fixed prefix (`ShortPrefix`), the last reply and the new messages. This is tested, not assumed. When a
kind of conversation first occurs, both ways are run over trial conversations of that kind and compared, with the
shortest prefix first (`TemplateFacts`). When a reasoning template drops the thinking of a finished round, only that
round is rendered, on the same condition.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import msgspec

from ludus.chat_form import write_tool
from ludus.tokens.session_tree import Node
from ludus.tokens.template import Template, TemplateFault
from ludus.tokens.tokenizer import Tokenizer
from ludus.tokens.views import (
    RenderCalls,
    TemplateMarks,
    TemplateStyle,
    View,
    make_stand_in,
    make_tool_views,
    make_view,
    map_call_names,
)
from ludus.types import Call, Message, Reasoning, ToolSpec

Kind = Literal["tool", "user"]
"""What the new messages are: tool results only, or anything else."""

History = Literal["template", "append"]
"""How the model sees earlier replies: as the template shows them, or always as they were sampled."""


class Extension(NamedTuple):
    """The text that continues a conversation after `parent` (None: from the start)."""

    parent: Node | None
    text: str


class ConversationState(NamedTuple):
    """The properties of a conversation that a template's output can depend on."""

    tools: bool
    system: bool
    answered: bool
    """Whether there is a tool result."""
    follows_answer: bool
    """Whether the last reply directly follows a tool result."""


class ShortPrefix(NamedTuple):
    """What replaces the conversation so far in a short rendering: a user message, and what else the template needs."""

    answered: bool
    """With a call and its result: some templates show the first tool result differently."""
    tools: bool
    """With a tool that is offered."""


@dataclass(frozen=True)
class TemplateFacts:
    """What a template does with conversations in one `ConversationState`."""

    prefixes: Mapping[Kind, ShortPrefix]
    """The kinds for which a short rendering gives the same text as the whole one, with the shortest prefix for each."""
    stable: frozenset[Kind]
    """The kinds that do not change a history without reasoning."""
    keeps_thinking: frozenset[Kind]
    """The kinds that keep reasoning in the history."""
    rounds_are_local: bool
    """Whether dropping reasoning changes nothing before the round from which it is dropped."""


class Renderer:
    """Renders conversations with one template and one vocabulary."""

    def __init__(
        self,
        template: Template,
        tokenizer: Tokenizer,
        render_calls: RenderCalls | None = None,
        history: History = "template",
    ) -> None:
        self.template = template
        self.history: History = history
        self._render_calls = render_calls
        ends = "|".join(map(re.escape, tokenizer.stop_tokens.values())) or "(?!)"
        self._end_here = re.compile(rf"\s*({ends})")
        self._end_later = re.compile(f"({ends})")
        self._facts: dict[ConversationState, TemplateFacts] = {}
        self._prefixes: dict[ShortPrefix, tuple[list[View], str]] = {}
        self.style = _find_style(self)

    # ---- for sessions ---------------------------------------------------------------------------------------------

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """Render a whole conversation, with the generation prompt."""
        return self.template.render(self._make_views(messages, messages), make_tool_views(tools))

    def extend(self, leaf: Node, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Extension:
        """Render the messages `new` that continue the conversation at `leaf`."""
        if not leaf.sampled or any(message.role == "assistant" for message in new):
            return self.render_whole(leaf, new, tools)
        if self.history == "append":
            return self.render_short(leaf, new, ShortPrefix(leaf.answered, bool(tools))) or self.render_whole(
                leaf, new, tools
            )
        kind = find_kind(new)
        facts = self.find_facts(ConversationState(bool(tools), leaf.has_system, leaf.answered, leaf.follows_answer))
        prefix = facts.prefixes.get(kind)
        if prefix is None:
            return self.render_whole(leaf, new, tools)
        if not leaf.has_thinking or kind in facts.keeps_thinking:
            return self.render_short(leaf, new, prefix) or self.render_whole(leaf, new, tools)
        return (facts.rounds_are_local and self.render_round(leaf, new, tools)) or self.render_whole(leaf, new, tools)

    def matches_whole(
        self, leaf: Node, new: Sequence[Message], extension: Extension, tools: Sequence[ToolSpec]
    ) -> bool:
        """Whether rendering the whole conversation gives this extension too."""
        if extension.parent is not leaf:
            return self.render_whole(leaf, new, tools) == extension
        path = leaf.collect_path()
        few = _FEW_TOOLS if tools else None  # which tools these are matters only for the opening
        opening = self.template.render(self._make_views(path[0].messages, path[0].messages), few)
        text = self._render_with_stand_ins(path, len(path), (*leaf.collect_messages(), *new), few)
        return (
            text == opening + _join_shapes(path[1:]) + extension.text
            or self.render_whole(leaf, new, tools) == extension
        )

    def find_facts(self, state: ConversationState) -> TemplateFacts:
        """Find out what the template does with such conversations. Cached."""
        known = self._facts.get(state)
        if known is None:
            known = self._facts[state] = _find_facts(self, state)
        return known

    # ---- three ways to render -------------------------------------------------------------------------------------

    def render_whole(self, leaf: Node, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Extension:
        """Render everything, and keep the longest prefix of the path that is still valid."""
        path = leaf.collect_path()
        messages = (*leaf.collect_messages(), *new)
        kept = len(path)
        known = _join_shapes(path[:-1] if leaf.sampled else path)
        shown_tools = make_tool_views(tools)
        text = self._render_with_stand_ins(path, kept, messages, shown_tools)
        if leaf.sampled:
            if text.startswith(known) and (delta := self._cut_after_reply(text, len(known), leaf)) is not None:
                return Extension(leaf, delta)
            kept -= 1
        while not text.startswith(known) or kept < len(path):
            limit = _count_common(known, text)
            kept, known = _fit_longest(path[:kept], limit)
            text = self._render_with_stand_ins(path, kept, messages, shown_tools)
            if text.startswith(known):
                break
        return Extension(path[kept - 1] if kept else None, text[len(known) :])

    def render_short(self, leaf: Node, new: Sequence[Message], prefix: ShortPrefix) -> Extension | None:
        """Render a fixed prefix, the last reply and the new messages. None if the reply is not found in the text."""
        before, prefix_text = self._render_prefix(prefix)
        reply = make_stand_in(leaf.messages[0], leaf.depth, self.style)
        shown = [*before, reply, *self._make_views(new, leaf.messages)]
        text = self.template.render(shown, _FEW_TOOLS if prefix.tools else None)
        start = len(prefix_text)
        if not text.startswith(prefix_text):
            if self.history != "append":
                return None
            start = max(0, text.find(TemplateMarks.for_depth(leaf.depth).content))
        delta = self._cut_after_reply(text, start, leaf)
        return None if delta is None else Extension(leaf, delta)

    def render_round(self, leaf: Node, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Extension | None:
        """Render only the round that ends now, as text, from the user message that began it."""
        start = _find_round_start(leaf)
        if start is None or not start.messages or start.messages[-1].role != "user":
            return None
        round_messages = [m for node in leaf.collect_path()[start.depth :] for m in node.messages]
        tools_shown = _FEW_TOOLS if tools else None
        messages = (start.messages[-1], *round_messages, *new)
        prefix = self.template.render(self._make_views(messages[:1], ()), tools_shown)
        text = self.template.render(self._make_views(messages, messages), tools_shown)
        return Extension(start, text[len(prefix) :]) if text.startswith(prefix) else None

    # ---- parts ----------------------------------------------------------------------------------------------------

    def _make_views(self, messages: Sequence[Message], named: Sequence[Message]) -> list[View]:
        names = map_call_names(named)
        return [make_view(message, names, self.style, self._render_calls) for message in messages]

    def _render_with_stand_ins(
        self, path: Sequence[Node], kept: int, messages: Sequence[Message], tools: Sequence[View] | None
    ) -> str:
        """Render the whole conversation, with stand-ins for the replies among the first `kept` nodes."""
        shown = self._make_views(messages, messages)
        position = 0
        for node in path[:kept]:
            if node.sampled:
                shown[position] = make_stand_in(node.messages[0], node.depth, self.style)
            position += len(node.messages)
        return self.template.render(shown, tools)

    def _cut_after_reply(self, text: str, start: int, leaf: Node) -> str | None:
        """The text after a reply's stand-in, which must begin at `start`. None if it is not there.

        Sets the shape of the leaf, with the stop token if that was sampled.
        """
        marks = TemplateMarks.for_depth(leaf.depth)
        at = text.find(marks.content, start)
        apart = text.find(marks.arguments, start) if self.style.stand_in == "calls" and leaf.messages[0].calls else -1
        if at < 0 and apart < 0:
            return None
        if leaf.messages[0].reasoning is not None and self.history != "append":
            thought = text.find(marks.reasoning, start)
            if not 0 <= thought < max(at, apart):
                return None
        elif at >= 0 and apart < 0 and at != start and self.history != "append":
            return None  # the template puts something before the reply that the model did not write
        after = max(at, apart) + len(marks.content)
        end = self._end_later.search(text, after) if apart >= 0 else self._end_here.match(text, after)
        if end is None:
            leaf.shape = text[start:after]
            return text[after:]
        cut = end.end() if leaf.ended else end.start(1)
        leaf.shape = text[start:cut]
        return text[cut:]

    def _render_prefix(self, prefix: ShortPrefix) -> tuple[list[View], str]:
        """The messages of a short prefix, and their text. Cached."""
        known = self._prefixes.get(prefix)
        if known is None:
            shown = self._make_views(_PREFIX_MESSAGES if prefix.answered else _PREFIX_MESSAGES[:1], _PREFIX_MESSAGES)
            known = self._prefixes[prefix] = shown, self.template.render(shown, _FEW_TOOLS if prefix.tools else None)
        return known


_PREFIX_MESSAGES = (
    Message("user", "Begin."),
    Message("assistant", "", (Call("call00009", "f", "{}"),)),
    Message("tool", "Done.", call_id="call00009"),
)
_FEW_TOOLS: list[View] = [write_tool(ToolSpec("f", "f", {"type": "object", "properties": {}}))]


def find_kind(new: Sequence[Message]) -> Kind:
    """What kind of messages continue a conversation."""
    return "tool" if new and all(message.role == "tool" for message in new) else "user"


def _count_common(one: str, other: str) -> int:
    """The length of the common prefix of two texts."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _join_shapes(path: Sequence[Node]) -> str:
    return "".join(node.shape or "" for node in path)


def _fit_longest(path: Sequence[Node], limit: int) -> tuple[int, str]:
    """How many nodes fit into the first `limit` characters, and their text."""
    shapes: list[str] = []
    size = 0
    for node in path:
        shape = node.shape or ""
        if size + len(shape) > limit or (node.sampled and not shape):
            break
        shapes.append(shape)
        size += len(shape)
    return len(shapes), "".join(shapes)


def _find_round_start(leaf: Node) -> Node | None:
    """The node before the first reply since the last user message."""
    node = leaf
    while node.parent is not None and node.parent.parent is not None:
        node = node.parent
        if not node.sampled and any(message.role != "tool" for message in node.messages):
            return node
    return None


# ---- finding out --------------------------------------------------------------------------------------------------

_THOUGHT = Reasoning("Let me think.", "think")
_TOOLS = tuple(
    ToolSpec(name, f"Looks up a {name}.", {"type": "object", "properties": {name: {"type": "string"}}})
    for name in ("city", "person")
)


def _make_reply(calls: int, thinks: bool, number: int = 0) -> Message:
    made = tuple(Call(f"call0000{i}", "city", '{"city": "Paris"}') for i in range(calls))
    return Message("assistant", f"Reply {number}.", made, reasoning=_THOUGHT if thinks else None)


def _make_answers(calls: int) -> tuple[Message, ...]:
    return tuple(Message("tool", f"Answer {i}", call_id=f"call0000{i}") for i in range(calls))


_WITH_TOOLS = (1, 2, 0, 1, 1, 0, 0, 1)
_WITHOUT = (0, 0, 0)
"""How many calls each reply of a trial conversation makes. After a reply without calls comes a user message."""


@dataclass(frozen=True)
class _TrialStep:
    """One step of a trial conversation, rendered whole."""

    kind: Kind
    leaf: Node
    new: tuple[Message, ...]
    extension: Extension

    @property
    def is_extension(self) -> bool:
        return self.extension.parent is self.leaf


def _try_conversation(
    renderer: Renderer, script: Sequence[int], tools: Sequence[ToolSpec], system: bool, thinks: bool
) -> list[_TrialStep]:
    """Run a trial conversation. Each step is rendered whole."""
    opening = (*((Message("system", "Be brief."),) if system else ()), Message("user", "Question 0"))
    root = Node(None, ())
    node = Node(root, opening, shape=renderer.render_prompt(opening, tools))
    steps: list[_TrialStep] = []
    for number, calls in enumerate(script):
        leaf = Node(node, (_make_reply(calls, thinks, number),), sampled=True, ended=True)
        new = _make_answers(calls) if calls else (Message("user", f"Question {number + 1}"),)
        extension = renderer.render_whole(leaf, new, tools)
        steps.append(_TrialStep(find_kind(new), leaf, new, extension))
        parent = extension.parent or root
        after = leaf.collect_messages()[len(parent.collect_messages()) :]
        node = Node(parent, (*after, *new), shape=extension.text)
    return steps


def _find_facts(renderer: Renderer, state: ConversationState) -> TemplateFacts:
    offered = _TOOLS if state.tools else ()
    plain = _try_conversations(renderer, state, offered, thinks=False)
    thinking = _try_conversations(renderer, state, offered, thinks=True)

    kept = [s for s in thinking if s.is_extension]
    dropped = [s for s in thinking if not s.is_extension]
    stable = _select_kinds(plain, lambda s: s.is_extension)
    uneven = {s.kind for s in dropped} & {s.kind for s in kept}
    return TemplateFacts(
        prefixes=_find_prefixes(renderer, state, [s for s in (*plain, *kept) if s.kind in stable - uneven]),
        stable=stable,
        keeps_thinking=_select_kinds(thinking, lambda s: s.is_extension),
        rounds_are_local=all(renderer.render_round(s.leaf, s.new, offered) == s.extension for s in dropped),
    )


def _find_prefixes(
    renderer: Renderer, state: ConversationState, steps: Sequence[_TrialStep]
) -> dict[Kind, ShortPrefix]:
    """For each kind, the shortest prefix with which a short rendering gives the text of the whole one."""
    leads: dict[Kind, ShortPrefix] = {}
    for prefix in (
        ShortPrefix(False, False),
        ShortPrefix(False, True),
        ShortPrefix(True, False),
        ShortPrefix(True, True),
    ):
        if prefix.answered <= state.answered and prefix.tools <= state.tools:
            rest = [step for step in steps if step.kind not in leads]
            leads |= dict.fromkeys(
                _select_kinds(rest, lambda step, prefix=prefix: _prefix_suffices(renderer, step, prefix)), prefix
            )
    return leads


def _prefix_suffices(renderer: Renderer, step: _TrialStep, prefix: ShortPrefix) -> bool:
    shape = step.leaf.shape
    try:
        short = renderer.render_short(step.leaf, step.new, prefix)
    except TemplateFault:
        return False
    same = short is not None and short.text == step.extension.text and step.leaf.shape == shape
    step.leaf.shape = shape
    return same


def _try_conversations(
    renderer: Renderer, state: ConversationState, tools: Sequence[ToolSpec], *, thinks: bool
) -> list[_TrialStep]:
    """The steps of trial conversations in this state. A conversation that the template refuses has none."""
    steps: list[_TrialStep] = []
    for script in (_WITHOUT, _WITH_TOOLS):
        with suppress(TemplateFault):
            steps += _try_conversation(renderer, script, tools, state.system, thinks)
    wanted = (state.answered, state.follows_answer)
    return [step for step in steps if (step.leaf.answered, step.leaf.follows_answer) == wanted]


def _select_kinds(steps: Sequence[_TrialStep], good: Callable[[_TrialStep], bool]) -> frozenset[Kind]:
    """The kinds for which there are steps and all of them are good."""
    verdicts: dict[Kind, bool] = {}
    for step in steps:
        verdicts[step.kind] = verdicts.get(step.kind, True) and good(step)
    return frozenset(kind for kind, verdict in verdicts.items() if verdict)


def _find_style(renderer: Renderer) -> TemplateStyle:
    """Find out in which form the template shows calls and their results, from the usual form to the odd ones."""
    style = TemplateStyle()
    renderer.style = style
    short = not _accepts_call_id(renderer, "call_12345678") and _accepts_call_id(renderer, "call00000")
    renderer.style = style = replace(style, short_ids=short)
    call_message = Message("assistant", "", (Call("call00000", "city", '{"city": "Xqarg0qX"}'),))
    shown = _render_call(renderer, call_message)
    if "Xqarg0qX" not in shown:
        renderer.style = replace(style, arguments="text")
        if "Xqarg0qX" in _render_call(renderer, call_message):
            style = renderer.style
        else:
            style = replace(style, calls="in content")
    style = replace(style, stand_in=_find_stand_in(renderer, style))
    style = replace(style, late_content=_shows_content_late(renderer, style))
    return _find_reasoning(renderer, style) if style.calls == "apart" else style


def _shows_content_late(renderer: Renderer, style: TemplateStyle) -> bool:
    renderer.style = style
    shown = _render_call(renderer, Message("assistant", "Xqsaid0qX", (Call("call00000", "city", "{}"),)), "Xqresult0qX")
    return 0 <= shown.find("Xqresult0qX") < shown.find("Xqsaid0qX")


def _find_reasoning(renderer: Renderer, style: TemplateStyle) -> TemplateStyle:
    """Find out whether the template has a field for reasoning and does not understand a think block instead."""
    call, thought = Call("call00000", "city", "{}"), Reasoning("Xqthought0qX", "reasoning_content")
    message = Message("assistant", "", (call,), reasoning=thought)
    renderer.style = style
    block = _render_call(renderer, message)
    for field in ("reasoning_content", "thinking"):
        renderer.style = found = replace(style, reasoning=field)
        shown = _render_call(renderer, message)
        if thought.text in shown and shown != block:
            both = _render_call(renderer, msgspec.structs.replace(message, content="Said."))
            return replace(found, calls_alone=not both)
    return style


def _accepts_call_id(renderer: Renderer, call_id: str) -> bool:
    calls = (Call(call_id, "city", "{}"),)
    messages = (Message("user", "q"), Message("assistant", "a", calls), Message("tool", "r", call_id=call_id))
    try:
        renderer.render_prompt(messages, _TOOLS)
    except TemplateFault:
        return False
    return True


def _render_call(renderer: Renderer, call_message: Message, result: str = "r") -> str:
    messages = (Message("user", "q"), call_message, Message("tool", result, call_id="call00000"))
    try:
        return renderer.render_prompt(messages, _TOOLS)
    except TemplateFault:
        return ""


def _find_stand_in(renderer: Renderer, style: TemplateStyle) -> Literal["content", "calls"]:
    """Stand-ins without calls are simpler, but some templates need the calls to show the results."""
    texts: list[list[str]] = []
    for way in ("content", "calls"):
        renderer.style = replace(style, stand_in=way)
        try:
            texts.append([s.extension.text for s in _try_conversation(renderer, _ONE_BY_ONE, _TOOLS, False, False)])
        except TemplateFault:
            texts.append([])
    plain, with_calls = texts
    return "calls" if with_calls and plain != with_calls else "content"


_ONE_BY_ONE = (1, 1, 0, 1)
