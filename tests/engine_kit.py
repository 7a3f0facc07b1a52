"""Engines against a stand-in that speaks their wire formats."""

from contextlib import asynccontextmanager

import pytest

from ludus.errors import ModelError
from ludus.models.server import Retry, ServerSettings
from ludus.tokens.engine_standin import StandIn
from ludus.tokens.engines.atropos_generate import AtroposEngine
from ludus.tokens.engines.llamacpp import LlamaCppEngine
from ludus.tokens.engines.sglang import SglangEngine
from ludus.tokens.engines.vllm import VllmEngine
from ludus.tokens.toy_engine import ToyEngine
from ludus.types import Sampling

ENGINES = {"vllm": VllmEngine, "atropos": AtroposEngine, "sglang": SglangEngine, "llamacpp": LlamaCppEngine}


QUICK = Retry(retries=1, first=0.001, longest=0.001)


@asynccontextmanager
async def open_engine(
    tokens, name, *, replies=("Grüße, 世界 \U0001f600!",), mangle=None, path="", settings=None, **options
):
    """An engine and its stand-in."""
    toy = ToyEngine(tokens.tokenizer, list(replies) * 5)
    async with StandIn(toy, mangle=mangle, **options) as server:
        made = ServerSettings(base_url=server.url + path, name="toy", retry=QUICK, **(settings or {}))
        engine = ENGINES[name](made)
        try:
            yield engine, server
        finally:
            await engine.close()


DELETE = object()


PLACES = {
    "vllm": {
        "ids": ("choices", 0, "token_ids"),
        "logprobs": ("choices", 0, "logprobs"),
        "first": ("choices", 0, "logprobs", "token_logprobs", 0),
    },
    "atropos": {"ids": ("token_ids",), "logprobs": ("logprobs",), "first": ("logprobs", 0, 0, 0)},
    "sglang": {
        "logprobs": ("meta_info", "output_token_logprobs"),
        "first": ("meta_info", "output_token_logprobs", 0, 0),
    },
    "llamacpp": {
        "ids": ("tokens",),
        "logprobs": ("completion_probabilities",),
        "first": ("completion_probabilities", 0, "logprob"),
    },
}


def edit_reply(name, path, value):
    """A mangler that puts `value` at `path` into the replies of an engine."""

    def edit(where, reply):
        target = reply
        for key in path[:-1]:
            target = target[key]
        if value is DELETE:
            del target[path[-1]]
        else:
            target[path[-1]] = value
        return reply

    return lambda where, reply: edit(where, reply) if where == ENGINES[name].path else reply


async def fail_engine(tokens, name, mangle):
    async with open_engine(tokens, name, mangle=mangle) as (engine, server):
        with pytest.raises(ModelError) as caught:
            await engine.generate([1, 2], Sampling(max_tokens=99))
        return str(caught.value), len([1 for path, _ in server.requests if path == engine.path])
