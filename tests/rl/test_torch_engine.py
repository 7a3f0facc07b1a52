"""Sampling in process: exact logprobs, and a reply that depends on its seed alone."""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence

import pytest
from tests.torch_kit import make_net, torch

from ludus.errors import ModelError
from ludus.rl.torch_engine import TorchEngine, keep_nucleus, sample_ids
from ludus.tokens import Generation
from ludus.types import Finish, Sampling

PROMPTS = [tuple(range(5, 5 + size)) for size in (3, 7, 4, 9, 6, 3, 5, 8)]


class Numbers:
    """A tokenizer whose text are the ids. One of them ends a reply."""

    def __init__(self, *stop: int) -> None:
        self.stop_tokens = {number: str(number) for number in stop}

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


def make_engine(slots: int = 4, stop: tuple[int, ...] = (0,)) -> TorchEngine:
    return TorchEngine(make_net(), name="net", tokenizer=Numbers(*stop), slots=slots, context=48)


async def generate(engine: TorchEngine, order: list[int], **sampling: object) -> dict[int, Generation]:
    async def one(place: int) -> Generation:
        made = Sampling(**{"max_tokens": 12, "seed": place, **sampling})  # pyright: ignore[reportArgumentType]
        return (await engine.generate(PROMPTS[place], made))[0]

    try:
        return dict(zip(order, await asyncio.gather(*map(one, order)), strict=True))
    finally:
        await engine.close()


async def test_a_reply_does_not_depend_on_what_runs_beside_it():
    together = await generate(make_engine(), list(range(8)))
    assert await generate(make_engine(), [7, 2, 5, 0, 1, 3, 6, 4]) == together
    for place in range(8):
        assert (await generate(make_engine(), [place]))[place] == together[place]


async def test_recorded_logprobs_are_those_of_the_net():
    net = make_net()
    for place, made in (await generate(make_engine(), list(range(8)))).items():
        ids = torch.tensor([[*PROMPTS[place], *made.ids]])
        sampled = torch.tensor([[False] * len(PROMPTS[place]) + [True] * len(made.ids)])
        with torch.no_grad():
            again, _ = net.score_sampled(ids, sampled)
        assert made.logprobs == pytest.approx(again.tolist(), abs=1e-4)
        assert made.prompt == PROMPTS[place]
        assert made.finish is (Finish.STOP if made.ids[-1] == 0 else Finish.LENGTH)
        assert 0 not in made.ids[:-1]


async def test_seeds_and_several_samples():
    engine = make_engine()
    first = await engine.generate(PROMPTS[0], Sampling(max_tokens=8, seed=1), n=3)
    again = await engine.generate(PROMPTS[0], Sampling(max_tokens=8, seed=1), n=3)
    other = await engine.generate(PROMPTS[0], Sampling(max_tokens=8, seed=2), n=3)
    assert first == again and len({made.ids for made in first}) == 3
    assert first != other
    await engine.close()


async def test_stop_strings_and_limits():
    engine = make_engine(stop=())
    (plain,) = await engine.generate(PROMPTS[0], Sampling(max_tokens=10, seed=3))
    word = str(plain.ids[4])
    (made,) = await engine.generate(PROMPTS[0], Sampling(max_tokens=10, seed=3, stop=(word,)))
    assert made.finish is Finish.STOP and made.ids == plain.ids[: len(made.ids)] and len(made.ids) <= 5
    (long,) = await engine.generate(PROMPTS[0], Sampling(seed=3))
    assert long.finish is Finish.LENGTH and len(long.ids) == 48 - len(PROMPTS[0])
    with pytest.raises(ModelError, match="the context is 48") as caught:
        await engine.generate(list(range(48)), Sampling())
    assert caught.value.too_long
    with pytest.raises(ModelError, match="top_k"):
        await engine.generate(PROMPTS[0], Sampling(extra={"top_k": 3}))
    await engine.close()


async def test_a_cancelled_request_makes_room():
    engine = make_engine(slots=1, stop=())
    waiting = asyncio.create_task(engine.generate(PROMPTS[0], Sampling()))
    await asyncio.sleep(0)
    waiting.cancel()
    (made,) = await engine.generate(PROMPTS[1], Sampling(max_tokens=3, seed=0))
    assert len(made.ids) == 3
    await engine.close()


def test_ids_are_drawn_with_their_probabilities():
    logits = torch.tensor([[0.0, 1.0, 2.0]]).repeat(3000, 1)
    numbers = [(n + 0.5) / 3000 for n in range(3000)]
    ids, logprobs = sample_ids(logits, [Sampling()] * 3000, numbers)
    counts, total = Counter(ids), 1 + math.e + math.e**2
    for number in range(3):
        assert counts[number] / 3000 == pytest.approx(math.exp(number) / total, abs=1e-3)
    assert logprobs[0] == pytest.approx(ids[0] - math.log(total))
    assert set(sample_ids(logits, [Sampling(temperature=0.0)] * 3000, numbers)[0]) == {2}
    assert set(sample_ids(logits, [Sampling(top_p=0.6)] * 3000, numbers)[0]) == {2}


def test_the_nucleus():
    kept = keep_nucleus(torch.tensor([0.1, 0.5, 0.15, 0.25]), 0.7)
    assert kept.tolist() == pytest.approx([0.0, 0.5, 0.0, 0.25])
