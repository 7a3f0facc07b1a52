"""OpenAI's completions API: a raw prompt in place of a conversation.

A model in token mode gets the prompt's ids unchanged. Chat models have no raw prompts: they get the prompt as a user
message.
"""

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from ludus.gateway.chat_api import read_limit, read_n, read_stop, write_error, write_late_error, write_usage
from ludus.gateway.dialect import Answer, BadRequest, Dialect, ParsedRequest, ReadCache, decode, drop_unset, write_event
from ludus.types import Completion, Finish, JsonObject, Message, Sampling

DEFAULT_MAX_TOKENS = 16
"""The API's own default."""


class _StreamOptions(Struct, gc=False):
    include_usage: bool | None = None


class _Request(Struct, gc=False):
    prompt: Any
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    top_k: int | None = None
    min_p: float | None = None


_REQUEST = msgspec.json.Decoder(_Request)


def read(body: bytes, _: ReadCache) -> ParsedRequest:
    """Parse a request.

    Raises:
        BadRequest: it is not a valid request.
    """
    wire = decode(_REQUEST, body)
    if wire.suffix:
        raise BadRequest("suffix: filling in the middle is not supported")
    prompt = _read_prompt(wire.prompt)
    limit = DEFAULT_MAX_TOKENS if wire.max_tokens is None else wire.max_tokens
    return ParsedRequest(
        [Message("user", prompt if isinstance(prompt, str) else "")],
        sampling=Sampling(
            temperature=wire.temperature,
            top_p=wire.top_p,
            max_tokens=read_limit(limit, "max_tokens"),
            stop=read_stop(wire.stop),
            seed=wire.seed,
            extra=drop_unset(
                frequency_penalty=wire.frequency_penalty,
                presence_penalty=wire.presence_penalty,
                top_k=wire.top_k,
                min_p=wire.min_p,
            ),
        ),
        n=read_n(wire.n),
        stream=bool(wire.stream),
        usage=wire.stream_options is not None and bool(wire.stream_options.include_usage),
        prompt=prompt,
        echo={"prompt": prompt} if wire.echo and isinstance(prompt, str) else {},
    )


def _read_prompt(value: Any) -> str | Sequence[int]:
    """One prompt: a text or token ids, alone or in a list of one."""
    many = cast(list[Any], value) if isinstance(value, list) else None
    if many and all(isinstance(item, int) and not isinstance(item, bool) for item in many):
        if min(many) < 0:
            raise BadRequest(f"prompt: {min(many)} is not a token id")
        return many
    if many is not None and len(many) == 1 and isinstance(many[0], str | list):
        return _read_prompt(many[0])
    if not isinstance(value, str):
        raise BadRequest("prompt: expected one text, or one list of token ids")
    return value


# ---- replies ------------------------------------------------------------------------------------------------------

_FINISH = {Finish.LENGTH: "length", Finish.FILTER: "content_filter"}
_encode = msgspec.json.Encoder().encode


def _write_text(answer: Answer, completion: Completion) -> str:
    thinking = completion.message.reasoning
    raw = thinking.raw if thinking and thinking.source == "think" and isinstance(thinking.raw, str) else ""
    return f"{answer.request.echo.get('prompt', '')}{raw}{completion.message.content}"


def _write_reply(answer: Answer, choices: list[JsonObject]) -> JsonObject:
    return {
        "id": f"cmpl-{answer.id}",
        "object": "text_completion",
        "created": answer.created,
        "model": answer.model,
        "choices": choices,
    }


def _write_choices(answer: Answer) -> list[JsonObject]:
    return [
        {
            "index": index,
            "text": _write_text(answer, completion),
            "finish_reason": _FINISH.get(completion.finish, "stop"),
            "logprobs": None,
        }
        for index, completion in enumerate(answer.completions)
    ]


def write(answer: Answer) -> bytes:
    return _encode(_write_reply(answer, _write_choices(answer)) | {"usage": write_usage(answer.completions)})


def stream(answer: Answer) -> bytes:
    events = [write_event(_encode(_write_reply(answer, [choice]))) for choice in _write_choices(answer)]
    if answer.request.usage:
        events.append(write_event(_encode(_write_reply(answer, []) | {"usage": write_usage(answer.completions)})))
    events.append(b"data: [DONE]\n\n")
    return b"".join(events)


COMPLETIONS = Dialect("completions", read, write, stream, write_error, write_late_error, b": waiting for the model\n\n")
