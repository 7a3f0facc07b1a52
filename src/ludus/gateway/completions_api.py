"""OpenAI's completions: a raw prompt, without a conversation.

A model in token mode is sent the prompt's ids as they are. A chat model has no raw prompts: it is sent the prompt as
the user's words.
"""

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from ludus.gateway.chat_api import error, late_error, read_limit, read_n, read_stop, usage
from ludus.gateway.dialect import Answer, Asked, BadRequest, Dialect, Known, decode, event, given
from ludus.types import Completion, Finish, JsonObject, Message, Sampling

DEFAULT_MAX_TOKENS = 16
"""What the API has always meant by not saying."""


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


def read(body: bytes, _: Known) -> Asked:
    """Read a request.

    Raises:
        BadRequest: it is none.
    """
    asked = decode(_REQUEST, body)
    if asked.suffix:
        raise BadRequest("suffix: filling in the middle is not supported")
    prompt = _prompt(asked.prompt)
    limit = DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
    return Asked(
        [Message("user", prompt if isinstance(prompt, str) else "")],
        sampling=Sampling(
            temperature=asked.temperature,
            top_p=asked.top_p,
            max_tokens=read_limit(limit, "max_tokens"),
            stop=read_stop(asked.stop),
            seed=asked.seed,
            extra=given(
                frequency_penalty=asked.frequency_penalty,
                presence_penalty=asked.presence_penalty,
                top_k=asked.top_k,
                min_p=asked.min_p,
            ),
        ),
        n=read_n(asked.n),
        stream=bool(asked.stream),
        usage=asked.stream_options is not None and bool(asked.stream_options.include_usage),
        prompt=prompt,
        echo={"prompt": prompt} if asked.echo and isinstance(prompt, str) else {},
    )


def _prompt(value: Any) -> str | Sequence[int]:
    """One prompt: a text or ids, alone or as a list of one."""
    many = cast(list[Any], value) if isinstance(value, list) else None
    if many and all(isinstance(item, int) and not isinstance(item, bool) for item in many):
        if min(many) < 0:
            raise BadRequest(f"prompt: {min(many)} is no token id")
        return many
    if many is not None and len(many) == 1 and isinstance(many[0], str | list):
        return _prompt(many[0])
    if not isinstance(value, str):
        raise BadRequest("prompt: expected one text, or one list of token ids")
    return value


# ---- replies ------------------------------------------------------------------------------------------------------

_FINISH = {Finish.LENGTH: "length", Finish.FILTER: "content_filter"}
_encode = msgspec.json.Encoder().encode


def _text(answer: Answer, completion: Completion) -> str:
    thought = completion.message.reasoning
    raw = thought.raw if thought is not None and thought.source == "think" and isinstance(thought.raw, str) else ""
    return f"{answer.asked.echo.get('prompt', '')}{raw}{completion.message.content}"


def _reply(answer: Answer, choices: list[JsonObject]) -> JsonObject:
    return {
        "id": f"cmpl-{answer.id}",
        "object": "text_completion",
        "created": answer.created,
        "model": answer.model,
        "choices": choices,
    }


def _choices(answer: Answer) -> list[JsonObject]:
    return [
        {
            "index": index,
            "text": _text(answer, completion),
            "finish_reason": _FINISH.get(completion.finish, "stop"),
            "logprobs": None,
        }
        for index, completion in enumerate(answer.completions)
    ]


def write(answer: Answer) -> bytes:
    return _encode(_reply(answer, _choices(answer)) | {"usage": usage(answer.completions)})


def stream(answer: Answer) -> bytes:
    events = [event(_encode(_reply(answer, [choice]))) for choice in _choices(answer)]
    if answer.asked.usage:
        events.append(event(_encode(_reply(answer, []) | {"usage": usage(answer.completions)})))
    events.append(b"data: [DONE]\n\n")
    return b"".join(events)


COMPLETIONS = Dialect("completions", read, write, stream, error, late_error, b": waiting for the model\n\n")
