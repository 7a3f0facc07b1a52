"""The wire format of llama.cpp's `/completion`."""

import json

import pytest
from tests.engine_kit import edit_reply, fail_engine, open_engine

from ludus.models.server import BadReply, ServerSettings
from ludus.tokens.engines.llamacpp import LISTED, IdsMissing, LlamaCppEngine, LlamaCppStreamReader, _vary_seed
from ludus.types import Finish, Sampling


async def test_llamacpp_refuses_probabilities_of_other_tokens(tokens):
    words, _ = await fail_engine(
        tokens, "llamacpp", edit_reply("llamacpp", ("completion_probabilities", 0, "id"), 99999)
    )
    assert "different tokens" in words


ENGINE = LlamaCppEngine(ServerSettings(base_url="http://127.0.0.1:9", name="m"))


def parse(**fields):
    probabilities = [{"id": 5, "logprob": -0.5}, {"id": 6, "logprob": -0.1}]
    good = {"content": "Hi", "tokens": [5, 6], "completion_probabilities": probabilities, "stop_type": "eos"}
    return ENGINE.parse_replies(json.dumps({**good, **fields}).encode())


def test_a_request_asks_for_ids_and_uncut_probabilities():
    body = ENGINE.build_request([1, 2], Sampling(max_tokens=5, seed=3, stop=("END",)), 1, "m")
    assert (body["prompt"], body["n_predict"], body["seed"], body["stop"]) == ([1, 2], 5, 3, ("END",))
    assert (body["n_probs"], body["return_tokens"], body["post_sampling_probs"]) == (1, True, False)


def test_a_reply_has_ids_logprobs_and_the_counted_prompt():
    (got,) = parse(tokens_evaluated=2)
    assert (got.ids, got.logprobs, got.finish, got.text) == ((5, 6), (-0.5, -0.1), Finish.STOP, "Hi")
    assert got.prompt_tokens == 2


def test_ids_that_a_stop_string_left_without_a_logprob_are_dropped():
    (got,) = parse(tokens=[5, 6, 7], stop_type="word")
    assert (got.ids, got.text) == ((5, 6), None)
    with pytest.raises(BadReply, match="2 probabilities for 3 ids"):
        parse(tokens=[5, 6, 7], stop_type="eos")


def test_each_of_several_replies_has_its_own_seed():
    assert _vary_seed(Sampling(seed=None), 2).seed is None
    seeds = [_vary_seed(Sampling(seed=3), index).seed for index in range(4)]
    assert seeds[0] == 3
    assert len(set(seeds)) == 4


def test_ids_that_end_inside_a_character_have_no_logprob():
    (got,) = parse(tokens=[8, 5, 9, 9, 6])
    assert (got.ids, got.logprobs, got.text) == ((8, 5, 9, 9, 6), (None, -0.5, None, None, -0.1), "Hi")
    (got,) = parse(tokens=[5, 6, 7], stop_type="limit")
    assert got.logprobs == (-0.5, -0.1, None)
    (got,) = parse(tokens=[5, 5, 6])
    assert got.logprobs == (None, None, -0.1), "which 5 the probability belongs to is not known"


@pytest.mark.parametrize("listed", [LISTED[:1], LISTED])
async def test_a_logprob_that_the_reply_lacks_is_asked_for(tokens, listed):
    """The second id has no probability. It is in the shorter list, or only in the longer one."""
    prompts, sampled = [], []

    def answer(path, reply):
        if path != LlamaCppEngine.path:
            return reply
        if not sampled:
            sampled.extend(reply["tokens"])
            del reply["completion_probabilities"][1]
            return reply
        prompts.append(len(prompts))
        ids = sampled[1:2] if len(prompts) == len(listed) else []
        lists = [{"id": each, "logprob": -7.5} for each in (99, *ids)]
        return {"completion_probabilities": [{"id": 64, "logprob": -9.0, "top_logprobs": lists}]}

    async with open_engine(tokens, "llamacpp", mangle=answer) as (engine, server):
        (got,) = await engine.generate([1, 2], Sampling(max_tokens=99))
        _, *asked = [body for path, body in server.requests if path == engine.path]
    assert list(got.ids) == sampled and len(set(got.ids[:2])) == 2
    assert got.logprobs[1] == -7.5 and None not in got.logprobs
    assert [body["n_probs"] for body in asked] == list(listed)
    assert all((body["prompt"], body["n_predict"]) == ([1, 2, got.ids[0]], 1) for body in asked)


@pytest.mark.parametrize("useless", [{}, [], {"completion_probabilities": [{"top_logprobs": []}]}])
async def test_a_reply_stays_whole_if_a_logprob_cannot_be_found(tokens, useless):
    asked = []

    def answer(path, reply):
        if path != LlamaCppEngine.path:
            return reply
        asked.append(path)
        if len(asked) > 1:
            return useless
        del reply["completion_probabilities"][1]
        return reply

    async with open_engine(tokens, "llamacpp", mangle=answer) as (engine, _):
        (got,) = await engine.generate([1, 2], Sampling(max_tokens=99))
    assert got.logprobs.index(None) == 1 and got.logprobs.count(None) == 1 and len(asked) > 1
    assert got.text


def read_events(*events):
    reader = LlamaCppStreamReader(lambda _: [])
    for number, predicted in events:
        place = {"id": number, "logprob": -1.0}
        event = {"content": "x", "tokens": [number], "tokens_predicted": predicted, "completion_probabilities": [place]}
        reader.take(json.dumps(event).encode())
    return reader


END = json.dumps({"content": "", "tokens": [], "stop": True, "stop_type": "eos", "tokens_predicted": 3}).encode()


def test_a_stream_without_a_gap_is_a_whole_reply():
    reader = read_events((5, 1), (6, 2), (7, 3))
    reader.take(END)
    got = reader.finish()
    assert (got.ids, got.finish, got.text) == ((5, 6, 7), Finish.STOP, "xxx")


def test_a_stream_with_a_gap_is_not_exact_and_its_beginning_is():
    reader = read_events((5, 1), (7, 3))
    assert reader.finish(cut=True).ids == (5,)
    reader.take(END)
    with pytest.raises(IdsMissing) as gap:
        reader.finish()
    assert gap.value.text == "xx"


def test_a_stream_without_an_end_is_no_reply():
    with pytest.raises(BadReply, match="ended before"):
        read_events((5, 1)).finish()
