"""The stand-in refuses what real servers refuse, and says what it got."""

import msgspec
import pytest

from ludus.encoding import to_json
from ludus.http_client import Client
from ludus.tokens.engine_standin import StandIn
from ludus.tokens.toy_engine import ToyEngine


async def post(tokens, path, body, **options):
    """A request to a stand-in: the status, the reply, and the stand-in."""

    client = Client(connections=1)
    async with StandIn(ToyEngine(tokens.tokenizer, ["Hello."] * 3), **options) as server:
        response = await client.request("POST", server.url + path, (), to_json(body))
        await client.close()
        return response.status, response.body, server


async def test_an_unknown_path_is_not_found(tokens):
    assert (await post(tokens, "/v2/other", {}))[0] == 404
    assert (await post(tokens, "/v1/chat/completions", {}))[0] == 404, "without a codec there is no chat"


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/completions", {"prompt": [1]}, "max_tokens is missing"),
        ("/v1/completions", {"prompt": "text", "max_tokens": 5}, "list of ids"),
        ("/v1/completions", {"prompt": [], "max_tokens": 5}, "list of ids"),
        ("/v1/completions", {"prompt": [1] * 9, "max_tokens": 5}, "context length of 8"),
        ("/completion", {"prompt": [1]}, "n_predict is missing"),
        ("/generate", {"input_ids": [1], "sampling_params": {}}, "max_new_tokens is missing"),
    ],
)
async def test_bad_requests_are_refused(tokens, path, body, words):
    status, reply, _ = await post(tokens, path, body, context=8)
    assert status == 400
    assert words in reply.decode()


async def test_atropos_fails_on_a_parameter_that_vllm_does_not_know(tokens):
    body = {"prompt": {"prompt_token_ids": [1]}, "max_tokens": 5, "model": "toy"}
    status, reply, _ = await post(tokens, "/generate", body)
    assert status == 500
    assert "Unexpected keyword argument 'model'" in reply.decode()


async def test_requests_are_kept_and_replies_can_be_changed(tokens):
    body = {"prompt": [1, 2], "max_tokens": 5}
    status, reply, server = await post(tokens, "/v1/completions", body, mangle=lambda path, reply: {"at": path})
    assert (status, msgspec.json.decode(reply)) == (200, {"at": "/v1/completions"})
    assert server.requests == [("/v1/completions", body)]
    assert (await post(tokens, "/v1/completions", body, mangle=lambda *_: b"<html>"))[1] == b"<html>"


async def test_llamacpp_cuts_probabilities_at_a_stop_string_but_not_ids(tokens):
    body = {"prompt": [1], "n_predict": 99, "n_probs": 1, "return_tokens": True, "stop": ["llo"]}
    reply = msgspec.json.decode((await post(tokens, "/completion", body))[1])
    assert reply["stop_type"] == "word"
    assert len(reply["completion_probabilities"]) < len(reply["tokens"])
