"""Every engine against a stand-in with its wire format: all give the same ids and logprobs."""

import pytest
from tests.engine_kit import DELETE, ENGINES, PLACES, edit_reply, fail_engine, open_engine

from ludus.errors import ModelError
from ludus.tokens import EngineFacts
from ludus.types import Finish, Sampling

every = pytest.mark.parametrize("name", list(ENGINES))


@every
@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
async def test_ids_and_logprobs_are_those_that_were_drawn(tokens, name, path):
    async with open_engine(tokens, name, path=path) as (engine, server):
        (got,) = await engine.generate([1, 2, 3], Sampling(max_tokens=100))
        got, sample = got, server.toy.log[0]
    assert (got.ids, got.logprobs, got.finish) == (sample.ids, sample.logprobs, Finish.STOP)
    assert got.prompt in (None, (1, 2, 3))
    assert got.prompt_tokens in (None, 3)
    assert got.ids[-1] in tokens.tokenizer.stop_tokens
    assert got.text == sample.text


@every
async def test_several_replies_to_one_prompt(tokens, name):
    async with open_engine(tokens, name) as (engine, server):
        got = await engine.generate([1, 2, 3], Sampling(max_tokens=100, seed=5), 3)
        got, log = got, server.toy.log
    assert sorted(g.ids for g in got) == sorted(d.ids for d in log)
    assert len(got) == 3


@every
async def test_a_reply_at_its_limit_finishes_with_length(tokens, name):
    async with open_engine(tokens, name) as (engine, _):
        (got,) = await engine.generate([1], Sampling(max_tokens=2))
    assert got.finish is Finish.LENGTH
    assert len(got.ids) == 2


@every
async def test_nothing_is_left_to_defaults_that_cut_the_distribution(tokens, name):
    async with open_engine(tokens, name) as (engine, server):
        await engine.generate([1], Sampling(temperature=None, max_tokens=9, seed=3, stop=("END",)))
        body = server.requests[-1][1]
    fields = {**body, **body.get("sampling_params", {})}
    assert fields["temperature"] == 1.0
    assert fields["top_p"] == 1.0
    assert fields["top_k"] in (-1, 0)
    assert fields["min_p"] == 0.0
    assert 1.0 in (fields.get("repetition_penalty"), fields.get("repeat_penalty"))
    assert fields["stop"] == ["END"]
    assert 3 in (fields.get("seed"), fields.get("sampling_seed"))


@every
async def test_what_the_user_adds_has_the_last_word_and_what_a_server_refuses_is_left_out(tokens, name):
    async with open_engine(tokens, name, settings={"omit": ("min_p",)}) as (engine, server):
        await engine.generate([1], Sampling(max_tokens=9, extra={"top_k": 5}))
        body = server.requests[-1][1]
    fields = body.get("sampling_params", body)
    assert fields["top_k"] == 5
    assert "min_p" not in fields


@every
async def test_without_a_limit_a_reply_may_fill_the_context(tokens, name):
    async with open_engine(tokens, name, context=100) as (engine, server):
        await engine.generate([1] * 10, Sampling(max_tokens=None))
        body = next(body for path, body in reversed(server.requests) if body)
    fields = {**body, **body.get("sampling_params", {})}
    limit = fields.get("max_tokens") or fields.get("max_new_tokens") or fields.get("n_predict")
    assert limit == 90


@every
async def test_the_engine_encodes_text_and_has_facts(tokens, name):
    async with open_engine(tokens, name, context=777) as (engine, _):
        answers, facts = await engine.tokenize("Grüße, 世界"), await engine.get_facts()
    assert list(answers) == tokens.tokenizer.encode("Grüße, 世界")
    assert facts.context == 777
    assert facts.vocabulary in (None, tokens.tokenizer.size)


@every
async def test_an_engine_without_these_paths_has_no_facts(tokens, name):
    async with open_engine(tokens, name) as (engine, server):
        server._route = lambda *_: None
        assert (await engine.tokenize("x"), await engine.get_facts()) == (None, EngineFacts())


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
async def test_odd_answers_at_the_start_give_no_facts(tokens, name):
    async with open_engine(tokens, name) as (engine, server):
        answers = []
        for odd in ODD:
            server.mangle = lambda *_, odd=odd: odd
            engine._facts = None
            answers.append((await engine.tokenize("x"), await engine.get_facts()))
    assert answers == [(None, EngineFacts())] * len(ODD)


@every
async def test_a_stop_string_leaves_the_beginning_of_what_was_sampled(tokens, name):
    async with open_engine(tokens, name, replies=["One. STOP Two."]) as (engine, server):
        (got,) = await engine.generate([1], Sampling(max_tokens=99, stop=("STOP",)))
        got, sample = got, server.toy.log[0]
    assert got.ids == sample.ids[: len(got.ids)]
    assert got.logprobs == sample.logprobs[: len(got.ids)]
    assert got.finish is Finish.STOP
    assert len(got.ids) > 0


@every
async def test_an_empty_completion(tokens, name):
    def make_empty(path, reply):
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

    async with open_engine(tokens, name, mangle=make_empty) as (engine, _):
        (got,) = await engine.generate([1], Sampling(max_tokens=9))
    assert (got.ids, got.logprobs) == ((), ())


# ---- replies that spoil training ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vllm", "atropos", "llamacpp"])
async def test_no_ids_at_all_is_an_error_without_a_retry(tokens, name):
    words, requests = await fail_engine(tokens, name, edit_reply(name, PLACES[name]["ids"], DELETE))
    assert "no token ids" in words
    assert requests == 1


@every
@pytest.mark.parametrize("value", [None, DELETE], ids=["null", "missing"])
async def test_no_logprobs_at_all_is_an_error_without_a_retry(tokens, name, value):
    words, requests = await fail_engine(tokens, name, edit_reply(name, PLACES[name]["logprobs"], value))
    assert "no logprobs" in words
    assert requests == 1


@pytest.mark.parametrize("name", ["vllm", "atropos", "llamacpp"])
async def test_fewer_ids_than_logprobs_are_an_error_after_a_retry(tokens, name):
    short = [[5]] if name == "atropos" else [5]
    words, requests = await fail_engine(tokens, name, edit_reply(name, PLACES[name]["ids"], short))
    assert "for 1 ids" in words or "different tokens" in words
    assert requests == 2


@every
@pytest.mark.parametrize("value", [None, -9999.0, -3.4e38, "x", True], ids=str)
async def test_a_logprob_that_is_none_is_read_as_none(tokens, name, value):
    spoiled = {str(0): value} if name == "atropos" else value

    async with open_engine(tokens, name, mangle=edit_reply(name, PLACES[name]["first"], spoiled)) as (engine, _):
        (got,) = await engine.generate([1, 2], Sampling(max_tokens=99))
    assert got.logprobs[0] is None
    assert all(value is not None for value in got.logprobs[1:])
    assert len(got.ids) == len(got.logprobs)


@every
@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[]", b'{"choices": []}', b"[1]", b'{"content": '])
async def test_what_is_no_reply_is_an_error_of_the_model(tokens, name, body):
    words, _ = await fail_engine(tokens, name, lambda path, reply: body if path == ENGINES[name].path else reply)
    assert "http://127.0.0.1" in words


@every
async def test_a_refusal_is_quoted_and_not_retried(tokens, name):
    async with open_engine(tokens, name, context=3) as (engine, server):
        with pytest.raises(ModelError, match="context length of 3"):
            await engine.generate([1] * 10, Sampling(max_tokens=9))
        assert len(server.requests) == 1
