"""The toy engine: scripted replies in ids that no tokenizer would choose."""

import pytest

from ludus.errors import ModelError
from ludus.tokens import EngineFacts
from ludus.tokens.toy_engine import ToyEngine
from ludus.types import Finish, Sampling

TEXT = "Grüße, 世界 \U0001f600! The quick brown fox looks at the world."


def test_the_ids_decode_to_the_text_and_are_not_the_tokenizers_own(tokens):
    toy = ToyEngine(tokens.tokenizer, [])
    ids = toy.scatter_ids(TEXT)
    assert tokens.tokenizer.decode(ids) == TEXT
    assert ids != tokens.tokenizer.encode(TEXT)
    toy.scatter = 0.0
    assert toy.scatter_ids(TEXT) == tokens.tokenizer.encode(TEXT)


def test_the_same_seed_gives_the_same_ids_and_logprobs(tokens):
    def sample(seed):
        return ToyEngine(tokens.tokenizer, [TEXT], seed=seed).sample([1, 2], Sampling())

    assert sample(1) == sample(1)
    assert sample(1).ids != sample(2).ids


def test_a_reply_ends_with_a_stop_token_at_a_limit_or_at_a_stop_string(tokens):
    toy = ToyEngine(tokens.tokenizer, lambda _: TEXT, end="</s>")
    whole = toy.sample([1], Sampling())
    assert (whole.ids[-1], whole.finish, whole.text) == (tokens.tokenizer.find_id("</s>"), Finish.STOP, TEXT)
    cut = toy.sample([1], Sampling(max_tokens=3))
    assert (len(cut.ids), cut.finish) == (3, Finish.LENGTH)
    stopped = toy.sample([1], Sampling(stop=("quick",)))
    assert stopped.text == "Grüße, 世界 \U0001f600! The "
    assert tokens.tokenizer.decode(stopped.ids).endswith("quick")
    assert toy.log == [whole, cut, stopped]


async def test_a_function_gets_the_text_of_the_prompt(tokens):
    toy = ToyEngine(tokens.tokenizer, lambda prompt: prompt.upper())
    (sampled,) = await toy.generate(tokens.tokenizer.encode("look"), Sampling())
    assert sampled.text == "LOOK"
    assert await toy.get_facts() == EngineFacts(vocabulary=tokens.tokenizer.size)


async def test_a_toy_without_replies_raises(tokens):
    with pytest.raises(ModelError, match="no reply left"):
        await ToyEngine(tokens.tokenizer, []).generate([1], Sampling())
