"""SGLang's `/generate` with `input_ids`.

Ids and logprobs come together, in `meta_info.output_token_logprobs`: triples of logprob, id and text. They include the
stop token, which `output_ids` of some versions lack.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ludus.encoding import to_json
from ludus.models.server import BadReply
from ludus.tokens import EngineFacts, Generation, Guide
from ludus.tokens.engines import (
    EngineClient,
    HttpEngine,
    convert_or_none,
    make_logprobs_error,
    parse_finish,
    parse_logprobs,
)
from ludus.tokens.engines.vllm import build_sampling, read_tokens
from ludus.types import JsonObject, Sampling


class SglangEngine(HttpEngine):
    path = "/generate"

    def build_request(self, ids: Sequence[int], sampling: Sampling, n: int, model: str) -> JsonObject:
        fields = build_sampling(sampling)
        fields["max_new_tokens"] = fields.pop("max_tokens")
        if "seed" in fields:
            fields["sampling_seed"] = fields.pop("seed")
        return {
            "input_ids": ids,
            "sampling_params": {**fields, "n": n, "skip_special_tokens": False, "spaces_between_special_tokens": False},
            "return_logprob": True,
            "return_text_in_logprobs": False,
        }

    def write_guide(self, guide: Guide) -> JsonObject:
        return {"ebnf": guide.grammar} if guide.schema is None else {"json_schema": to_json(guide.schema).decode()}

    def parse_replies(self, data: bytes) -> list[Generation]:
        try:
            found = _MANY.decode(data) if data.lstrip()[:1] == b"[" else [_ONE.decode(data)]
        except msgspec.ValidationError as error:
            raise BadReply(str(error)) from None
        return [_read_reply(reply) for reply in found]

    async def fetch_facts(self, client: EngineClient) -> EngineFacts:
        known = convert_or_none(await client.get("/get_server_info"), _Info) or _Info()
        return EngineFacts(context=known.context_length or known.max_total_num_tokens)

    async def fetch_tokens(self, client: EngineClient, text: str) -> Sequence[int] | None:
        body: JsonObject = {"model": client.model, "prompt": text, "add_special_tokens": False}
        if (tokens := read_tokens(await client.post("/tokenize", body))) is not None:
            return tokens
        body = {
            "text": text,
            "sampling_params": {"max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        reply = convert_or_none(await client.post("/generate", body), _Reply)
        triples = reply.meta_info.input_token_logprobs if reply else None
        return _read_ids(triples) if triples else None


class _Info(Struct, gc=False):
    context_length: int | None = None
    max_total_num_tokens: int | None = None


class _Meta(Struct, gc=False):
    output_token_logprobs: list[Any] | None = None
    input_token_logprobs: list[Any] | None = None
    finish_reason: Any = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


class _Reply(Struct, gc=False):
    meta_info: _Meta
    text: str | None = None


_ONE = msgspec.json.Decoder(_Reply)
_MANY = msgspec.json.Decoder(list[_Reply])


def _read_ids(triples: list[Any]) -> list[int] | None:
    """The ids in triples of logprob, id and text; None if the triples are malformed."""
    if not all(isinstance(triple, list) and len(triple) >= 2 and type(triple[1]) is int for triple in triples):  # pyright: ignore[reportUnknownArgumentType]
        return None
    return [triple[1] for triple in triples]


def _read_reply(reply: _Reply) -> Generation:
    meta = reply.meta_info
    if meta.output_token_logprobs is None:
        raise make_logprobs_error(
            "SGLang", "Its reply has no `output_token_logprobs`, although the request had `return_logprob`."
        )
    triples = meta.output_token_logprobs
    ids = _read_ids(triples)
    if ids is None:
        raise BadReply("`output_token_logprobs` are not triples of logprob, id and text")
    return Generation(
        ids=tuple(ids),
        logprobs=parse_logprobs([triple[0] for triple in triples]),
        finish=parse_finish(meta.finish_reason),
        text=reply.text,
        prompt_tokens=meta.prompt_tokens,
        cached_tokens=meta.cached_tokens or 0,
    )
