"""Between the dicts and reply objects of OpenAI's client, which files use, and the nouns of Ludus."""

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import msgspec

from ludus.types import Call, Completion, Finish, Image, Message, Reasoning, Role, Sampling, ToolSpec, Usage

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
    "agent": "assistant",
    "tool": "tool",
    "function": "tool",
}
_LIMITS = ("max_tokens", "max_completion_tokens", "max_new_tokens")
NOT_SENT = ("model", "split", "timeout", "skip_reasoning", "n", "messages", "prompt", "tools", "tokenizer")
"""Arguments of a call that are no fields of the request."""


class ReplyObject(SimpleNamespace):
    """An object with the attributes of a reply of OpenAI's client. It can be read as a mapping, too."""

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return {name: _dump(value) for name, value in vars(self).items()}


def _dump(value: Any) -> Any:
    if isinstance(value, ReplyObject):
        return value.model_dump()
    if isinstance(value, list):
        return [_dump(each) for each in cast(list[Any], value)]
    return value


# ---- requests -----------------------------------------------------------------------------------------------------


def read_messages(messages: Sequence[Any]) -> list[Message]:
    """The messages of a request.

    Raises:
        ValueError: one has a part that is neither a text nor a picture.
    """
    return [_read_message(message) for message in messages]


def _read_message(given: Any) -> Message:
    message = _read_mapping(given)
    role = _ROLES.get(str(message.get("role")), "user")
    thought = message.get("reasoning_content") or message.get("reasoning")
    text, images = read_content(message.get("content"))
    return Message(
        role,
        text,
        tuple(_read_call(call) for call in message.get("tool_calls") or ()) if role == "assistant" else (),
        str(message.get("tool_call_id") or "") if role == "tool" else "",
        Reasoning(thought, "reasoning_content") if role == "assistant" and isinstance(thought, str) else None,
        images if role in ("user", "tool") else (),
    )


def _read_mapping(given: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], given) if isinstance(given, Mapping) else given.model_dump()


def read_content(content: Any) -> tuple[str, tuple[Image, ...]]:
    """The content of a message, which is a text, None, or a list of parts: its text, and its pictures with their
    places.

    Raises:
        ValueError: a part is neither a text nor a picture.
    """
    if content is None:
        return "", ()
    if not isinstance(content, list | tuple):
        return (content if isinstance(content, str) else str(content)), ()
    text, images = "", list[Image]()
    for part in cast(Sequence[Any], content):
        given: Mapping[str, Any] = {"text": part} if isinstance(part, str) else _read_mapping(part)
        if isinstance(words := given.get("text"), str):
            text += f"\n{words}" if text and not images else words
        elif url := _find_url(given.get("image_url")):
            images.append(Image(url, len(text)))
        else:
            raise ValueError(f"a message has a part of the type '{given.get('type')}': models get text and pictures")
    return text, tuple(images)


def _find_url(value: Any) -> str:
    """The address of a picture: a text, or an object with a `url`."""
    found = cast(Mapping[str, Any], value).get("url") if isinstance(value, Mapping) else value
    return found if isinstance(found, str) else ""


def _read_call(call: Any) -> Call:
    given = _read_mapping(call)
    function: Mapping[str, Any] = given.get("function") or given
    arguments = function.get("arguments")
    return Call(
        str(given.get("id") or ""),
        str(function.get("name") or ""),
        arguments if isinstance(arguments, str) else json.dumps(arguments or {}),
    )


def read_tools(tools: Any) -> list[ToolSpec]:
    """Tools in OpenAI's form."""
    found = [cast(Mapping[str, Any], tool).get("function") or tool for tool in tools or ()]
    return [
        ToolSpec(tool["name"], tool.get("description") or "", tool.get("parameters") or {"type": "object"})
        for tool in found
    ]


def read_sampling(arguments: Mapping[str, Any], base: Sampling) -> Sampling:
    """The sampling of a call. What the call does not say is as in `base`; fields that Ludus does not know are sent
    as they are."""
    fields: dict[str, Any] = {}
    more: Mapping[str, Any] = arguments.get("extra_body") or {}
    extra = {**base.extra, **more}
    for name, value in arguments.items():
        if name in NOT_SENT or name == "extra_body" or value is None:
            continue
        if name in _LIMITS:
            fields["max_tokens"] = int(value)
        elif name == "stop":
            fields["stop"] = (value,) if isinstance(value, str) else tuple(value)
        elif name == "tool_choice":
            if value in ("auto", "required", "none"):
                fields["tool_choice"] = value
            else:
                extra["tool_choice"] = value
        elif name in ("temperature", "top_p"):
            fields[name] = float(value)
        elif name == "seed":
            fields["seed"] = int(value)
        else:
            extra[name] = value
    return msgspec.structs.replace(base, **fields, extra=extra)


# ---- replies ------------------------------------------------------------------------------------------------------


def make_chat_reply(completions: Sequence[Completion], model: str) -> ReplyObject:
    """A reply of `chat.completions`."""
    choices = [
        ReplyObject(
            index=index,
            message=make_reply_message(completion.message),
            finish_reason=_name_finish(completion.finish),
            logprobs=None,
        )
        for index, completion in enumerate(completions)
    ]
    return _make_reply("chat.completion", choices, model, sum((each.usage for each in completions), Usage()))


def make_text_reply(texts: Sequence[tuple[str, Finish]], model: str, usage: Usage) -> ReplyObject:
    """A reply of `completions`."""
    choices = [
        ReplyObject(index=index, text=text, finish_reason=_name_finish(finish), logprobs=None)
        for index, (text, finish) in enumerate(texts)
    ]
    return _make_reply("text_completion", choices, model, usage)


def _make_reply(kind: str, choices: list[ReplyObject], model: str, usage: Usage) -> ReplyObject:
    counted = ReplyObject(
        prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens, total_tokens=usage.tokens
    )
    return ReplyObject(id=f"cmpl-{uuid4().hex}", object=kind, created=0, model=model, choices=choices, usage=counted)


def make_reply_message(message: Message) -> ReplyObject:
    """A message of a reply. Thinking that the server sent in the content is there again."""
    content, thought = message.content, None
    if message.reasoning is not None:
        if message.reasoning.source == "think":
            raw = message.reasoning.raw
            content = (raw if isinstance(raw, str) else f"<think>{message.reasoning.text}</think>") + content
        else:
            thought = message.reasoning.text
    calls = [
        ReplyObject(id=call.id, type="function", function=ReplyObject(name=call.name, arguments=call.arguments))
        for call in message.calls
    ]
    return ReplyObject(
        role="assistant", content=content, tool_calls=calls or None, reasoning_content=thought, refusal=None
    )


def _name_finish(finish: Finish) -> str:
    return "stop" if finish is Finish.OTHER else finish.value
