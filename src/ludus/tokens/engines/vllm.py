"""vLLM's `/v1/completions`, with a prompt of ids and `return_token_ids` (vLLM 0.10.2 and later).

The ids include the stop token. The text is requested with special tokens in it, so that it can be compared with the
ids. `logprobs` are those of the model itself, unless the server was started with another `--logprobs-mode`.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from ludus.models.reply_pieces import Piece
from ludus.models.server import BadReply, StreamedReply, find_message
from ludus.tokens import EngineFacts, Generation, Guide, TakeIds
from ludus.tokens.engines import (
    EngineClient,
    StreamingHttpEngine,
    convert_or_none,
    make_ids_error,
    make_logprobs_error,
    parse_finish,
    parse_logprob,
)
from ludus.types import JsonObject, Sampling


class VllmEngine(StreamingHttpEngine):
    path = "/v1/completions"
    stream_fields: ClassVar[JsonObject] = {"stream": True, "stream_options": {"include_usage": True}}

    def make_stream_reader(self, take: TakeIds) -> StreamedReply[Generation]:
        return VllmStreamReader(take)

    def build_request(self, ids: Sequence[int], sampling: Sampling, n: int, model: str) -> JsonObject:
        return {
            "model": model,
            "prompt": ids,
            "n": n,
            "logprobs": 1,
            "return_token_ids": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            **build_sampling(sampling),
        }

    def write_guide(self, guide: Guide) -> JsonObject:
        form = {"grammar": guide.grammar} if guide.schema is None else {"json": guide.schema}
        return {"structured_outputs": form}

    def parse_replies(self, data: bytes) -> list[Generation]:
        reply = _REPLY.decode(data)
        if not reply.choices:
            raise BadReply("it has no choices")
        prompt = reply.prompt_token_ids or next((c.prompt_token_ids for c in reply.choices if c.prompt_token_ids), None)
        return [_read_choice(choice, prompt, reply.usage) for choice in sorted(reply.choices, key=lambda c: c.index)]

    async def fetch_facts(self, client: EngineClient) -> EngineFacts:
        return EngineFacts(context=find_context(await client.get("/v1/models"), client.model))

    async def fetch_tokens(self, client: EngineClient, text: str) -> Sequence[int] | None:
        body = {"model": client.model, "prompt": text, "add_special_tokens": False}
        return read_tokens(await client.post("/tokenize", body))


def build_sampling(sampling: Sampling) -> JsonObject:
    """The sampling parameters. All that could cut the distribution are set, so that no default of the server does."""
    fields: JsonObject = {
        "max_tokens": sampling.max_tokens,
        "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    if sampling.stop:
        fields["stop"] = sampling.stop
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    return fields | dict(sampling.extra)


def find_context(models: Any, name: str) -> int | None:
    """The context length of a model in an answer of `/v1/models`. An adapter has that of another model in the list."""
    listed = convert_or_none(models, _Models)
    found = listed.data if listed else []
    own = [model for model in found if model.id == name]
    return next((model.max_model_len for model in (*own, *found) if model.max_model_len is not None), None)


def read_tokens(reply: Any) -> list[int] | None:
    """The ids in an answer of `/tokenize`."""
    answer = convert_or_none(reply, _Tokens)
    return answer.tokens if answer else None


class _Model(Struct, gc=False):
    id: str = ""
    max_model_len: int | None = None


class _Models(Struct, gc=False):
    data: list[_Model]


class _Tokens(Struct, gc=False):
    tokens: list[int]


class _Logprobs(Struct, gc=False):
    token_logprobs: list[Any] | None = None


class _Choice(Struct, gc=False):
    index: int = 0
    text: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: Any = None


class _Details(Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(Struct, gc=False):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Reply(Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None
    error: Any = None


_REPLY = msgspec.json.Decoder(_Reply)


class VllmStreamReader:
    """Reads one reply from the events of a stream: each has some text, its ids and their logprobs."""

    def __init__(self, take: TakeIds) -> None:
        self._take = take
        self._texts: list[str] = []
        self._ids: list[int] = []
        self._values: list[Any] = []
        self._lacks_ids = False
        self._finish: Any = None
        self._prompt: list[int] | None = None
        self._usage: _Usage | None = None

    @property
    def has_sampled(self) -> bool:
        return bool(self._ids)

    def take(self, event: bytes) -> list[Piece]:
        reply = _REPLY.decode(event)
        if reply.error:
            raise BadReply(find_message(event))
        self._usage = reply.usage or self._usage
        self._prompt = reply.prompt_token_ids or self._prompt
        return self._add(reply.choices[0]) if reply.choices else []

    def finish(self, *, cut: bool = False) -> Generation:
        if self._finish is None and not cut:
            raise BadReply("the stream ended before the reply did")
        ids = None if self._lacks_ids else self._ids
        whole = _Choice(0, "".join(self._texts), ids, None, _Logprobs(self._values), self._finish)
        return _read_choice(whole, self._prompt, self._usage)

    def _add(self, part: _Choice) -> list[Piece]:
        self._prompt = part.prompt_token_ids or self._prompt
        self._finish = part.finish_reason or self._finish
        self._texts.append(part.text or "")
        self._lacks_ids = self._lacks_ids or (part.token_ids is None and bool(part.text))
        self._ids += part.token_ids or ()
        self._values += (part.logprobs.token_logprobs or ()) if part.logprobs else ()
        return self._take(part.token_ids or ())


def _read_choice(choice: _Choice, prompt: list[int] | None, usage: _Usage | None) -> Generation:
    if choice.token_ids is None:
        raise make_ids_error("vLLM", "`return_token_ids` needs vLLM 0.10.2 or later; or use the engine 'atropos'.")
    if choice.token_ids and (choice.logprobs is None or not choice.logprobs.token_logprobs):
        raise make_logprobs_error("vLLM", "Was it started with --max-logprobs 0?")
    values = choice.logprobs.token_logprobs or [] if choice.logprobs else []
    details = usage.prompt_tokens_details if usage else None
    if len(values) != len(choice.token_ids):
        raise BadReply(f"{len(values)} logprobs for {len(choice.token_ids)} ids")
    return Generation(
        ids=tuple(choice.token_ids),
        logprobs=tuple(map(parse_logprob, values)),
        finish=parse_finish(choice.finish_reason),
        text=choice.text,
        prompt=tuple(prompt) if prompt is not None else None,
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
    )
