"""Every engine's wire format against a stand-in that speaks it: the same ids and logprobs come out of all of them."""

import asyncio
import json

import pytest

from ludus.errors import ModelError
from ludus.models.server import Endpoint, Retry, ServerSettings
from ludus.tokens import EngineFacts
from ludus.tokens.engine_standin import StandIn
from ludus.tokens.engines.atropos_generate import AtroposEngine
from ludus.tokens.engines.llamacpp import LlamaCppEngine
from ludus.tokens.engines.sglang import SglangEngine
from ludus.tokens.engines.vllm import VllmEngine
from ludus.tokens.toy_engine import ToyEngine
from ludus.types import Finish, Sampling

ENGINES = {"vllm": VllmEngine, "atropos": AtroposEngine, "sglang": SglangEngine, "llamacpp": LlamaCppEngine}
every = pytest.mark.parametrize("name", list(ENGINES))
QUICK = Retry(retries=1, first=0.001, longest=0.001)


def run(tokens, name, work, *, replies=("Grüße, 世界 \U0001f600!",), mangle=None, path="", settings=None, **options):
    """`work(engine, stand_in)` against a stand-in of the engine."""

    async def main():
        toy = ToyEngine(tokens.tokenizer, list(replies) * 5)
        async with StandIn(toy, mangle=mangle, **options) as server:
            made = ServerSettings(base_url=server.url + path, name="toy", retry=QUICK, **(settings or {}))
            engine = ENGINES[name](made)
            try:
                return await work(engine, server)
            finally:
                await engine.close()

    return asyncio.run(main())


@every
@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_ids_and_logprobs_are_those_that_were_drawn(tokens, name, path):
    async def work(engine, server):
        (got,) = await engine.generate([1, 2, 3], Sampling(max_tokens=100))
        return got, server.toy.log[0]

    got, draw = run(tokens, name, work, path=path)
    assert (got.ids, got.logprobs, got.finish) == (draw.ids, draw.logprobs, Finish.STOP)
    assert got.prompt in (None, (1, 2, 3))
    assert got.prompt_tokens in (None, 3)
    assert got.ids[-1] in tokens.tokenizer.stop_tokens
    assert got.text == draw.text


@every
def test_several_replies_to_one_prompt(tokens, name):
    async def work(engine, server):
        got = await engine.generate([1, 2, 3], Sampling(max_tokens=100, seed=5), 3)
        return got, server.toy.log

    got, log = run(tokens, name, work)
    assert sorted(g.ids for g in got) == sorted(d.ids for d in log)
    assert len(got) == 3


@every
def test_a_reply_that_was_cut_says_so(tokens, name):
    async def work(engine, server):
        return await engine.generate([1], Sampling(max_tokens=2))

    (got,) = run(tokens, name, work)
    assert got.finish is Finish.LENGTH
    assert len(got.ids) == 2


@every
def test_nothing_is_left_to_defaults_that_cut_the_distribution(tokens, name):
    async def work(engine, server):
        await engine.generate([1], Sampling(temperature=None, max_tokens=9, seed=3, stop=("END",)))
        return server.requests[-1][1]

    body = run(tokens, name, work)
    fields = {**body, **body.get("sampling_params", {})}
    assert fields["temperature"] == 1.0
    assert fields["top_p"] == 1.0
    assert fields["top_k"] in (-1, 0)
    assert fields["min_p"] == 0.0
    assert 1.0 in (fields.get("repetition_penalty"), fields.get("repeat_penalty"))
    assert fields["stop"] == ["END"]
    assert 3 in (fields.get("seed"), fields.get("sampling_seed"))


@every
def test_what_the_user_adds_has_the_last_word_and_what_a_server_refuses_is_left_out(tokens, name):
    async def work(engine, server):
        await engine.generate([1], Sampling(max_tokens=9, extra={"top_k": 5}))
        return server.requests[-1][1]

    body = run(tokens, name, work, settings={"omit": ("min_p",)})
    fields = body.get("sampling_params", body)
    assert fields["top_k"] == 5
    assert "min_p" not in fields


@every
def test_without_a_limit_a_reply_may_fill_the_context(tokens, name):
    async def work(engine, server):
        await engine.generate([1] * 10, Sampling(max_tokens=None))
        return next(body for path, body in reversed(server.requests) if body)

    body = run(tokens, name, work, context=100)
    fields = {**body, **body.get("sampling_params", {})}
    limit = fields.get("max_tokens") or fields.get("max_new_tokens") or fields.get("n_predict")
    assert limit == 90


@every
def test_the_engine_tells_how_it_encodes(tokens, name):
    async def work(engine, server):
        return await engine.tokenize("Grüße, 世界"), await engine.get_facts()

    told, facts = run(tokens, name, work, context=777)
    assert list(told) == tokens.tokenizer.encode("Grüße, 世界")
    assert facts.context == 777
    assert facts.vocabulary in (None, tokens.tokenizer.size)


def test_an_engine_that_knows_no_such_paths_tells_nothing(tokens):
    async def work(engine, server):
        server._route = lambda *_: None
        return await engine.tokenize("x"), await engine.get_facts()

    for name in ENGINES:
        assert run(tokens, name, work) == (None, EngineFacts())


ODD = [
    {"data": 5, "tokens": "x", "prompt_token_ids": {}, "context_length": "long", "default_generation_settings": []},
    {"data": {"a": 1}, "tokens": [1, "2"], "prompt_token_ids": [None], "context_length": True, "meta_info": 5},
    {"data": [5], "meta_info": {"input_token_logprobs": [None]}, "max_total_num_tokens": [1]},
    {"data": [{"id": "toy", "max_model_len": "x", "meta": 1}], "meta_info": {"input_token_logprobs": [[]]}},
    {"data": [], "meta_info": {"input_token_logprobs": []}},
    [1],
    "text",
]


@every
def test_odd_answers_to_the_questions_of_the_start_tell_nothing(tokens, name):
    async def work(engine, server):
        told = []
        for odd in ODD:
            server.mangle = lambda *_, odd=odd: odd
            engine._facts = None
            told.append((await engine.tokenize("x"), await engine.get_facts()))
        return told

    assert run(tokens, name, work) == [(None, EngineFacts())] * len(ODD)


@every
def test_a_stop_string_leaves_the_beginning_of_what_was_sampled(tokens, name):
    async def work(engine, server):
        (got,) = await engine.generate([1], Sampling(max_tokens=99, stop=("STOP",)))
        return got, server.toy.log[0]

    got, draw = run(tokens, name, work, replies=["One. STOP Two."])
    assert got.ids == draw.ids[: len(got.ids)]
    assert got.logprobs == draw.logprobs[: len(got.ids)]
    assert got.finish is Finish.STOP
    assert len(got.ids) > 0


@every
def test_an_empty_completion(tokens, name):
    async def work(engine, server):
        return await engine.generate([1], Sampling(max_tokens=9))

    def emptied(path, reply):
        if isinstance(reply, dict) and "choices" in reply:
            logprobs = {"token_logprobs": []}
            reply["choices"][0] |= {"token_ids": [], "logprobs": logprobs, "text": ""}
        elif isinstance(reply, dict) and "meta_info" in reply:
            reply["meta_info"]["output_token_logprobs"] = []
        elif isinstance(reply, dict) and "token_ids" in reply:
            reply |= {"token_ids": [[]], "logprobs": [[]], "text": [""]}
        elif isinstance(reply, dict) and "completion_probabilities" in reply:
            reply |= {"tokens": [], "completion_probabilities": [], "content": ""}
        return reply

    (got,) = run(tokens, name, work, mangle=emptied)
    assert (got.ids, got.logprobs) == ((), ())


# ---- replies that spoil training ----------------------------------------------------------------------------------


def _edit(name, path, value):
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


def failing(tokens, name, mangle):
    async def work(engine, server):
        with pytest.raises(ModelError) as caught:
            await engine.generate([1, 2], Sampling(max_tokens=99))
        return str(caught.value), len([1 for path, _ in server.requests if path == engine.path])

    return run(tokens, name, work, mangle=mangle)


@pytest.mark.parametrize("name", ["vllm", "atropos", "llamacpp"])
def test_no_ids_at_all_says_what_to_do_and_is_not_tried_again(tokens, name):
    words, requests = failing(tokens, name, _edit(name, PLACES[name]["ids"], DELETE))
    assert "no token ids" in words
    assert requests == 1


@every
@pytest.mark.parametrize("value", [None, DELETE], ids=["null", "missing"])
def test_no_logprobs_at_all_say_what_to_do_and_are_not_tried_again(tokens, name, value):
    words, requests = failing(tokens, name, _edit(name, PLACES[name]["logprobs"], value))
    assert "no logprobs" in words
    assert requests == 1


@pytest.mark.parametrize("name", ["vllm", "atropos", "llamacpp"])
def test_fewer_ids_than_logprobs_are_tried_again_and_then_an_error(tokens, name):
    short = [[5]] if name == "atropos" else [5]
    words, requests = failing(tokens, name, _edit(name, PLACES[name]["ids"], short))
    assert "for 1 ids" in words or "different tokens" in words
    assert requests == 2


@every
@pytest.mark.parametrize("value", [None, -9999.0, -3.4e38, "x", True], ids=str)
def test_a_logprob_that_is_none_is_read_as_none(tokens, name, value):
    spoiled = {str(0): value} if name == "atropos" else value

    async def work(engine, server):
        return await engine.generate([1, 2], Sampling(max_tokens=99))

    (got,) = run(tokens, name, work, mangle=_edit(name, PLACES[name]["first"], spoiled))
    assert got.logprobs[0] is None
    assert all(value is not None for value in got.logprobs[1:])
    assert len(got.ids) == len(got.logprobs)


@every
@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[]", b'{"choices": []}', b"[1]", b'{"content": '])
def test_what_is_no_reply_is_an_error_of_the_model(tokens, name, body):
    words, _ = failing(tokens, name, lambda path, reply: body if path == ENGINES[name].path else reply)
    assert "http://127.0.0.1" in words


@every
def test_a_refusal_is_not_tried_again_and_quoted(tokens, name):
    async def work(engine, server):
        with pytest.raises(ModelError, match="context length of 3"):
            await engine.generate([1] * 10, Sampling(max_tokens=9))
        return len(server.requests)

    assert run(tokens, name, work, context=3) == 1


def test_atropos_reads_each_logprob_under_its_own_id(tokens):
    """The stand-in puts another token first into every dictionary, as engines do that report the likeliest one too."""

    async def work(engine, server):
        (got,) = await engine.generate([1], Sampling(max_tokens=99))
        return got.logprobs, server.toy.log[0].logprobs

    told, drawn = run(tokens, "atropos", work)
    assert told == drawn
    assert -9.5 not in told


def test_llamacpp_refuses_probabilities_of_other_tokens(tokens):
    words, _ = failing(tokens, "llamacpp", _edit("llamacpp", ("completion_probabilities", 0, "id"), 99999))
    assert "different tokens" in words


@pytest.mark.parametrize("triples", [[[-1.0]], [5], [[-1.0, "5", None]], [[-1.0, True, None]]], ids=str)
def test_sglang_refuses_what_are_no_triples(tokens, triples):
    words, _ = failing(tokens, "sglang", _edit("sglang", PLACES["sglang"]["logprobs"], triples))
    assert "triples" in words


def test_keys_are_sent_and_refused_keys_said(tokens):
    async def main():
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

    keys: list[bool] = []
    asyncio.run(main())
    assert keys == [True]


def test_an_engine_that_is_not_there_is_said(tokens):
    async def main():
        engine = VllmEngine(ServerSettings(base_url="http://127.0.0.1:9", name="m", retry=QUICK))
        with pytest.raises(ModelError, match="Is the engine running"):
            await engine.tokenize("x")
        await engine.close()

    asyncio.run(main())
