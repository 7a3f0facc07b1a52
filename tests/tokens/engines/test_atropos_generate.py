"""The wire format of Atropos' `/generate`."""

import json

import pytest
from tests.engine_kit import open_engine

from ludus.errors import LudusError
from ludus.models.server import ServerSettings
from ludus.tokens.engines.atropos_generate import AtroposEngine
from ludus.types import Finish, Sampling


async def test_atropos_reads_each_logprob_under_its_own_id(tokens):
    """The stand-in puts another token first into every dictionary, as engines do that report the likeliest one too."""

    async with open_engine(tokens, "atropos") as (engine, server):
        (got,) = await engine.generate([1], Sampling(max_tokens=99))
        read, sampled = got.logprobs, server.toy.log[0].logprobs
    assert read == sampled
    assert -9.5 not in read


ENGINE = AtroposEngine(ServerSettings(base_url="http://127.0.0.1:9", name="m"))


def parse(**fields):
    return ENGINE.parse_replies(json.dumps(fields).encode())


def test_a_request_has_only_parameters_of_vllm():
    body = ENGINE.build_request([1, 2], Sampling(max_tokens=5, seed=3), 2, "m")
    assert body["prompt"] == {"prompt_token_ids": [1, 2]}
    assert body.keys() == {
        *("prompt", "logprobs", "n", "skip_special_tokens", "max_tokens", "temperature", "top_p", "top_k", "min_p"),
        *("repetition_penalty", "seed"),
    }


def test_each_reply_has_its_own_ids_logprobs_and_end():
    first, second = parse(
        text=["a", "b"],
        token_ids=[[5], [6, 7]],
        logprobs=[[[{"5": -0.5}]], [{"6": -0.1, "9": -0.2}, [{"9": -3.0}]]],
        finish_reasons=["stop", "length"],
        prompt_token_ids=[1],
    )
    assert (first.ids, first.logprobs, first.finish, first.text) == ((5,), (-0.5,), Finish.STOP, "a")
    assert (second.ids, second.logprobs, second.finish) == ((6, 7), (-0.1, None), Finish.LENGTH)
    assert first.prompt == second.prompt == (1,)


def test_ids_are_the_names_of_the_logprobs_if_there_are_no_others():
    (got,) = parse(text=["a b"], logprobs=[[[{"5": -0.5}], {"7": -0.1}]], finish_reasons=["stop"])
    assert got.ids == (5, 7) and got.logprobs == (-0.5, -0.1)
    with pytest.raises(LudusError, match="several logprobs for one place"):
        parse(text=["a"], logprobs=[[{"5": -0.5, "6": -0.1}]], finish_reasons=["stop"])
    with pytest.raises(LudusError, match="logprobs"):
        parse(text=["a"], finish_reasons=["stop"])
