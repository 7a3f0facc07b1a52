"""Messages, calls and tools in the form of OpenAI's chat API.

    {"role": "assistant", "content": "…", "tool_calls": [{"id", "type": "function", "function": {"name", "arguments"}}]}

Model servers, chat templates, trainers and files of other systems all use it. Only this module spells it out. The
writers return plain dicts. `read_message` and its parts take what others wrote: dicts or objects of OpenAI's client,
content that is a text or parts, arguments that are a text or an object. Where a whole request or reply is read from
bytes (`gateway.chat_api`, `models.openai`), the fields are typed there, and the values are converted here.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from ludus.images import split_parts
from ludus.types import Call, Finish, Image, JsonObject, Message, Reasoning, Role, ToolSpec

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""The roles that the API knows, and what they are here."""

# ---- writing ------------------------------------------------------------------------------------------------------


def write_message(message: Message) -> JsonObject:
    """A message as it is stored and exported. Its reasoning is text, whatever form the server has for it."""
    chat: JsonObject = {"role": message.role, "content": write_content(message)}
    if message.reasoning is not None:
        chat["reasoning_content"] = message.reasoning.text
    if message.calls:
        chat["tool_calls"] = write_calls(message.calls)
    if message.role == "tool":
        chat["tool_call_id"] = message.call_id
    return chat


def write_content(message: Message) -> str | list[JsonObject]:
    """The content of a message: a text, or parts if there are pictures."""
    if not message.images:
        return message.content
    return [
        {"type": "text", "text": part} if isinstance(part, str) else write_image(part.url)
        for part in split_parts(message)
    ]


def write_image(url: str) -> JsonObject:
    return {"type": "image_url", "image_url": {"url": url}}


def write_calls(calls: Iterable[Call]) -> list[JsonObject]:
    return [write_call(call.id, call.name, call.arguments) for call in calls]


def write_call(id: str, name: str, arguments: Any) -> JsonObject:
    """A call. The API's arguments are a text of JSON; chat templates want the object."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def write_tools(tools: Iterable[ToolSpec]) -> list[JsonObject]:
    return [write_tool(tool) for tool in tools]


def write_tool(tool: ToolSpec) -> JsonObject:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


FINISH_NAMES = {finish: "stop" if finish is Finish.OTHER else finish.value for finish in Finish}
"""Why a reply ended, in the words of the API."""


# ---- reading ------------------------------------------------------------------------------------------------------


def read_messages(messages: Iterable[Any]) -> list[Message]:
    """Messages that others wrote.

    Raises:
        ValueError: one has a part that is neither a text nor a picture.
    """
    return [read_message(message) for message in messages]


def read_message(given: Any) -> Message:
    """One of them. A role that the API does not have is the user's, but `agent` is the assistant's."""
    fields = _as_mapping(given)
    name = str(fields.get("role"))
    role = ROLES.get(name) or ("assistant" if name == "agent" else "user")
    thought = fields.get("reasoning_content") or fields.get("reasoning")
    text, images = _read_content(fields.get("content"))
    return Message(
        role,
        text,
        tuple(_read_call(call) for call in fields.get("tool_calls") or ()) if role == "assistant" else (),
        str(fields.get("tool_call_id") or "") if role == "tool" else "",
        Reasoning(thought, "reasoning_content") if role == "assistant" and isinstance(thought, str) else None,
        images if role in ("user", "tool") else (),
    )


def _read_content(content: Any) -> tuple[str, tuple[Image, ...]]:
    """The text of a message, and its pictures with their places.

    Raises:
        ValueError: a part is neither a text nor a picture.
    """
    if content is None:
        return "", ()
    if not isinstance(content, list | tuple):
        return str(content), ()
    text, images = "", list[Image]()
    for part in cast(Sequence[Any], content):
        given: Mapping[str, Any] = {"text": part} if isinstance(part, str) else _as_mapping(part)
        if isinstance(words := given.get("text"), str):
            text += f"\n{words}" if text and not images else words
        elif isinstance(url := get_image_url(given), str) and url:
            images.append(Image(url, len(text)))
        else:
            raise ValueError(f"a message has a part of the type '{given.get('type')}': models get text and pictures")
    return text, tuple(images)


def get_image_url(part: Mapping[str, Any]) -> Any:
    """The address in a part that is a picture: a text, or an object with a `url`."""
    value = part.get("image_url")
    return cast(Mapping[str, Any], value).get("url") if isinstance(value, Mapping) else value


def _read_call(given: Any) -> Call:
    call = _as_mapping(given)
    function = get_function(call)
    arguments = function.get("arguments")
    return Call(
        str(call.get("id") or ""),
        str(function.get("name") or ""),
        arguments if isinstance(arguments, str) else json.dumps(arguments or {}),
    )


def read_arguments(value: Any) -> str:
    """The arguments of a call as text. Some servers and clients send the object."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def decode_arguments(arguments: str) -> JsonObject | None:
    """The arguments of a call as an object; None if they are not one."""
    try:
        value = msgspec.json.decode(arguments)
    except (ValueError, RecursionError):
        return None
    return cast(JsonObject, value) if isinstance(value, dict) else None


def read_tools(tools: Iterable[Any] | None) -> list[ToolSpec]:
    """Tools that others wrote.

    Raises:
        KeyError: one has no name.
    """
    return [
        ToolSpec(tool["name"], tool.get("description") or "", tool.get("parameters") or {"type": "object"})
        for tool in map(get_function, tools or ())
    ]


def get_function(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The function of a tool or a call, which most write with a frame (`{"type": "function", "function": …}`)."""
    function = given.get("function")
    return _as_mapping(function) if function else given


def _as_mapping(given: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], given) if isinstance(given, Mapping) else given.model_dump()
