"""llama.cpp's server: `/completion` with a prompt of ids. The embedded model is the same server in this process.

Ids come as `tokens` (`return_tokens`), logprobs as `completion_probabilities` (`n_probs`), each with its id. When a
stop string ended the reply, the server removes as many probabilities as the string has tokens, but no ids. Ids without
a logprob are then dropped: the rest is exactly the beginning of what was sampled. A probability of zero comes as the
lowest float, and is read as "none".

The server draws one reply per request. Several replies are requested in parallel.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from ludus.models.reply_pieces import Piece
from ludus.models.server import BadReply, StreamedReply, find_message
from ludus.tokens import EngineFacts, Generation, TakeIds
from ludus.tokens.engines import (
    EngineClient,
    StreamingHttpEngine,
    convert_or_none,
    make_ids_error,
    make_logprobs_error,
    parse_finish,
    parse_logprobs,
)
from ludus.tokens.engines.vllm import read_tokens
from ludus.types import JsonObject, Sampling


class LlamaCppEngine(StreamingHttpEngine):
    path = "/completion"
    stream_fields: ClassVar[JsonObject] = {"stream": True}

    def make_stream_reader(self, take: TakeIds) -> StreamedReply[Generation]:
        return LlamaCppStreamReader(take)

    def build_request(self, ids: Sequence[int], sampling: Sampling, n: int, model: str) -> JsonObject:
        body: JsonObject = {
            "prompt": ids,
            "n_predict": sampling.max_tokens,
            "n_probs": 1,
            "return_tokens": True,
            "post_sampling_probs": False,
            "cache_prompt": True,
            "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
            "top_k": 0,
            "min_p": 0.0,
            "repeat_penalty": 1.0,
        }
        if sampling.stop:
            body["stop"] = sampling.stop
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        return body | dict(sampling.extra)

    async def generate(self, ids: Sequence[int], sampling: Sampling, n: int = 1) -> list[Generation]:
        if n == 1:
            return await super().generate(ids, sampling)
        try:
            async with asyncio.TaskGroup() as group:
                draws = (self.generate(ids, _vary_seed(sampling, i)) for i in range(n))
                tasks = [group.create_task(draw) for draw in draws]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None  # callers expect one error
        return [task.result()[0] for task in tasks]

    def parse_replies(self, data: bytes) -> list[Generation]:
        reply = _REPLY.decode(data)
        if reply.content is None:
            raise BadReply("it has no content")
        if reply.tokens is None:
            raise make_ids_error("llama.cpp", "`return_tokens` needs a server of 2025 or later.")
        if reply.tokens and reply.completion_probabilities is None:
            raise make_logprobs_error(
                "llama.cpp", "Its reply has no `completion_probabilities`, although the request had `n_probs`."
            )
        return [_read_reply(reply, reply.tokens, reply.completion_probabilities or [])]

    async def fetch_facts(self, client: EngineClient) -> EngineFacts:
        props, models = (
            convert_or_none(await client.get("/props"), _Props),
            convert_or_none(await client.get("/v1/models"), _Models),
        )
        return EngineFacts(
            vocabulary=models.data[0].meta.n_vocab if models and models.data else None,
            context=props.default_generation_settings.n_ctx if props else None,
        )

    async def fetch_tokens(self, client: EngineClient, text: str) -> Sequence[int] | None:
        return read_tokens(
            await client.post("/tokenize", {"content": text, "add_special": False, "parse_special": True})
        )


def _vary_seed(sampling: Sampling, index: int) -> Sampling:
    """A seed for each reply: the same seed would give the same reply."""
    if sampling.seed is None or not index:
        return sampling
    return msgspec.structs.replace(sampling, seed=(sampling.seed + index * 7_919) % 2**31)


class _Probability(Struct, gc=False):
    id: int
    logprob: Any = None


class _Reply(Struct, gc=False):
    content: str | None = None
    tokens: list[int] | None = None
    completion_probabilities: list[_Probability] | None = None
    stop_type: Any = None
    tokens_evaluated: int | None = None
    tokens_predicted: int | None = None
    truncated: bool = False
    stop: bool = False
    error: Any = None


class _Settings(Struct, gc=False):
    n_ctx: int | None = None


class _Props(Struct, gc=False):
    default_generation_settings: _Settings = msgspec.field(default_factory=_Settings)


class _Meta(Struct, gc=False):
    n_vocab: int | None = None


class _Model(Struct, gc=False):
    meta: _Meta = msgspec.field(default_factory=_Meta)


class _Models(Struct, gc=False):
    data: list[_Model] = msgspec.field(default_factory=list[_Model])


_REPLY = msgspec.json.Decoder(_Reply)


def _read_reply(reply: _Reply, tokens: list[int], places: list[_Probability]) -> Generation:
    if len(places) > len(tokens) or (len(places) < len(tokens) and reply.stop_type != "word"):
        raise BadReply(f"{len(places)} probabilities for {len(tokens)} ids")
    if any(place.id != number for place, number in zip(places, tokens, strict=False)):
        raise BadReply("ids and probabilities are of different tokens")
    return Generation(
        ids=tuple(tokens[: len(places)]),
        logprobs=parse_logprobs([place.logprob for place in places]),
        finish=parse_finish(reply.stop_type),
        text=reply.content if len(places) == len(tokens) else None,
        prompt_tokens=reply.tokens_evaluated,
    )


class LlamaCppStreamReader:
    """Reads one reply from the events of a stream: each has some text and one id with its probability."""

    def __init__(self, take: TakeIds) -> None:
        self._take = take
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._places: list[_Probability] = []
        self._last: _Reply | None = None

    @property
    def has_drawn(self) -> bool:
        return bool(self._places)

    def take(self, event: bytes) -> list[Piece]:
        reply = _REPLY.decode(event)
        if reply.error:
            raise BadReply(find_message(event))
        self._texts.append(reply.content or "")
        if reply.stop:
            self._last = reply
            return []
        if reply.tokens is None:
            raise make_ids_error("llama.cpp", "`return_tokens` needs a server of 2025 or later.")
        self._tokens += reply.tokens
        self._places += reply.completion_probabilities or ()
        return self._take(reply.tokens)

    def finish(self, *, cut: bool = False) -> Generation:
        if self._last is None and not cut:
            raise BadReply("the stream ended before the reply did")
        last = self._last or _Reply()
        last.content = "".join(self._texts)
        return _read_reply(last, self._tokens, self._places)
