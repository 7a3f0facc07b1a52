"""Messages as others write them: OpenAI's form, Anthropic's blocks, and mixtures of both.

`ludus.chat_form` and the gateway read what a client sends now, and refuse what they do not know. A transcript has
already happened: what is not known here is left out and counted, and the rest of the message is kept.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from ludus.chat_form import ROLES, get_image_url, read_arguments
from ludus.images import describe_bad_url
from ludus.transcripts.session_draft import as_list, as_object, as_text
from ludus.types import Call, Image, JsonObject, Message, Reasoning

OTHER_PARTS = "parts of messages that are neither text nor pictures"
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
_RESULTS = ("tool_result", "web_search_tool_result", "mcp_tool_result")


def read_chat_message(given: JsonObject, dropped: Counter[str]) -> list[Message]:
    """A message of the chat API, or of Anthropic's, as messages: each tool result is one of its own."""
    role = ROLES.get(as_text(given.get("role")), "user")
    content = given.get("content")
    if role == "assistant":
        return [_read_reply(given, content, dropped)]
    if role == "tool":
        text, images = read_content(content, dropped)
        return [Message("tool", text, call_id=as_text(given.get("tool_call_id")), images=images)]
    if role == "user":
        return read_user_content(content, dropped)
    return [Message("system", read_content(content, dropped)[0])]


def _read_reply(given: JsonObject, content: Any, dropped: Counter[str]) -> Message:
    message = read_reply_content(content, dropped)
    calls = [_read_call(as_object(call)) for call in as_list(given.get("tool_calls"))]
    if isinstance(given.get("function_call"), dict):
        calls.append(_read_call({"function": given["function_call"]}))
    thought = as_text(given.get("reasoning_content")) or as_text(given.get("reasoning"))
    reasoning = Reasoning(thought, "reasoning_content") if thought else message.reasoning
    return Message("assistant", message.content, (*message.calls, *calls), reasoning=reasoning)


def _read_call(call: JsonObject) -> Call:
    function = as_object(call.get("function")) or call
    return Call(as_text(call.get("id")), as_text(function.get("name")), read_arguments(function.get("arguments")))


def read_user_content(content: Any, dropped: Counter[str]) -> list[Message]:
    """The content of a user's message: the results of tools in it, and what is beside them."""
    messages: list[Message] = []
    waiting: list[Any] = []

    def flush() -> None:
        if waiting:
            text, images = read_content(list(waiting), dropped)
            if text or images:
                messages.append(Message("user", text, images=images))
            waiting.clear()

    for part in content if isinstance(content, list) else [content]:  # pyright: ignore[reportUnknownVariableType]
        block = as_object(part)
        if block.get("type") not in _RESULTS:
            waiting.append(part)
            continue
        flush()
        text, images = read_content(block.get("content"), dropped)
        messages.append(Message("tool", text, call_id=as_text(block.get("tool_use_id")), images=images))
    flush()
    return messages


def read_reply_content(content: Any, dropped: Counter[str]) -> Message:
    """The content of a reply: its text, its calls, and what the model thought. Signatures of thoughts are left out."""
    texts: list[Any] = []
    calls: list[Call] = []
    thoughts: list[str] = []
    for part in content if isinstance(content, list) else [content]:  # pyright: ignore[reportUnknownVariableType]
        block = as_object(part)
        kind = block.get("type")
        if kind in _CALLS:
            calls.append(
                Call(as_text(block.get("id")), as_text(block.get("name")), read_arguments(block.get("input") or {}))
            )
        elif kind in _THOUGHTS:
            thoughts += [words for key in ("thinking", "text") if (words := as_text(block.get(key)))]
        else:
            texts.append(part)
    text, images = read_content(texts, dropped)
    if images:
        dropped["pictures in replies"] += len(images)
    return Message("assistant", text, tuple(calls), reasoning=make_reasoning(thoughts))


def make_reasoning(thoughts: Iterable[str]) -> Reasoning | None:
    text = "\n".join(thought for thought in thoughts if thought)
    return Reasoning(text, "reasoning_content") if text else None


def read_content(content: Any, dropped: Counter[str]) -> tuple[str, tuple[Image, ...]]:
    """A text, or the texts of parts and their pictures with their places."""
    if content is None:
        return "", ()
    if isinstance(content, str):
        return content, ()
    if not isinstance(content, list):
        return msgspec.json.encode(content).decode(), ()
    text, images = "", list[Image]()
    for part in as_list(content):
        block: JsonObject = {"text": part} if isinstance(part, str) else as_object(part)
        words = block.get("text")
        if isinstance(words, str):
            text += f"\n{words}" if text and words else words
        elif part is None:
            continue
        elif isinstance(url := _find_url(block), str):
            if describe_bad_url(url):
                dropped["pictures that cannot be read"] += 1
            else:
                images.append(Image(url, len(text)))
        else:
            dropped[OTHER_PARTS] += 1
    return text, tuple(images)


def _find_url(block: JsonObject) -> Any:
    """The address of a picture in a part, in one of three forms."""
    match block:
        case {"source": {"type": "base64", "media_type": str(kind), "data": str(data)}}:
            return f"data:{kind};base64,{data}"
        case {"source": {"url": str(url)}}:
            return url
        case _:
            return get_image_url(block)
