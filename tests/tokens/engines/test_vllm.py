"""The wire format of vLLM's `/v1/completions`."""

import asyncio
import json

import pytest
from tests.engine_kit import QUICK

from ludus.errors import ModelError
from ludus.models.server import Endpoint, ServerSettings
from ludus.tokens.engines.vllm import VllmEngine, build_sampling, find_context, read_tokens
from ludus.types import Finish, Sampling

ENGINE = VllmEngine(ServerSettings(base_url="http://127.0.0.1:9", name="m"))


def choice(**fields):
    good = {"text": "Hi", "token_ids": [7, 8], "logprobs": {"token_logprobs": [-0.5, -0.25]}, "finish_reason": "stop"}
    return {**good, **fields}


def parse(*choices, **fields):
    return ENGINE.parse_replies(json.dumps({"choices": choices, **fields}).encode())


def test_a_request_has_ids_and_asks_for_ids():
    body = ENGINE.build_request([1, 2], Sampling(max_tokens=5), 3, "m")
    assert (body["model"], body["prompt"], body["n"], body["max_tokens"]) == ("m", [1, 2], 3, 5)
    assert body["return_token_ids"] is True
    assert body["skip_special_tokens"] is False


def test_unset_sampling_is_sent_as_neutral_and_extra_fields_override_it():
    neutral = build_sampling(Sampling(temperature=None))
    assert neutral | {"max_tokens": None} == {
        "max_tokens": None,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    assert build_sampling(Sampling(extra={"top_k": 4}))["top_k"] == 4


def test_choices_are_sorted_and_carry_the_prompt_and_its_counts():
    usage = {"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
    first, second = parse(choice(index=1, text="b"), choice(index=0, text="a"), prompt_token_ids=[1, 2], usage=usage)
    assert (first.text, second.text) == ("a", "b")
    assert (first.ids, first.logprobs, first.finish) == ((7, 8), (-0.5, -0.25), Finish.STOP)
    assert (first.prompt, first.prompt_tokens, first.cached_tokens) == ((1, 2), 2, 1)


def test_a_prompt_in_a_choice_is_read_too():
    (got,) = parse(choice(prompt_token_ids=[1, 2]))
    assert got.prompt == (1, 2)


def test_the_context_is_that_of_the_model_or_of_the_only_one():
    models = {"data": [{"id": "a", "max_model_len": 1}, {"id": "b", "max_model_len": 2}]}
    assert [find_context(models, name) for name in ("a", "b", "other")] == [1, 2, 1]
    adapter = {"data": [{"id": "a", "max_model_len": 1}, {"id": "lora", "max_model_len": None}]}
    assert find_context(adapter, "lora") == 1
    assert find_context({"data": []}, "a") is None
    assert find_context("text", "a") is None


def test_ids_of_an_answer_of_tokenize():
    assert read_tokens({"tokens": [1, 2]}) == [1, 2]
    assert read_tokens({"tokens": ["1"]}) is None
    assert read_tokens(None) is None


async def test_the_key_is_sent_and_a_refused_key_is_reported(tokens):
    keys: list[bool] = []

    async def handler(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        keys.append(b"Bearer secret-key" in head)
        body = json.dumps({"error": "no"}).encode()
        writer.write(b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    engine = VllmEngine(ServerSettings(name="m"), Endpoint(url, api_key="secret-key"))
    with pytest.raises(ModelError, match="the key is not accepted"):
        await engine.tokenize("x")
    await engine.close()
    server.close()
    await server.wait_closed()
    assert keys == [True]


async def test_an_engine_that_does_not_run_is_a_model_error(tokens):
    engine = VllmEngine(ServerSettings(base_url="http://127.0.0.1:9", name="m", retry=QUICK))
    with pytest.raises(ModelError, match="Is the engine running"):
        await engine.tokenize("x")
    await engine.close()
