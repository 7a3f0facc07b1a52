"""Samples from a model of transformers in this process: a token engine for trainers that hold one, such as TRL's.

Requests that are open at the same time are one batch, padded on the left. The model is put into evaluation mode for it
and put back afterwards. Logprobs are those of the model at temperature 1, from the same weights and the same code that
the trainer computes its gradient with.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from ludus.errors import ModelError
from ludus.rl.torch_engine import make_length_error, sample_ids
from ludus.rl.torch_import import Tensor, torch
from ludus.tokens import EngineFacts, Generation
from ludus.types import Finish, Sampling


class _Request(NamedTuple):
    ids: tuple[int, ...]
    sampling: Sampling
    random: random.Random
    future: "asyncio.Future[Generation]"

    def find_limit(self, context: int) -> int:
        room = context - len(self.ids)
        return room if self.sampling.max_tokens is None else min(room, self.sampling.max_tokens)


class TransformersEngine:
    """Samples ids from a causal language model. `stop_ids` end a reply; `batch` is the most replies at once."""

    def __init__(self, model: Any, *, name: str, stop_ids: Sequence[int], context: int, batch: int = 64) -> None:
        self._model = model
        self._name = name
        self._stop_ids = frozenset(stop_ids)
        self._context = context
        self._batch = batch
        self._waiting: list[_Request] = []
        self._pump: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self._name

    async def generate(self, ids: Sequence[int], sampling: Sampling, n: int = 1) -> list[Generation]:
        if sampling.stop or sampling.extra:
            raise ModelError("sampling: this engine has no stop strings and no extra parameters", retryable=False)
        if len(ids) >= self._context:
            raise make_length_error(len(ids), self._context)
        loop = asyncio.get_running_loop()
        requests = [
            _Request(
                tuple(ids),
                sampling,
                random.Random(None if sampling.seed is None else f"{sampling.seed}/{number}"),
                loop.create_future(),
            )
            for number in range(n)
        ]
        self._waiting += requests
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._run())
        return list(await asyncio.gather(*(request.future for request in requests)))

    async def tokenize(self, text: str) -> list[int] | None:
        """None: the tokenizer is the caller's."""
        return None

    async def get_facts(self) -> EngineFacts:
        return EngineFacts(vocabulary=self._model.config.vocab_size, context=self._context)

    async def close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
            self._pump = None

    async def _run(self) -> None:
        """Sample until no request is open. Rollouts that are ready at the same time are waited for."""
        while self._waiting:
            before = 0
            while before != len(self._waiting):  # let every rollout that can run reach its next request
                before = len(self._waiting)
                await asyncio.sleep(0)
            taken, self._waiting = self._waiting[: self._batch], self._waiting[self._batch :]
            try:
                found = await asyncio.to_thread(self._sample, taken)
            except Exception as error:  # such as too little memory: the requests of this batch fail
                for request in taken:
                    if not request.future.done():
                        request.future.set_exception(ModelError(f"sampling failed: {error}"))
                continue
            for request, generation in zip(taken, found, strict=True):
                if not request.future.done():
                    request.future.set_result(generation)

    def _sample(self, requests: Sequence[_Request]) -> list[Generation]:
        training = self._model.training
        self._model.eval()
        try:
            with torch.no_grad():
                return self._decode(requests)
        finally:
            self._model.train(training)

    def _decode(self, requests: Sequence[_Request]) -> list[Generation]:
        longest = max(len(request.ids) for request in requests)
        limits = [request.find_limit(self._context) for request in requests]
        ids: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        ended = [False] * len(requests)
        device = self._model.device
        pads = [longest - len(request.ids) for request in requests]
        prompts = [[0] * pad + list(request.ids) for pad, request in zip(pads, requests, strict=True)]
        mask: Tensor = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads], device=device)
        step: Tensor = torch.tensor(prompts, device=device)
        cache: Any = None
        while not all(ended):
            places = (mask.cumsum(-1) - 1).clamp(min=0)[:, -step.shape[1] :]
            output = self._model(
                input_ids=step, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True
            )
            cache = output.past_key_values
            samplings = [None if end else request.sampling for end, request in zip(ended, requests, strict=True)]
            sampled, values = sample_ids(output.logits[:, -1].float(), samplings, [r.random.random() for r in requests])
            for row, (number, value) in enumerate(zip(sampled, values, strict=True)):
                if not ended[row]:
                    ids[row].append(number)
                    logprobs[row].append(value)
                    ended[row] = number in self._stop_ids or len(ids[row]) >= limits[row]
            step = torch.tensor([[number] for number in sampled], device=device)
            mask = torch.cat([mask, mask.new_ones(len(requests), 1)], dim=1)
        return [
            Generation(
                ids=tuple(own),
                logprobs=tuple(values),
                finish=Finish.STOP if own[-1] in self._stop_ids else Finish.LENGTH,
                prompt=request.ids,
                prompt_tokens=len(request.ids),
            )
            for request, own, values in zip(requests, ids, logprobs, strict=True)
        ]
