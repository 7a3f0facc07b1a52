"""Samples from a `PolicyNet` in this process: a token engine like vLLM, for small nets.

Requests that are open at the same time are decoded together, a row of one batch each, and a row that ends makes room
for the next request. The numbers of a row do not depend on its neighbours: the batch always has the same shape, and a
prompt is read by itself. Each request samples from its own random numbers, by its seed. So a rollout that is run again
gives the same ids and logprobs, whatever else runs beside it. This holds on the CPU of one machine.

Logprobs are those of the net at temperature 1, as every engine of Ludus reports them.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from ludus.errors import ModelError
from ludus.rl.policy_net import Cache, PolicyNet
from ludus.rl.torch_import import Tensor, torch
from ludus.tokens import EngineFacts, Generation
from ludus.types import Finish, Sampling

Precision = Callable[[], Any]
"""Makes the context in which the net computes, such as one of mixed precision."""

_ROUNDS = 16
"""Ids that are decoded before new requests are looked for."""
_PROMPTS = 64
"""Prompts whose keys and values are kept: the rollouts of a group begin with the same one."""


class EngineTokenizer(Protocol):
    """The tokenizer of the net, such as a `ludus.tokens.tokenizer.Tokenizer`."""

    @property
    def stop_tokens(self) -> Mapping[int, str]: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(eq=False)
class _Request:
    """One reply that is being sampled."""

    prompt: tuple[int, ...]
    sampling: Sampling
    limit: int
    """The most ids that the reply may have."""
    random: random.Random
    future: "asyncio.Future[Generation]"
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    finish: Finish | None = None

    def make_generation(self) -> Generation:
        assert self.finish is not None
        return Generation(
            ids=tuple(self.ids),
            logprobs=tuple(self.logprobs),
            finish=self.finish,
            prompt=self.prompt,
            prompt_tokens=len(self.prompt),
        )


class TorchEngine:
    """Samples ids from a net. The tokenizer says which ids end a reply, and makes text of ids for stop strings."""

    def __init__(
        self,
        net: PolicyNet,
        *,
        name: str,
        tokenizer: "EngineTokenizer",
        slots: int = 64,
        context: int = 512,
        precision: Precision | None = None,
    ) -> None:
        self._net = net
        self._name = name
        self._tokenizer = tokenizer
        self._slots = slots
        self._context = context
        self._precision = precision
        self._waiting: list[_Request] = []
        self._rows: list[_Request | None] = [None] * slots
        self._cache: Cache | None = None
        self._prompts: OrderedDict[tuple[int, ...], tuple[Tensor, Cache]] = OrderedDict()
        self._logits: Tensor = None
        self._thread = ThreadPoolExecutor(1, "torch-engine")
        self._pump: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self._name

    async def generate(self, ids: Sequence[int], sampling: Sampling, n: int = 1) -> list[Generation]:
        _refuse_unknown(sampling)
        room = self._context - len(ids)
        if room < 1:
            raise make_length_error(len(ids), self._context)
        loop = asyncio.get_running_loop()
        requests = [
            _Request(
                prompt=tuple(ids),
                sampling=sampling,
                limit=min(room, sampling.max_tokens or room),
                random=random.Random(None if sampling.seed is None else f"{sampling.seed}/{number}"),
                future=loop.create_future(),
            )
            for number in range(n)
        ]
        self._waiting += requests
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._run())
        return list(await asyncio.gather(*(request.future for request in requests)))

    async def tokenize(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    async def get_facts(self) -> EngineFacts:
        return EngineFacts(vocabulary=self._net.shape.vocab_size, context=self._context)

    async def close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
            self._pump = None
        self._thread.shutdown(wait=True)
        self._cache = self._logits = None
        self._prompts.clear()

    # ---- the batch ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Decode until no request is open."""
        loop = asyncio.get_running_loop()
        while self._waiting or any(self._rows):
            try:
                ended = await loop.run_in_executor(self._thread, self._advance)
            except Exception as error:  # such as too little memory: every open request fails
                self._fail_all(error)
                return
            for request in ended:
                if not request.future.done():
                    request.future.set_result(request.make_generation())

    def _fail_all(self, error: Exception) -> None:
        open_requests = [*self._waiting, *(row for row in self._rows if row is not None)]
        self._waiting, self._rows, self._cache = [], [None] * self._slots, None
        for request in open_requests:
            if not request.future.done():
                request.future.set_exception(ModelError(f"sampling failed: {error}"))

    def _advance(self) -> list[_Request]:
        """Admit requests and decode some ids. Returns the requests that ended. Runs in the engine's thread."""
        ended: list[_Request] = []
        with torch.inference_mode(), self._precision() if self._precision else nullcontext():
            for _ in range(_ROUNDS):
                self._drop_cancelled()
                self._admit()
                if not any(self._rows):
                    break
                ended += self._decode_one()
        return ended

    def _drop_cancelled(self) -> None:
        self._rows = [None if row is not None and row.future.cancelled() else row for row in self._rows]

    def _admit(self) -> None:
        if self._cache is None:
            self._cache = self._net.make_cache(self._slots, self._context)
            self._logits = torch.zeros(self._slots, self._net.shape.vocab_size, device=self._net.device)
        while self._waiting and None in self._rows:
            request = self._waiting.pop(0)
            if request.future.cancelled():
                continue
            slot = self._rows.index(None)
            logits, read = self._read_prompt(request.prompt)
            size = len(request.prompt)
            for own, new in zip((*self._cache.keys, *self._cache.values), (*read.keys, *read.values), strict=True):
                own[slot, :, :size] = new[0]
            self._cache.lengths[slot] = size
            self._logits[slot] = logits[0]
            self._rows[slot] = request

    def _read_prompt(self, prompt: tuple[int, ...]) -> tuple[Tensor, Cache]:
        known = self._prompts.pop(prompt, None)
        found = known or self._net.prefill(torch.tensor([prompt], device=self._net.device))
        self._prompts[prompt] = found
        if len(self._prompts) > _PROMPTS:
            self._prompts.popitem(last=False)
        return found

    def _decode_one(self) -> list[_Request]:
        """Sample one id for each row, and compute the logits after it."""
        assert self._cache is not None
        ids, logprobs = sample_ids(self._logits, self._rows_sampling(), self._sample_numbers())
        ended: list[_Request] = []
        for slot, request in enumerate(self._rows):
            if request is None:
                continue
            request.ids.append(ids[slot])
            request.logprobs.append(logprobs[slot])
            request.finish = self._find_end(request)
            if request.finish is not None:
                ended.append(request)
                self._rows[slot] = None
        if any(self._rows):
            empty = torch.tensor([row is None for row in self._rows], device=self._net.device)
            self._cache.lengths.masked_fill_(empty, 0)  # an empty row computes something that nobody reads
            self._logits = self._net.decode(torch.tensor(ids, device=self._net.device), self._cache)
        return ended

    def _rows_sampling(self) -> list[Sampling | None]:
        return [None if row is None else row.sampling for row in self._rows]

    def _sample_numbers(self) -> list[float]:
        return [0.0 if row is None else row.random.random() for row in self._rows]

    def _find_end(self, request: _Request) -> Finish | None:
        if request.ids[-1] in self._tokenizer.stop_tokens:
            return Finish.STOP
        if request.sampling.stop and any(word in self._tokenizer.decode(request.ids) for word in request.sampling.stop):
            return Finish.STOP
        return Finish.LENGTH if len(request.ids) >= request.limit else None


def sample_ids(
    logits: Tensor, samplings: Sequence[Sampling | None], numbers: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Sample one id from each row of logits (B, V) with the row's random number between 0 and 1. Returns the ids and
    their logprobs at temperature 1. A row without sampling gives anything."""
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    scaled = logprobs
    temperatures = [1.0 if s is None or s.temperature is None else s.temperature for s in samplings]
    if any(t != 1.0 for t in temperatures):
        divisors = torch.tensor([t or 1.0 for t in temperatures], dtype=torch.float64, device=logits.device)
        scaled = torch.log_softmax(logits.double() / divisors[:, None], dim=-1)
    probabilities = scaled.exp()
    for row, sampling in enumerate(samplings):
        if sampling is not None and sampling.top_p is not None and sampling.top_p < 1.0:
            probabilities[row] = keep_nucleus(probabilities[row], sampling.top_p)
    sums = probabilities.cumsum(-1)
    points = torch.tensor(numbers, dtype=torch.float64, device=logits.device) * sums[:, -1]
    sampled = torch.searchsorted(sums, points[:, None], right=True)[:, 0].clamp_(max=logits.shape[1] - 1)
    greedy = torch.tensor([t == 0.0 for t in temperatures], device=logits.device)
    sampled = torch.where(greedy, logprobs.argmax(-1), sampled)
    return sampled.tolist(), logprobs.gather(-1, sampled[:, None])[:, 0].tolist()


def keep_nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """The probabilities (V,) without the least likely ids, of which all others together have at least `top_p`."""
    ordered, places = probabilities.sort(descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.zeros_like(probabilities)
    kept[places] = torch.where(before < top_p, ordered, torch.zeros_like(ordered))
    return kept


def make_length_error(ids: int, context: int) -> ModelError:
    """The error for a prompt that leaves no room for a reply."""
    error = ModelError(f"the prompt has {ids} ids; the context is {context}", retryable=False)
    error.too_long = True
    return error


def _refuse_unknown(sampling: Sampling) -> None:
    if sampling.extra:
        raise ModelError(
            f"sampling.extra: sampling in this process knows temperature and top_p, not {', '.join(sampling.extra)}",
            retryable=False,
        )
