"""What to append when a conversation goes on: the text that a template adds behind replies whose ids are known.

A template is a program over whole conversations. Running it anew each turn and encoding its output is what loses the
sampled ids, and costs time in the square of the turns. Here a turn is rendered with *stand-ins* (`views`) for the
replies, so that the text around them can be cut out:

    known   … user: fix it <end> assistant: ⟨reply 1⟩                              the path so far
    whole   … user: fix it <end> assistant: ⟨reply 1⟩<end> tool: ok <end> assistant:     the template over everything
    delta                                            <end> tool: ok <end> assistant:     (<end> only if not sampled)

If `whole` begins with `known`, the conversation is *extended*. If not, the template rewrote history (it dropped the
thinking of an earlier round, moved the tools, …): then the longest stretch of the path that still holds is kept, and
what follows is rendered in words; a branch starts there.

Rendering everything each turn would still be quadratic. So a short conversation is rendered in its place, of a fixed
opening (`Lead`), the last reply and what is new, wherever that gives the same delta. Whether it does is not assumed:
when a kind of conversation is first met, both ways are run over made-up conversations of that kind and compared, with
the shortest opening first (`Facts`). When a reasoning template drops the thinking of a round that is over, only that
round is rendered, on the same condition.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ludus.tokens.session_tree import Node
from ludus.tokens.template import Template, TemplateFault, View
from ludus.tokens.tokenizer import Tokenizer
from ludus.tokens.views import (
    RenderCalls,
    TemplateMarks,
    TemplateStyle,
    make_stand_in,
    make_tool_views,
    make_view,
    map_call_names,
)
from ludus.types import Call, Message, Reasoning, ToolSpec

Kind = Literal["tool", "user"]
"""What a conversation goes on with: answers of tools alone, or anything else."""

History = Literal["template", "append"]
"""What the model sees of its past: what the template makes of it, or every reply as it was sampled."""


class Extension(NamedTuple):
    """How a conversation goes on: behind `parent` (None: from the start), with `text`."""

    parent: Node | None
    text: str


class ConversationState(NamedTuple):
    """What templates make their text depend on."""

    tools: bool
    system: bool
    answered: bool
    """Whether a tool has answered already."""
    follows_answer: bool
    """Whether the last reply came right behind the answer of a tool."""


class ShortPrefix(NamedTuple):
    """What stands for the conversation so far where a short one is rendered: a word of the user, and what templates
    may want to have seen besides."""

    answered: bool
    """Also a call and its answer: some templates show first answers of tools differently."""
    tools: bool
    """Also a tool on offer."""


@dataclass(frozen=True)
class TemplateFacts:
    """What a template does with conversations of one kind: see `Situation`."""

    prefixes: Mapping[Kind, ShortPrefix]
    """Ways to go on for which a short conversation gives the same text as the whole, and the least that it takes."""
    stable: frozenset[Kind]
    """Ways to go on that leave a history without reasoning as it is."""
    keeps_thinking: frozenset[Kind]
    """Ways to go on that leave reasoning in the history."""
    rounds_are_local: bool
    """Whether dropped reasoning changes nothing before the round it is dropped from."""


class Renderer:
    """A template, put to use for one vocabulary."""

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
        """The first prompt of a conversation."""
        return self.template.render(self._make_views(messages, messages), make_tool_views(tools))

    def extend(self, leaf: Node, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Extension:
        """How the conversation that ends in `leaf` goes on with `new`."""
        if not leaf.sampled or any(message.role == "assistant" for message in new):
            return self.render_whole(leaf, new, tools)
        if self.history == "append":
            return self.render_short(leaf, new, ShortPrefix(leaf.answered, bool(tools))) or self.render_whole(
                leaf, new, tools
            )
        kind = find_kind(new)
        facts = self.find_facts(ConversationState(bool(tools), leaf.system, leaf.answered, leaf.follows_answer))
        lead = facts.prefixes.get(kind)
        if lead is None:
            return self.render_whole(leaf, new, tools)
        if not leaf.thinks or kind in facts.keeps_thinking:
            return self.render_short(leaf, new, lead) or self.render_whole(leaf, new, tools)
        return (facts.rounds_are_local and self.render_round(leaf, new, tools)) or self.render_whole(leaf, new, tools)

    def matches_whole(
        self, leaf: Node, new: Sequence[Message], extension: Extension, tools: Sequence[ToolSpec]
    ) -> bool:
        """Whether rendering the whole conversation gives the same extension."""
        if extension.parent is not leaf:
            return self.render_whole(leaf, new, tools) == extension
        path = leaf.collect_path()
        few = _FEW_TOOLS if tools else None  # which tools they are matters to the opening alone
        opening = self.template.render(self._make_views(path[0].messages, path[0].messages), few)
        text = self._render_with_stand_ins(path, len(path), (*leaf.collect_messages(), *new), few)
        return (
            text == opening + _join_shapes(path[1:]) + extension.text
            or self.render_whole(leaf, new, tools) == extension
        )

    def find_facts(self, situation: ConversationState) -> TemplateFacts:
        """What the template does with such conversations; found out once."""
        known = self._facts.get(situation)
        if known is None:
            known = self._facts[situation] = _find_facts(self, situation)
        return known

    # ---- three ways to render -------------------------------------------------------------------------------------

    def render_whole(self, leaf: Node, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Extension:
        """Render everything, and keep as much of the path as still holds."""
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
            holds = _count_common(known, text)
            kept, known = _fit_longest(path[:kept], holds)
            text = self._render_with_stand_ins(path, kept, messages, shown_tools)
            if text.startswith(known):
                break
        return Extension(path[kept - 1] if kept else None, text[len(known) :])

    def render_short(self, leaf: Node, new: Sequence[Message], lead: ShortPrefix) -> Extension | None:
        """Render a fixed opening, the last reply and what is new. None if the reply cannot be found in it."""
        before, begun = self._render_prefix(lead)
        reply = make_stand_in(leaf.messages[0], leaf.depth, self.style)
        shown = [*before, reply, *self._make_views(new, leaf.messages)]
        text = self.template.render(shown, _FEW_TOOLS if lead.tools else None)
        start = len(begun)
        if not text.startswith(begun):
            if self.history != "append":
                return None
            start = max(0, text.find(TemplateMarks.for_depth(leaf.depth).content))
        delta = self._cut_after_reply(text, start, leaf)
        return None if delta is None else Extension(leaf, delta)

    def render_round(self, leaf: Node, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Extension | None:
        """Render only the round that ends now, in words, from the user's message that began it."""
        start = _find_round_start(leaf)
        if start is None or not start.messages or start.messages[-1].role != "user":
            return None
        spoken = [m for node in leaf.collect_path()[start.depth :] for m in node.messages]
        tools_shown = _FEW_TOOLS if tools else None
        messages = (start.messages[-1], *spoken, *new)
        lead = self.template.render(self._make_views(messages[:1], ()), tools_shown)
        text = self.template.render(self._make_views(messages, messages), tools_shown)
        return Extension(start, text[len(lead) :]) if text.startswith(lead) else None

    # ---- parts ----------------------------------------------------------------------------------------------------

    def _make_views(self, messages: Sequence[Message], named: Sequence[Message]) -> list[View]:
        names = map_call_names(named)
        return [make_view(message, names, self.style, self._render_calls) for message in messages]

    def _render_with_stand_ins(
        self, path: Sequence[Node], kept: int, messages: Sequence[Message], tools: Sequence[View] | None
    ) -> str:
        """The whole conversation, with stand-ins for the replies among the first `kept` nodes."""
        shown = self._make_views(messages, messages)
        position = 0
        for node in path[:kept]:
            if node.sampled:
                shown[position] = make_stand_in(node.messages[0], node.depth, self.style)
            position += len(node.messages)
        return self.template.render(shown, tools)

    def _cut_after_reply(self, text: str, start: int, leaf: Node) -> str | None:
        """What stands behind a reply's stand-in that begins at `start`; None if it does not stand there.

        Teaches the leaf its shape, up to and with the end of the turn if that was sampled.
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
            return None  # the template puts something before the words that the model did not write
        behind = max(at, apart) + len(marks.content)
        end = self._end_later.search(text, behind) if apart >= 0 else self._end_here.match(text, behind)
        if end is None:
            leaf.shape = text[start:behind]
            return text[behind:]
        cut = end.end() if leaf.ended else end.start(1)
        leaf.shape = text[start:cut]
        return text[cut:]

    def _render_prefix(self, lead: ShortPrefix) -> tuple[list[View], str]:
        """What stands for the conversation so far, and its text."""
        known = self._prefixes.get(lead)
        if known is None:
            shown = self._make_views(_ANSWERED if lead.answered else _ANSWERED[:1], _ANSWERED)
            known = self._prefixes[lead] = shown, self.template.render(shown, _FEW_TOOLS if lead.tools else None)
        return known


_ANSWERED = (
    Message("user", "Begin."),
    Message("assistant", "", (Call("call00009", "f", "{}"),)),
    Message("tool", "Done.", call_id="call00009"),
)
_FEW_TOOLS: list[View] = [
    {
        "type": "function",
        "function": {"name": "f", "description": "f", "parameters": {"type": "object", "properties": {}}},
    }
]


def find_kind(new: Sequence[Message]) -> Kind:
    return "tool" if new and all(message.role == "tool" for message in new) else "user"


def _count_common(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
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


def _fit_longest(path: Sequence[Node], holds: int) -> tuple[int, str]:
    """How many nodes fit into the first `holds` characters, and their text."""
    shapes: list[str] = []
    size = 0
    for node in path:
        shape = node.shape or ""
        if size + len(shape) > holds or (node.sampled and not shape):
            break
        shapes.append(shape)
        size += len(shape)
    return len(shapes), "".join(shapes)


def _find_round_start(leaf: Node) -> Node | None:
    """The given node before the first reply since the last user message."""
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
"""How many calls each reply of a made-up conversation makes; after one without, the user speaks."""


@dataclass(frozen=True)
class _TrialStep:
    """One step of a made-up conversation: what came of rendering it whole."""

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
    """Lead a made-up conversation, rendering it whole each time."""
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


def _find_facts(renderer: Renderer, situation: ConversationState) -> TemplateFacts:
    offered = _TOOLS if situation.tools else ()
    plain = _try_conversations(renderer, situation, offered, thinks=False)
    thoughtful = _try_conversations(renderer, situation, offered, thinks=True)

    kept = [s for s in thoughtful if s.is_extension]
    dropped = [s for s in thoughtful if not s.is_extension]
    stable = _select_kinds(plain, lambda s: s.is_extension)
    uneven = {s.kind for s in dropped} & {s.kind for s in kept}
    return TemplateFacts(
        prefixes=_find_prefixes(renderer, situation, [s for s in (*plain, *kept) if s.kind in stable - uneven]),
        stable=stable,
        keeps_thinking=_select_kinds(thoughtful, lambda s: s.is_extension),
        rounds_are_local=all(renderer.render_round(s.leaf, s.new, offered) == s.extension for s in dropped),
    )


def _find_prefixes(
    renderer: Renderer, situation: ConversationState, steps: Sequence[_TrialStep]
) -> dict[Kind, ShortPrefix]:
    """Of each kind of steps, the shortest lead that makes a short conversation give the text of the whole."""
    leads: dict[Kind, ShortPrefix] = {}
    for lead in (
        ShortPrefix(False, False),
        ShortPrefix(False, True),
        ShortPrefix(True, False),
        ShortPrefix(True, True),
    ):
        if lead.answered <= situation.answered and lead.tools <= situation.tools:
            rest = [step for step in steps if step.kind not in leads]
            leads |= dict.fromkeys(
                _select_kinds(rest, lambda step, lead=lead: _prefix_suffices(renderer, step, lead)), lead
            )
    return leads


def _prefix_suffices(renderer: Renderer, step: _TrialStep, lead: ShortPrefix) -> bool:
    shape = step.leaf.shape
    try:
        short = renderer.render_short(step.leaf, step.new, lead)
    except TemplateFault:
        return False
    same = short is not None and short.text == step.extension.text and step.leaf.shape == shape
    step.leaf.shape = shape
    return same


def _try_conversations(
    renderer: Renderer, situation: ConversationState, tools: Sequence[ToolSpec], *, thinks: bool
) -> list[_TrialStep]:
    """The steps of made-up conversations that are in this situation; of those that the template can show."""
    steps: list[_TrialStep] = []
    for script in (_WITHOUT, _WITH_TOOLS):
        with suppress(TemplateFault):
            steps += _try_conversation(renderer, script, tools, situation.system, thinks)
    wanted = (situation.answered, situation.follows_answer)
    return [step for step in steps if (step.leaf.answered, step.leaf.follows_answer) == wanted]


def _select_kinds(steps: Sequence[_TrialStep], good: Callable[[_TrialStep], bool]) -> frozenset[Kind]:
    """The kinds of steps that there are and that are all good."""
    verdicts: dict[Kind, bool] = {}
    for step in steps:
        verdicts[step.kind] = verdicts.get(step.kind, True) and good(step)
    return frozenset(kind for kind, verdict in verdicts.items() if verdict)


def _find_style(renderer: Renderer) -> TemplateStyle:
    """Try out how the template wants calls and their answers, from the usual to the odd."""
    style = TemplateStyle()
    renderer.style = style
    short = not _accepts_call_id(renderer, "call_12345678") and _accepts_call_id(renderer, "call00000")
    renderer.style = style = replace(style, short_ids=short)
    asked = Message("assistant", "", (Call("call00000", "city", '{"city": "Xqarg0qX"}'),))
    shown = _render_call(renderer, asked)
    if "Xqarg0qX" not in shown:
        renderer.style = replace(style, arguments="text")
        if "Xqarg0qX" in _render_call(renderer, asked):
            style = renderer.style
        else:
            style = replace(style, calls="in content")
    return replace(style, stand_in=_find_stand_in(renderer, style))


def _accepts_call_id(renderer: Renderer, call_id: str) -> bool:
    calls = (Call(call_id, "city", "{}"),)
    messages = (Message("user", "q"), Message("assistant", "a", calls), Message("tool", "r", call_id=call_id))
    try:
        renderer.render_prompt(messages, _TOOLS)
    except TemplateFault:
        return False
    return True


def _render_call(renderer: Renderer, asked: Message) -> str:
    messages = (Message("user", "q"), asked, Message("tool", "r", call_id="call00000"))
    try:
        return renderer.render_prompt(messages, _TOOLS)
    except TemplateFault:
        return ""


def _find_stand_in(renderer: Renderer, style: TemplateStyle) -> Literal["content", "calls"]:
    """Stand-ins without calls are simpler, but some templates look at the calls to show the answers."""
    told: list[list[str]] = []
    for way in ("content", "calls"):
        renderer.style = replace(style, stand_in=way)
        try:
            told.append([s.extension.text for s in _try_conversation(renderer, _ONE_BY_ONE, _TOOLS, False, False)])
        except TemplateFault:
            told.append([])
    plain, with_calls = told
    return "calls" if with_calls and plain != with_calls else "content"


_ONE_BY_ONE = (1, 1, 0, 1)
