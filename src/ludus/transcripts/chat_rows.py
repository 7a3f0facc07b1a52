"""Conversations as rows of data: OpenAI's messages, and ShareGPT's `conversations`.

A row is an object with `messages` (or `conversations`), or a list of messages. A file is one row, a list of rows, rows
line by line, or one conversation whose lines are messages.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from ludus.chat_form import ROLES
from ludus.parsers import Parser
from ludus.transcripts.foreign_messages import make_reasoning, read_chat_message
from ludus.transcripts.past_session import Format, PastSession
from ludus.transcripts.session_draft import SessionDraft, as_count, as_list, as_object, as_text
from ludus.transcripts.sightings import list_named_skills
from ludus.types import Call, JsonObject, Message, Role, Usage

_OTHER_ROWS = "rows without messages"
_ID_KEYS = ("id", "session_id", "conversation_id", "custom_id", "uuid")
_TIME_KEYS = ("created", "created_at", "timestamp", "create_time")
_PROJECT_KEYS = ("project", "cwd", "workspace")

# ---- OpenAI ---------------------------------------------------------------------------------------------------------


def is_message(value: Any) -> bool:
    """Whether a value is a message of the chat API."""
    message = as_object(value)
    return as_text(message.get("role")) in ROLES and ("content" in message or "tool_calls" in message)


def matches_openai(value: Any) -> bool:
    """Whether a value is a row of messages, or one message."""
    return is_message(value) or bool(_find_messages(value))


def _find_messages(row: Any) -> list[Any]:
    """The messages of a row; none if it is no row of messages."""
    fields = as_object(row)
    for found in (row, fields.get("messages"), as_object(fields.get("body")).get("messages")):
        messages = as_list(found)
        if messages and all(is_message(message) for message in messages[:3]):
            return messages
    return []


def read_openai(values: Iterable[Any], path: str, dropped: Counter[str]) -> Iterator[PastSession]:
    """The conversations of a file. Lines that are messages are one conversation together."""
    lines: list[Any] = []
    for value in values:
        if is_message(value):
            lines.append(value)
        else:
            yield from _read_rows(value, path, dropped)
    if lines:
        yield from _read_row({"messages": lines}, lines, path)


def _read_rows(value: Any, path: str, dropped: Counter[str]) -> Iterator[PastSession]:
    """The conversation of a row, or those of a list of rows."""
    if messages := _find_messages(value):
        yield from _read_row(as_object(value), messages, path)
    elif isinstance(value, list):
        for row in as_list(value):
            if messages := _find_messages(row):
                yield from _read_row(as_object(row), messages, path)
            else:
                dropped[_OTHER_ROWS] += 1
    else:
        dropped[_OTHER_ROWS] += 1


def _read_row(row: JsonObject, messages: list[Any], path: str) -> Iterator[PastSession]:
    draft = _open_draft("openai", row, path)
    for given in messages:
        if not is_message(given):
            draft.dropped["messages of an unknown form"] += 1
            continue
        for message in read_chat_message(as_object(given), draft.dropped):
            draft.add(message)
    usage = as_object(row.get("usage"))
    draft.usage = Usage(
        as_count(usage.get("prompt_tokens")),
        as_count(usage.get("completion_tokens")),
        as_count(as_object(usage.get("prompt_tokens_details")).get("cached_tokens")),
    )
    if session := draft.finish():
        yield session


def _open_draft(format: Format, row: JsonObject, path: str) -> SessionDraft:
    """A draft with what the row says beside its messages."""
    metadata = as_object(row.get("metadata"))
    both = {**metadata, **row}
    draft = SessionDraft(format, path)
    draft.id = next((str(both[key]) for key in _ID_KEYS if isinstance(both.get(key), str | int)), "")
    draft.project = next((as_text(both[key]) for key in _PROJECT_KEYS if as_text(both.get(key))), "")
    draft.model = as_text(both.get("model"))
    draft.agent = as_text(both.get("agent"))
    for key in _TIME_KEYS:
        draft.note_time(both.get(key))
    for tool in as_list(row.get("tools")):
        function = as_object(as_object(tool).get("function")) or as_object(tool)
        if as_text(function.get("name")).lower() == "skill":
            draft.skills += list_named_skills(as_text(function.get("description")))
    return draft


# ---- ShareGPT -------------------------------------------------------------------------------------------------------

_SPEAKERS: dict[str, Role] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
_HERMES = Parser("hermes")


def matches_sharegpt(value: Any) -> bool:
    """Whether a value is a row of ShareGPT, or a list of them."""
    if isinstance(value, list):
        return bool(value) and matches_sharegpt(value[0])  # pyright: ignore[reportUnknownArgumentType]
    said = as_list(as_object(value).get("conversations"))
    return bool(said) and {"from", "value"} <= as_object(said[0]).keys()


def read_sharegpt(values: Iterable[Any], path: str, dropped: Counter[str]) -> Iterator[PastSession]:
    """The conversations of a file."""
    for value in values:
        for row in as_list(value) if isinstance(value, list) else [value]:
            if not matches_sharegpt(row) or isinstance(row, list):
                dropped[_OTHER_ROWS] += 1
            elif session := _read_sharegpt_row(as_object(row), path):
                yield session


def _read_sharegpt_row(row: JsonObject, path: str) -> PastSession | None:
    draft = _open_draft("sharegpt", row, path)
    if system := as_text(row.get("system")):
        draft.add(Message("system", system))
    answered = 0
    calls: list[Call] = []
    for said in as_list(row.get("conversations")):
        turn = as_object(said)
        role, value = _SPEAKERS.get(as_text(turn.get("from")).lower()), turn.get("value")
        if role is None or not isinstance(value, str):
            draft.dropped["messages of an unknown form"] += 1
        elif role == "assistant":
            message = _read_reply(value, as_text(turn.get("from")) == "function_call", len(calls))
            calls += message.calls
            draft.add(message)
        elif role == "tool":
            for text in _split_responses(value):
                call_id = calls[answered].id if answered < len(calls) else ""
                draft.add(Message("tool", text, call_id=call_id))
                answered += 1
        else:
            draft.add(Message(role, value))
    return draft.finish()


def _read_reply(text: str, is_call: bool, first: int) -> Message:
    """A reply. Calls are texts in it, in the form of Hermes; a turn of the speaker `function_call` is one call."""
    if is_call and "<tool_call>" not in text:
        text = f"<tool_call>{text}</tool_call>"
    parsed = _HERMES.parse(text, (), first=first)
    if parsed.problems or not (parsed.calls or parsed.reasoning):
        return Message("assistant", text)
    return Message("assistant", parsed.content, tuple(parsed.calls), reasoning=make_reasoning([parsed.reasoning]))


def _split_responses(text: str) -> list[str]:
    """The results in a message of tools: Hermes puts each between marks."""
    parts = text.split("<tool_response>")[1:]
    return [part.partition("</tool_response>")[0].strip("\n") for part in parts] or [text]
