"""The `/generate` contract of Atropos: a small server around vLLM that its trainer brings, and that others copy.

The request holds vLLM's sampling parameters by name and nothing else, or the server fails. Ids are read from
`token_ids`, and each logprob under its own id, because the order in the dictionaries is not reliable. A server without
`token_ids` has the ids in its logprobs: where each place has one, it is the sampled one. The server drops a doubled
begin-of-text token. Its echo of the prompt shows that, and a session refuses the reply.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ludus.models.server import BadReply
from ludus.tokens import EngineFacts, Generation
from ludus.tokens.engines import (
    EngineClient,
    HttpEngine,
    convert_or_none,
    make_ids_error,
    make_logprobs_error,
    parse_finish,
    parse_logprob,
)
from ludus.tokens.engines.vllm import build_sampling, find_context
from ludus.types import JsonObject, Sampling


class AtroposEngine(HttpEngine):
    path = "/generate"

    def build_request(self, ids: Sequence[int], sampling: Sampling, n: int, model: str) -> JsonObject:
        return {
            "prompt": {"prompt_token_ids": ids},
            "logprobs": 0,
            "n": n,
            "skip_special_tokens": False,
            **build_sampling(sampling),
        }

    def parse_replies(self, data: bytes) -> list[Generation]:
        reply = _REPLY.decode(data)
        if reply.text is None and reply.token_ids is None:
            raise BadReply("it has neither text nor token_ids")
        if reply.token_ids is None:
            reply.token_ids = [_find_ids(places) for places in reply.logprobs or ()]
        if not reply.logprobs or len(reply.logprobs) != len(reply.token_ids):
            raise make_logprobs_error(
                "the /generate server", "The request had `logprobs: 0`, which means those of the sampled tokens."
            )
        return [_read_reply(reply, index) for index in range(len(reply.token_ids))]

    async def fetch_facts(self, client: EngineClient) -> EngineFacts:
        return EngineFacts(context=find_context(await client.get("/v1/models"), client.model))

    async def fetch_tokens(self, client: EngineClient, text: str) -> Sequence[int] | None:
        reply = convert_or_none(
            await client.post("/generate", {"prompt": text, "logprobs": 0, "max_tokens": 1, "n": 1}), _Echo
        )
        return reply.prompt_token_ids if reply else None


class _Echo(Struct, gc=False):
    prompt_token_ids: list[int]


class _Reply(Struct, gc=False):
    text: list[str] | None = None
    token_ids: list[list[int]] | None = None
    logprobs: list[list[Any]] | None = None
    finish_reasons: list[Any] | None = None
    prompt_token_ids: list[int] | None = None


_REPLY = msgspec.json.Decoder(_Reply)


def _read_reply(reply: _Reply, index: int) -> Generation:
    ids = (reply.token_ids or [])[index]
    places = (reply.logprobs or [])[index]
    if len(places) != len(ids):
        raise BadReply(f"{len(places)} logprobs for {len(ids)} ids")
    return Generation(
        ids=tuple(ids),
        logprobs=tuple(_find_logprob(number, place) for number, place in zip(ids, places, strict=True)),
        finish=parse_finish(reply.finish_reasons[index] if reply.finish_reasons else None),
        text=reply.text[index] if reply.text else None,
        prompt=tuple(reply.prompt_token_ids) if reply.prompt_token_ids is not None else None,
    )


def _find_ids(places: Sequence[Any]) -> list[int]:
    """The ids of a reply, which are the names of its logprobs."""
    found = [[key for entry in _list_entries(place) for key in entry] for place in places]
    if any(len(keys) != 1 for keys in found):
        raise make_ids_error(
            "the /generate server",
            "Its reply has no `token_ids`, and several logprobs for one place; update it, or use the engine 'vllm'.",
        )
    return [int(keys[0]) for keys in found]


def _find_logprob(number: int, place: Any) -> float | None:
    found = (entry[str(number)] for entry in _list_entries(place) if str(number) in entry)
    return next(map(parse_logprob, found), None)


def _list_entries(place: Any) -> list[Mapping[str, Any]]:
    """The logprobs of a place: a dictionary by id, or a list of such dictionaries."""
    found: list[Any] = place if isinstance(place, list) else [place]  # pyright: ignore[reportUnknownVariableType]
    return [entry for entry in found if isinstance(entry, Mapping)]
