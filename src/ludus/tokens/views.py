"""Messages as chat templates see them, and stand-ins for replies whose ids are known.

Templates differ in details: whether the arguments of a call are an object or a text, whether calls are shown beside the
content or in it, how long an id may be. `TemplateStyle` names what one template needs. A *stand-in* is an assistant
message with marks in place of its text. It shows where a reply is in the rendered text, and no word of the reply goes
through the template.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from ludus.chat_form import decode_arguments, write_call, write_tools
from ludus.types import Call, JsonObject, Message, ToolSpec

View = JsonObject
"""A message or a tool as templates see it."""

RenderCalls = Callable[[str, Sequence[Call]], str]
"""Writes content and calls as the model would have written them: a parser's `render`."""


@dataclass(frozen=True)
class TemplateStyle:
    """The form in which a template needs messages."""

    calls: Literal["apart", "in content"] = "apart"
    """Where the calls of an assistant message go if it is rendered as text."""
    arguments: Literal["object", "text"] = "object"
    short_ids: bool = False
    """Ids of calls must be nine letters or digits."""
    stand_in: Literal["content", "calls"] = "content"
    """Whether a stand-in has content only, or calls too."""
    reasoning: Literal["block", "reasoning_content", "thinking"] = "block"
    """Where reasoning goes: into a think block in the content, or into a field that the template writes in its own way.
    A block is used wherever the template understands both."""
    calls_alone: bool = False
    """A message with calls cannot have both content and reasoning."""
    late_content: bool = False
    """The content of a message with calls is shown after their results. A stand-in with calls then has none: the
    results must come after it."""


@dataclass(frozen=True)
class TemplateMarks:
    """The text of a stand-in. It has only letters and digits: no template trims, splits or escapes them."""

    reasoning: str
    content: str
    arguments: str

    @staticmethod
    @lru_cache(maxsize=512)
    def for_depth(depth: int) -> "TemplateMarks":
        return TemplateMarks(*(f"Xq{kind}{depth:05d}qX" for kind in "rca"))


def make_tool_views(tools: Sequence[ToolSpec]) -> list[View] | None:
    """Tools as templates see them."""
    return write_tools(tools) if tools else None


def map_call_names(messages: Iterable[Message]) -> dict[str, str]:
    """The tool of each call id. Some templates show the tool's name beside its result."""
    return {call.id: call.name for message in messages for call in message.calls}


def make_view(
    message: Message, names: Mapping[str, str], style: TemplateStyle, render_calls: RenderCalls | None
) -> View:
    """A message in the form that the template needs."""
    if message.role == "tool":
        shown: View = {"role": "tool", "content": message.content, "tool_call_id": _fit_call_id(message.call_id, style)}
        if message.call_id in names:
            shown["name"] = names[message.call_id]
        return shown
    if style.reasoning == "block" or message.reasoning is None:
        shown = {"role": message.role, "content": format_thinking(message) + message.content}
    else:
        shown = _make_thinking_view(message.reasoning.text, message.content, style, calls=bool(message.calls))
    if not message.calls:
        return shown
    if style.calls == "in content" and render_calls is not None:
        return {**shown, "content": render_calls(shown["content"], message.calls)}
    return {**shown, "tool_calls": [_make_call_view(c, style) for c in message.calls]}


def _make_thinking_view(thought: str, content: str, style: TemplateStyle, *, calls: bool) -> View:
    """An assistant message with reasoning in a field of its own. Where both cannot be shown, they become one text."""
    if calls and style.calls_alone:
        thought, content = "\n".join(part for part in (thought, content) if part), ""
    return {"role": "assistant", "content": content, style.reasoning: thought}


def format_thinking(message: Message) -> str:
    """Reasoning as text: the think block that the model wrote, or a block in the usual form."""
    reasoning = message.reasoning
    if reasoning is None:
        return ""
    if reasoning.source == "think" and isinstance(reasoning.raw, str):
        return reasoning.raw
    return f"<think>\n{reasoning.text}\n</think>\n\n" if reasoning.text else ""


def _make_call_view(call: Call, style: TemplateStyle) -> View:
    arguments = call.arguments if style.arguments == "text" else show_arguments(call)
    return write_call(_fit_call_id(call.id, style), call.name, arguments)


def show_arguments(call: Call) -> JsonObject | str:
    """The arguments as an object; as the original text, if they are not one."""
    found = decode_arguments(call.arguments or "{}")
    return call.arguments if found is None else found


_SHORT = re.compile(r"[a-zA-Z0-9]{9}")


def _fit_call_id(call_id: str, style: TemplateStyle) -> str:
    if not style.short_ids or _SHORT.fullmatch(call_id):
        return call_id
    return f"{zlib.crc32(call_id.encode()):09x}"


def make_stand_in(message: Message, depth: int, style: TemplateStyle) -> View:
    """An assistant message with marks in place of its text."""
    marks = TemplateMarks.for_depth(depth)
    shows_calls = style.stand_in == "calls" and bool(message.calls)
    if message.reasoning is None:
        shown: View = {"role": "assistant", "content": marks.content}
    elif style.reasoning == "block":
        shown = {"role": "assistant", "content": f"<think>\n{marks.reasoning}\n</think>\n\n{marks.content}"}
    else:
        shown = _make_thinking_view(marks.reasoning, marks.content, style, calls=shows_calls)
    if shows_calls and style.late_content:
        shown["content"] = ""
    if shows_calls:
        last = len(message.calls) - 1
        calls = [
            Call(c.id, c.name, f'{{"mark": "{marks.arguments if i == last else 0}"}}')
            for i, c in enumerate(message.calls)
        ]
        shown["tool_calls"] = [_make_call_view(call, style) for call in calls]
    return shown
