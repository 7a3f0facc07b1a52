"""Messages as chat templates see them, and stand-ins for replies whose ids are known.

Templates disagree about small things: whether arguments of calls are an object or a text, whether a call must be told
beside the content or in it, how long an id may be. `Habits` names what one template wants. A *stand-in* is an assistant
message with marks in place of its words: rendered, it shows where in the text a reply stands without any word of it
going through the template.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import msgspec

from ludus.tokens.template import View
from ludus.types import Call, JsonObject, Message, ToolSpec

RenderCalls = Callable[[str, Sequence[Call]], str]
"""A parser's counterpart: content and calls in, the text that the model would have written out."""


@dataclass(frozen=True)
class Habits:
    """What a template wants messages to look like."""

    calls: Literal["apart", "in content"] = "apart"
    """Where the calls of an assistant message go that has to be rendered in words."""
    arguments: Literal["object", "text"] = "object"
    short_ids: bool = False
    """Ids of calls must be nine letters or digits."""
    stand_in: Literal["content", "calls"] = "content"
    """Whether a stand-in shows its calls too."""


@dataclass(frozen=True)
class Marks:
    """The words of a stand-in. Letters and digits only: no template trims, splits or escapes them."""

    reasoning: str
    content: str
    arguments: str

    @staticmethod
    @lru_cache(maxsize=512)
    def of(depth: int) -> "Marks":
        return Marks(*(f"Xq{kind}{depth:05d}qX" for kind in "rca"))


def tool_views(tools: Sequence[ToolSpec]) -> list[View] | None:
    """Tools as templates see them."""
    if not tools:
        return None
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in tools
    ]


def call_names(messages: Iterable[Message]) -> dict[str, str]:
    """Which tool a call id belongs to: some templates want to know whose answer they show."""
    return {call.id: call.name for message in messages for call in message.calls}


def view(message: Message, names: Mapping[str, str], habits: Habits, render_calls: RenderCalls | None) -> View:
    """A message as the template wants it."""
    if message.role == "tool":
        shown: View = {"role": "tool", "content": message.content, "tool_call_id": _id(message.call_id, habits)}
        if message.call_id in names:
            shown["name"] = names[message.call_id]
        return shown
    content = thinking_text(message) + message.content
    if not message.calls:
        return {"role": message.role, "content": content}
    if habits.calls == "in content" and render_calls is not None:
        return {"role": message.role, "content": render_calls(content, message.calls)}
    return {"role": message.role, "content": content, "tool_calls": [_call(c, habits) for c in message.calls]}


def thinking_text(message: Message) -> str:
    """Reasoning as it stands in the text: the block the model wrote, or the usual form of one."""
    reasoning = message.reasoning
    if reasoning is None:
        return ""
    if reasoning.source == "think" and isinstance(reasoning.raw, str):
        return reasoning.raw
    return f"<think>\n{reasoning.text}\n</think>\n\n" if reasoning.text else ""


def _call(call: Call, habits: Habits) -> View:
    arguments = call.arguments if habits.arguments == "text" else arguments_of(call)
    return {
        "id": _id(call.id, habits),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def arguments_of(call: Call) -> JsonObject | str:
    """The arguments as an object; as the text they are, if they are none."""
    try:
        value = msgspec.json.decode(call.arguments or "{}")
    except ValueError:
        return call.arguments
    return value if isinstance(value, dict) else call.arguments  # pyright: ignore[reportUnknownVariableType]


_SHORT = re.compile(r"[a-zA-Z0-9]{9}")


def _id(call_id: str, habits: Habits) -> str:
    if not habits.short_ids or _SHORT.fullmatch(call_id):
        return call_id
    return f"{zlib.crc32(call_id.encode()):09x}"


def stand_in(message: Message, depth: int, habits: Habits) -> View:
    """An assistant message with marks for words."""
    marks = Marks.of(depth)
    thought = f"<think>\n{marks.reasoning}\n</think>\n\n" if message.reasoning is not None else ""
    shown: View = {"role": "assistant", "content": thought + marks.content}
    if habits.stand_in == "calls" and message.calls:
        last = len(message.calls) - 1
        calls = [
            Call(c.id, c.name, f'{{"mark": "{marks.arguments if i == last else 0}"}}')
            for i, c in enumerate(message.calls)
        ]
        shown["tool_calls"] = [_call(call, habits) for call in calls]
    return shown
