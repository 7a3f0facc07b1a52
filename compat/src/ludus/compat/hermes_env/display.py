"""Conversations as text, for the table of rollouts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LONGEST = {"thinking": 300, "arguments": 200, "result": 500}
"""The longest texts that are shown of each kind."""


def format_messages(messages: Sequence[Mapping[str, Any]]) -> str:
    """A conversation in OpenAI's form as text: who says what, with calls and shortened results."""
    return "\n\n".join(line for message in messages for line in _list_lines(message))


def _list_lines(message: Mapping[str, Any]) -> Iterator[str]:
    role, content = str(message.get("role", "unknown")), str(message.get("content") or "")
    if role == "tool":
        yield f"[TOOL RESULT] {_shorten(content, 'result')}"
        return
    if message.get("reasoning_content"):
        yield f"[{role.upper()} thinking]\n{_shorten(str(message['reasoning_content']), 'thinking')}"
    if content or role != "assistant":
        yield f"[{role.upper()}]\n{content}"
    for call in message.get("tool_calls") or ():
        function: Mapping[str, Any] = call.get("function") or dict[str, Any]()
        arguments = _shorten(str(function.get("arguments", "{}")), "arguments")
        yield f"[TOOL CALL] {function.get('name', '?')}({arguments})"


def _shorten(text: str, kind: str) -> str:
    return text if len(text) <= LONGEST[kind] else f"{text[: LONGEST[kind]]}..."
