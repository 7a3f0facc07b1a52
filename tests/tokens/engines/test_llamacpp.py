"""The wire format of llama.cpp's `/completion`."""

import json

import pytest
from tests.engine_kit import edit_reply, fail_engine

from ludus.models.server import BadReply, ServerSettings
from ludus.tokens.engines.llamacpp import IdsMissing, LlamaCppEngine, LlamaCppStreamReader, _vary_seed
from ludus.types import Finish, Sampling


def test_llamacpp_refuses_probabilities_of_other_tokens(tokens):
    words, _ = fail_engine(tokens, "llamacpp", edit_reply("llamacpp", ("completion_probabilities", 0, "id"), 99999))
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
