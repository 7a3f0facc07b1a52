"""OpenAI's completions API: a raw prompt in place of a conversation.

A model in token mode gets the prompt's ids unchanged. Chat models have no raw prompts: they get the prompt as a user
message.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, cast

import msgspec

from ludus.gateway.chat_api import SampledRequest, read_n, write_error, write_usage
from ludus.gateway.dialect import (
    Answer,
    BadRequest,
    Dialect,
    ErrorReply,
    FieldRules,
    ParsedRequest,
    ReadCache,
    StreamWriter,
    decode_known,
    write_event,
)
from ludus.models.openai import write_think
from ludus.models.reply_pieces import Piece
from ludus.types import Completion, Finish, JsonObject, Message

DEFAULT_MAX_TOKENS = 16
"""The API's own default."""


class _Request(SampledRequest, gc=False, kw_only=True, forbid_unknown_fields=True):
    prompt: Any
    echo: bool | None = None
    suffix: str | None = None
    logprobs: int | None = None
    best_of: int | None = None
    user: Any = None


class _LenientRequest(_Request, gc=False, forbid_unknown_fields=False):
    """The same with fields that the API does not have."""


RULES = FieldRules(
    refused={"suffix": "filling in the middle is not supported", "best_of": "send 'n' and choose among the replies"},
    ignored=("user",),
)
_REQUEST = msgspec.json.Decoder(_Request)
_LENIENT = msgspec.json.Decoder(_LenientRequest)


def read(body: bytes, _: ReadCache) -> ParsedRequest:
    """Parse a request.

    Raises:
        BadRequest: it is not a valid request.
    """
    wire, unknown = decode_known(_REQUEST, _LENIENT, body)
    ignored = RULES.apply(wire)
    prompt = _read_prompt(wire.prompt)
    limit = DEFAULT_MAX_TOKENS if wire.max_tokens is None else wire.max_tokens
    return ParsedRequest(
        [Message("user", prompt if isinstance(prompt, str) else "")],
        sampling=wire.read_sampling(limit),
        n=read_n(wire.n),
        stream=bool(wire.stream),
        usage=wire.wants_usage,
        prompt=prompt,
        echo={"prompt": prompt} if wire.echo and isinstance(prompt, str) else {},
        ignored=ignored + unknown,
        logprobs=wire.logprobs,
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


def _write_text(completion: Completion) -> str:
    """The text of a reply. In token mode it is the raw continuation of the prompt, with its think block."""
    message = completion.message
    if completion.tokens is None or message.reasoning is None or message.reasoning.source != "think":
        return message.content
    return write_think(message.reasoning) + message.content


def _write_logprobs(answer: Answer, index: int) -> JsonObject | None:
    """The logprobs in the columns of this API."""
    places = answer.logprobs[index] if index < len(answer.logprobs) else None
    if places is None:
        return None
    offsets = [0, *accumulate(len(place["token"]) for place in places)][: len(places)]
    return {
        "tokens": [place["token"] for place in places],
        "token_logprobs": [place["logprob"] for place in places],
        "top_logprobs": [{top["token"]: top["logprob"] for top in place.get("top_logprobs") or ()} for place in places],
        "text_offset": offsets,
    }


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
            "text": answer.request.echo.get("prompt", "") + _write_text(completion),
            "finish_reason": _FINISH.get(completion.finish, "stop"),
            "logprobs": _write_logprobs(answer, index),
        }
        for index, completion in enumerate(answer.completions)
    ]


def write(answer: Answer) -> bytes:
    return _encode(_write_reply(answer, _write_choices(answer)) | {"usage": write_usage(answer.completions)})


class CompletionStream(StreamWriter):
    """Writes chunks of text."""

    def start(self) -> bytes:
        prompt = self.answer.request.echo.get("prompt", "")
        return b"".join(self._write_text(index, prompt) for index in range(self.answer.request.n))

    def ping(self) -> bytes:
        return self._write_text(0, "")

    def fail(self, error: ErrorReply) -> bytes:
        return write_event(write_error(error)) + b"data: [DONE]\n\n"

    def _write_text(self, index: int, text: str) -> bytes:
        choice: JsonObject = {"index": index, "text": text, "finish_reason": None, "logprobs": None}
        return write_event(_encode(_write_reply(self.answer, [choice])))

    def _view(self, completion: Completion) -> Message:
        return Message("assistant", _write_text(completion))

    def _add(self, index: int, piece: Piece, out: list[bytes]) -> None:
        if piece.text:
            out.append(self._write_text(index, piece.text))

    def _end_reply(self, index: int, completion: Completion, out: list[bytes]) -> None:
        finish = _FINISH.get(completion.finish, "stop")
        logprobs = _write_logprobs(self.answer, index)
        choice: JsonObject = {"index": index, "text": "", "finish_reason": finish, "logprobs": logprobs}
        out.append(write_event(_encode(_write_reply(self.answer, [choice]))))

    def _end(self, out: list[bytes]) -> None:
        if self.answer.request.usage:
            usage = {"usage": write_usage(self.answer.completions)}
            out.append(write_event(_encode(_write_reply(self.answer, []) | usage)))
        out.append(b"data: [DONE]\n\n")


COMPLETIONS = Dialect("completions", read, write, CompletionStream, write_error)
