"""Between the dicts and reply objects of OpenAI's client, which files use, and the nouns of Ludus."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import msgspec

from ludus.chat_form import FINISH_NAMES, write_calls
from ludus.errors import ConfigError
from ludus.types import Completion, Finish, JsonObject, Message, Sampling, Usage

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


def read_sampling(arguments: Mapping[str, Any], base: Sampling, stop_ids: str = "") -> Sampling:
    """The sampling of a call. What the call does not say is as in `base`; fields that Ludus does not know are sent
    as they are. `stop_ids`: the field of the request for ids that end a reply; empty: the server has none.

    Raises:
        ConfigError: the call has such ids, and the server knows only texts.
    """
    fields: dict[str, Any] = {}
    more: Mapping[str, Any] = arguments.get("extra_body") or {}
    extra = {**base.extra, **more}
    for name, value in arguments.items():
        if name in NOT_SENT or name == "extra_body" or value is None:
            continue
        if name in _LIMITS:
            fields["max_tokens"] = int(value)
        elif name == "stop":
            texts, ids = _split_stop(value)
            fields["stop"] = texts
            if ids:
                extra |= _write_stop_ids(texts, ids, stop_ids)
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


def _split_stop(value: Any) -> tuple[tuple[str, ...], list[int]]:
    listed: list[Any] = [value] if isinstance(value, str | int) else list(value)
    return tuple(each for each in listed if isinstance(each, str)), [
        int(each) for each in listed if isinstance(each, int)
    ]


def _write_stop_ids(texts: Sequence[str], ids: Sequence[int], field: str) -> JsonObject:
    if not field:
        raise ConfigError(
            f"stop: {list(ids)} are token ids, and the server takes texts: use --openai.server_type vllm or sglang, or "
            "give the text of the tokens"
        )
    return {field: [*ids, *texts] if field == "stop" else [*ids]}


# ---- replies ------------------------------------------------------------------------------------------------------


def make_chat_reply(completions: Sequence[Completion], model: str) -> ReplyObject:
    """A reply of `chat.completions`."""
    choices = [
        ReplyObject(
            index=index,
            message=make_reply_message(completion.message),
            finish_reason=FINISH_NAMES[completion.finish],
            logprobs=None,
        )
        for index, completion in enumerate(completions)
    ]
    return _make_reply("chat.completion", choices, model, sum((each.usage for each in completions), Usage()))


def make_text_reply(texts: Sequence[tuple[str, Finish]], model: str, usage: Usage) -> ReplyObject:
    """A reply of `completions`."""
    choices = [
        ReplyObject(index=index, text=text, finish_reason=FINISH_NAMES[finish], logprobs=None)
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
    calls = [_make_object(call) for call in write_calls(message.calls)]
    return ReplyObject(
        role="assistant", content=content, tool_calls=calls or None, reasoning_content=thought, refusal=None
    )


def _make_object(fields: JsonObject) -> ReplyObject:
    inner = {name: _make_object(cast(JsonObject, value)) for name, value in fields.items() if isinstance(value, dict)}
    return ReplyObject(**{**fields, **inner})
