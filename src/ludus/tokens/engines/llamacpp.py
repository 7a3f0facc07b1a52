"""llama.cpp's server: `/completion` with a prompt of ids. The embedded model is the same server in this process.

Ids come as `tokens` (`return_tokens`), logprobs as `completion_probabilities` (`n_probs`), each with its id. When a
stop string ended the reply, the server removes as many probabilities as the string has tokens, but no ids. Ids without
a logprob are then dropped: the rest is exactly the beginning of what was sampled. A probability of zero comes as the
lowest float, and is read as "none".

The server reports no probability for an id that ends inside a character, such as the first ids of most emoji. The
logprob of such an id is asked for afterwards: a request with the ids before it lists the likely next ids with their
logprobs. A stream leaves such ids out altogether. A streamed reply with a gap is therefore sampled again with the same
seed and without a stream; it is recorded if it has the text that was streamed.

The server samples one reply per request. Several replies are requested in parallel.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from ludus.errors import ModelError
from ludus.models.reply_pieces import Piece, PieceStream
from ludus.models.server import BadReply, ServerFault, StreamedReply, find_message
from ludus.tokens import EngineFacts, Generation, Guide, TakeIds
from ludus.tokens.engines import (
    EngineClient,
    StreamingHttpEngine,
    convert_or_none,
    make_ids_error,
    make_logprobs_error,
    parse_finish,
    parse_logprob,
    parse_logprobs,
)
from ludus.tokens.engines.vllm import read_tokens
from ludus.types import JsonObject, Sampling

LISTED = (1_000, 1_000_000)
"""How many likely ids are asked for, to find the logprob of one. The first number is nearly always enough, and the last
one is the whole vocabulary."""
_LETTER = "a"


class LlamaCppEngine(StreamingHttpEngine):
    path = "/completion"
    stream_fields: ClassVar[JsonObject] = {"stream": True}

    def make_stream_reader(self, take: TakeIds) -> StreamedReply[Generation]:
        return LlamaCppStreamReader(take)

    async def stream(
        self, ids: Sequence[int], sampling: Sampling, reply_stream: PieceStream, begin: Callable[[], TakeIds]
    ) -> Generation:
        """Sample one reply and pass it on while it is sampled."""
        if sampling.seed is None:
            sampling = msgspec.structs.replace(sampling, seed=random.randrange(2**31))
        try:
            return await super().stream(ids, sampling, reply_stream, begin)
        except IdsMissing as gap:
            (again,) = await self.generate(ids, sampling)
            if (again.text or "").rstrip("\ufffd") != gap.text.rstrip("\ufffd"):
                raise
            return again

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

    def write_guide(self, guide: Guide) -> JsonObject:
        return write_guide(guide)

    async def generate(self, ids: Sequence[int], sampling: Sampling, n: int = 1) -> list[Generation]:
        if n == 1:
            (sampled,) = await super().generate(ids, sampling)
            return [await self._add_missing_logprobs(ids, sampled)]
        try:
            async with asyncio.TaskGroup() as group:
                samples = (self.generate(ids, _vary_seed(sampling, i)) for i in range(n))
                tasks = [group.create_task(sample) for sample in samples]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None  # callers expect one error
        return [task.result()[0] for task in tasks]

    async def _add_missing_logprobs(self, ids: Sequence[int], sampled: Generation) -> Generation:
        if None not in sampled.logprobs:
            return sampled
        logprobs = list(sampled.logprobs)
        for place, known in enumerate(logprobs):
            if known is None:
                logprobs[place] = await self._fetch_logprob((*ids, *sampled.ids[:place]), sampled.ids[place])
        return msgspec.structs.replace(sampled, logprobs=tuple(logprobs))

    async def _fetch_logprob(self, ids: Sequence[int], wanted: int) -> float | None:
        """The logprob of one id after others; None if the server does not tell it."""
        for listed in LISTED:
            # A list comes only with an id that ends a character, so one is forced. That changes no logprob in the list.
            sampling = Sampling(temperature=0.0, max_tokens=1)
            data = self._write_request(ids, sampling, n_probs=listed, logit_bias=[[_LETTER, 1e6]])
            try:
                found = await self._servers.run_with_retries(
                    lambda lane, data=data: lane.server.exchange(data, read_list)
                )
            except ModelError:
                return None  # the reply itself is whole: it must not be lost, and is no data for RL
            if wanted in found:
                return found[wanted]
        return None

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


def write_guide(guide: Guide) -> JsonObject:
    """The form of a reply as request fields."""
    return {"grammar": guide.grammar} if guide.schema is None else {"json_schema": guide.schema}


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


class _ListedPlace(Struct, gc=False):
    top_logprobs: list[_Probability] = msgspec.field(default_factory=list[_Probability])


class _ListedReply(Struct, gc=False):
    completion_probabilities: list[_ListedPlace] = msgspec.field(default_factory=list[_ListedPlace])


_REPLY = msgspec.json.Decoder(_Reply)
_LISTED_REPLY = msgspec.json.Decoder(_ListedReply)


def read_list(data: bytes) -> dict[int, float | None]:
    """The logprobs of the ids that could have come first in a reply."""
    places = _LISTED_REPLY.decode(data).completion_probabilities
    return {each.id: parse_logprob(each.logprob) for place in places[:1] for each in place.top_logprobs}


def _read_reply(reply: _Reply, tokens: list[int], places: list[_Probability]) -> Generation:
    values: list[Any] | None = [place.logprob for place in places]
    if reply.stop_type != "word" and len(places) < len(tokens):
        values = align_logprobs(tokens, places)
        ends_inside = reply.stop_type in ("limit", None)  # only then may the reply end inside a character
        if values is None or (values[-1] is None and not ends_inside):
            raise BadReply(f"{len(places)} probabilities for {len(tokens)} ids")
        return _make_generation(reply, tokens, values, whole=True)
    if len(places) > len(tokens):
        raise BadReply(f"{len(places)} probabilities for {len(tokens)} ids")
    if any(place.id != number for place, number in zip(places, tokens, strict=False)):
        raise BadReply("ids and probabilities are of different tokens")
    return _make_generation(reply, tokens[: len(places)], values, whole=len(places) == len(tokens))


def align_logprobs(tokens: Sequence[int], places: Sequence[_Probability]) -> list[Any] | None:
    """The logprob of each id, None for ids without one and where it is not certain which id a probability belongs to.
    None if the probabilities do not belong to these ids."""
    first = _match_places(tokens, places)
    last = _match_places(tokens[::-1], places[::-1])
    if first is None or last is None:
        return None
    mirrored = [None if place is None else len(places) - 1 - place for place in last[::-1]]
    return [
        places[one].logprob if one is not None and one == other else None
        for one, other in zip(first, mirrored, strict=True)
    ]


def _match_places(tokens: Sequence[int], places: Sequence[_Probability]) -> list[int | None] | None:
    """For each id, the number of its probability: the first possible one. None if some are left over."""
    found: list[int | None] = []
    at = 0
    for number in tokens:
        is_next = at < len(places) and places[at].id == number
        found.append(at if is_next else None)
        at += is_next
    return found if at == len(places) else None


def _make_generation(reply: _Reply, ids: Sequence[int], logprobs: list[Any], *, whole: bool) -> Generation:
    return Generation(
        ids=tuple(ids),
        logprobs=parse_logprobs(logprobs),
        finish=parse_finish(reply.stop_type),
        text=reply.content if whole else None,
        prompt_tokens=reply.tokens_evaluated,
    )


class IdsMissing(ServerFault):
    """A streamed reply without some of its ids."""

    def __init__(self, text: str) -> None:
        super().__init__(
            "llama.cpp left out ids that end inside a character, and the same reply could not be sampled again. "
            "Requests without `stream` do not have this problem.",
            retryable=False,
        )
        self.text = text


class LlamaCppStreamReader:
    """Reads one reply from the events of a stream: each has some text and one id with its probability."""

    def __init__(self, take: TakeIds) -> None:
        self._take = take
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._places: list[_Probability] = []
        self._last: _Reply | None = None
        self._whole: int | None = None
        """The number of ids before the first gap; None: there is no gap."""

    @property
    def has_sampled(self) -> bool:
        return bool(self._places)

    def take(self, event: bytes) -> list[Piece]:
        reply = _REPLY.decode(event)
        if reply.error:
            raise BadReply(find_message(event))
        self._texts.append(reply.content or "")
        if self._whole is None and (reply.tokens_predicted or 0) > len(self._tokens) + len(reply.tokens or ()):
            self._whole = len(self._tokens)
        if reply.stop:
            self._last = reply
            return []
        if reply.tokens is None:
            raise make_ids_error("llama.cpp", "`return_tokens` needs a server of 2025 or later.")
        self._tokens += reply.tokens
        self._places += reply.completion_probabilities or ()
        return self._take(reply.tokens) if self._whole is None else []  # text with a gap would be another text

    def finish(self, *, cut: bool = False) -> Generation:
        if self._last is None and not cut:
            raise BadReply("the stream ended before the reply did")
        last = self._last or _Reply()
        last.content = "".join(self._texts)
        if self._whole is not None and not cut:
            raise IdsMissing(last.content)
        if self._whole is not None:
            last.content = None
        return _read_reply(last, self._tokens[: self._whole], self._places[: self._whole])
