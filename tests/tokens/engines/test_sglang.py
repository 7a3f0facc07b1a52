"""The wire format of SGLang's `/generate`."""

import json

import pytest
from tests.engine_kit import PLACES, edit_reply, fail_engine

from ludus.models.server import ServerSettings
from ludus.tokens.engines.sglang import SglangEngine
from ludus.types import Finish, Sampling


@pytest.mark.parametrize("triples", [[[-1.0]], [5], [[-1.0, "5", None]], [[-1.0, True, None]]], ids=str)
async def test_sglang_refuses_what_are_no_triples(tokens, triples):
    words, _ = await fail_engine(tokens, "sglang", edit_reply("sglang", PLACES["sglang"]["logprobs"], triples))
    assert "triples" in words


ENGINE = SglangEngine(ServerSettings(base_url="http://127.0.0.1:9", name="m"))


def reply(**fields):
    meta = {"output_token_logprobs": [[-0.5, 5, None], [-0.1, 6, None]], "finish_reason": {"type": "length"}}
    return {"text": "Hi", "output_ids": [5], "meta_info": {**meta, **fields}}


def test_a_request_has_the_parameters_under_sglangs_names():
    body = ENGINE.build_request([1, 2], Sampling(max_tokens=5, seed=3), 2, "m")
    parameters = body["sampling_params"]
    assert body["input_ids"] == [1, 2] and body["return_logprob"] is True
    assert (parameters["max_new_tokens"], parameters["sampling_seed"], parameters["n"]) == (5, 3, 2)
    assert not parameters.keys() & {"max_tokens", "seed"}


def test_ids_come_from_the_triples_which_have_the_stop_token():
    (got,) = ENGINE.parse_replies(json.dumps(reply(prompt_tokens=2, cached_tokens=1)).encode())
    assert (got.ids, got.logprobs, got.finish, got.text) == ((5, 6), (-0.5, -0.1), Finish.LENGTH, "Hi")
    assert (got.prompt_tokens, got.cached_tokens) == (2, 1)


def test_one_reply_is_an_object_and_several_are_a_list():
    assert len(ENGINE.parse_replies(json.dumps([reply(), reply()]).encode())) == 2
    assert len(ENGINE.parse_replies(json.dumps(reply()).encode())) == 1
