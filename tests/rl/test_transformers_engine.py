import asyncio

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from ludus.errors import ModelError  # noqa: E402
from ludus.rl.transformers_engine import TransformersEngine  # noqa: E402
from ludus.types import Finish, Sampling  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13]]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_dropout=0.5,
        initializer_range=0.3,
    )
    return transformers.LlamaForCausalLM(config).train()


def make_engine(model, **fields):
    return TransformersEngine(model, **{"name": "m", "stop_ids": [3], "context": 32, **fields})


async def generate(model, prompts=PROMPTS, **fields):
    engine = make_engine(model, **fields)
    sampled = [engine.generate(ids, Sampling(seed=place)) for place, ids in enumerate(prompts)]
    try:
        return [found for (found,) in await asyncio.gather(*sampled)]
    finally:
        await engine.close()


def score(model, prompt, ids):
    with torch.no_grad():
        values = torch.log_softmax(model.eval()(torch.tensor([[*prompt, *ids]])).logits[0], -1)
    model.train()
    return [values[len(prompt) - 1 + place, number].item() for place, number in enumerate(ids)]


async def test_the_logprobs_of_a_batch_are_those_of_each_row_alone(model):
    found = await generate(model)
    assert model.training, "the model is put back into training mode"
    for prompt, drawn in zip(PROMPTS, found, strict=True):
        assert drawn.logprobs == pytest.approx(score(model, prompt, drawn.ids), abs=1e-4)
        assert drawn.prompt == tuple(prompt)


async def test_a_reply_ends_at_a_stop_id_or_at_the_context(model):
    for prompt, drawn in zip(PROMPTS, await generate(model), strict=True):
        assert 3 not in drawn.ids[:-1]
        if drawn.finish is Finish.STOP:
            assert drawn.ids[-1] == 3
        else:
            assert len(prompt) + len(drawn.ids) == 32


async def test_neighbours_and_batches_do_not_change_a_reply(model):
    together = await generate(model)
    assert [drawn.ids for drawn in await generate(model, batch=1)] == [drawn.ids for drawn in together]


async def test_a_limit_and_several_samples(model):
    async def main():
        engine = make_engine(model)
        try:
            return await engine.generate([5], Sampling(max_tokens=2, seed=1), 6)
        finally:
            await engine.close()

    found = await main()
    assert all(len(drawn.ids) <= 2 for drawn in found)
    assert len({drawn.ids for drawn in found}) > 1


@pytest.mark.parametrize("sampling", [Sampling(stop=("x",)), Sampling(extra={"top_k": 3})])
async def test_what_it_cannot_do_is_refused(model, sampling):
    with pytest.raises(ModelError, match="no stop strings and no extra parameters"):
        await make_engine(model).generate([5], sampling)


async def test_a_prompt_that_fills_the_context_is_too_long(model):
    with pytest.raises(ModelError, match="the context is 32") as raised:
        await make_engine(model).generate([5] * 32, Sampling())
    assert raised.value.too_long


async def test_a_model_that_breaks_fails_the_requests_of_its_batch(model):
    class Broken:
        training, device, config = False, "cpu", model.config
        eval = train = lambda *_: None

        def __call__(self, **_):
            raise RuntimeError("out of memory")

    with pytest.raises(ModelError, match="sampling failed: out of memory"):
        await make_engine(Broken()).generate([5], Sampling())
