"""SGLang's `/generate` with `input_ids`.

Ids and logprobs come together, in `meta_info.output_token_logprobs`: triples of logprob, id and text. They include the
token that ended the turn, where `output_ids` of some versions do not.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ludus.models.server import BadReply
from ludus.tokens import EngineFacts, Generated
from ludus.tokens.engines import Asker, HttpEngine, finish_reason, logprobs, no_logprobs, told
from ludus.tokens.engines.vllm import sampling_fields, tokens_of
from ludus.types import JsonObject, Sampling


class SglangEngine(HttpEngine):
    path = "/generate"

    def request(self, ids: Sequence[int], sampling: Sampling, n: int, model: str) -> JsonObject:
        fields = sampling_fields(sampling)
        fields["max_new_tokens"] = fields.pop("max_tokens")
        if "seed" in fields:
            fields["sampling_seed"] = fields.pop("seed")
        return {
            "input_ids": ids,
            "sampling_params": {**fields, "n": n, "skip_special_tokens": False, "spaces_between_special_tokens": False},
            "return_logprob": True,
            "return_text_in_logprobs": False,
        }

    def replies(self, data: bytes) -> list[Generated]:
        try:
            found = _MANY.decode(data) if data.lstrip()[:1] == b"[" else [_ONE.decode(data)]
        except msgspec.ValidationError as error:
            raise BadReply(str(error)) from None
        return [_generated(reply) for reply in found]

    async def ask_facts(self, ask: Asker) -> EngineFacts:
        known = told(await ask.get("/get_server_info"), _Info) or _Info()
        return EngineFacts(context=known.context_length or known.max_total_num_tokens)

    async def ask_tokens(self, ask: Asker, text: str) -> Sequence[int] | None:
        body: JsonObject = {"model": ask.model, "prompt": text, "add_special_tokens": False}
        if (tokens := tokens_of(await ask.post("/tokenize", body))) is not None:
            return tokens
        body = {
            "text": text,
            "sampling_params": {"max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        reply = told(await ask.post("/generate", body), _Reply)
        triples = reply.meta_info.input_token_logprobs if reply else None
        return _ids(triples) if triples else None


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


def _ids(triples: list[Any]) -> list[int] | None:
    """The ids in triples of logprob, id and text; None if they are none."""
    if not all(isinstance(triple, list) and len(triple) >= 2 and type(triple[1]) is int for triple in triples):  # pyright: ignore[reportUnknownArgumentType]
        return None
    return [triple[1] for triple in triples]


def _generated(reply: _Reply) -> Generated:
    meta = reply.meta_info
    if meta.output_token_logprobs is None:
        raise no_logprobs("SGLang", "Its reply has no `output_token_logprobs`, although it was asked for.")
    triples = meta.output_token_logprobs
    ids = _ids(triples)
    if ids is None:
        raise BadReply("`output_token_logprobs` are not triples of logprob, id and text")
    return Generated(
        ids=tuple(ids),
        logprobs=logprobs([triple[0] for triple in triples]),
        finish=finish_reason(meta.finish_reason),
        text=reply.text,
        prompt_tokens=meta.prompt_tokens,
        cached_tokens=meta.cached_tokens or 0,
    )
