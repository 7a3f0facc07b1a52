"""Samples over Tinker's API: a token engine whose weights are on the service.

A sampling client belongs to one version of the weights. All models of a run share one `TinkerSampler`, which holds the
client of the newest version, so a rollout that outlives an update goes on with the new weights. Its older client is
never used again, for a reason: SkyRL's JAX backend loads the weights of an older client into the adapter that is being
trained. For the same reason requests that are under way are finished before the client is replaced.

Only stop ids or stop strings can be sent, not both. If there are stop strings, the stop tokens are sent as strings too.
"""

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from ludus.errors import ConfigError, ModelError, ModelUnusable, describe_error
from ludus.tokens import EngineFacts, Generation
from ludus.tokens.engines import DEFAULT_REPLY, parse_logprobs
from ludus.types import Finish, JsonObject, Sampling

T = TypeVar("T")

_KNOWN = frozenset({"top_k"})
"""What `sampling.extra` may contain."""


def import_tinker() -> Any:
    """The client. It is `Any` for the type checker, which runs without it."""
    try:
        return importlib.import_module("tinker")
    except ModuleNotFoundError as missing:
        raise ConfigError("training over Tinker needs its client: pip install 'ludus-train[tinker]'") from missing


Check = Callable[[], Awaitable[None]]
"""Asks whether the service is still there. Raises `ModelUnusable` if it is not."""

_CHECK_SECONDS = 15.0
"""The time between two such questions while an answer is awaited."""
_MISSES = 3
"""A service that was not there so often in a row has ended."""


async def call_service(what: str, answer: Awaitable[T], seconds: float, check: Check | None = None) -> T:
    """Wait for an answer of the service. The client itself would ask a server that has ended for hours.

    Raises:
        ModelUnusable: the user has to act: the server has ended, the key is wrong, or the account has no credit.
        ModelError: the request failed, or there was no answer in time.
    """
    asking = asyncio.ensure_future(answer)
    try:
        async with asyncio.timeout(seconds):
            misses = 0
            while check is not None and not (await asyncio.wait({asking}, timeout=_CHECK_SECONDS))[0]:
                misses = 0 if await _is_there(check, raises=misses + 1 >= _MISSES) else misses + 1
            return await asking
    except TimeoutError as error:
        raise ModelError(f"Tinker: {what}: no answer in {seconds:g} s (trainer.timeout)") from error
    except ModelError:
        raise
    except Exception as error:  # the client's own errors, and those of its HTTP library
        raise explain_fault(what, error) from error
    finally:
        asking.cancel()


async def _is_there(check: Check, *, raises: bool) -> bool:
    try:
        await check()
    except ModelUnusable:
        if raises:
            raise
        return False
    return True


def explain_fault(what: str, error: Exception) -> ModelError:
    """An error of the client as one of Ludus, by its HTTP status or by who caused it."""
    status = getattr(error, "status_code", None)
    words = f"Tinker: {what}: {describe_error(error)}"
    if status in (401, 403):
        return ModelUnusable(f"{words}. The service does not accept the key: trainer.api_key_var names its variable")
    if status == 402:
        return ModelUnusable(f"{words}. The account has no credit")
    category = getattr(error, "category", None)
    by_user = str(getattr(category, "value", category)).lower() == "user"
    refused = isinstance(status, int) and 400 <= status < 500 and status not in (408, 409, 429)
    return ModelError(words, retryable=not (by_user or refused))


class TinkerSampler:
    """The sampling client of the newest version, shared by all engines of a run."""

    def __init__(self, timeout: float, check: Check | None = None) -> None:
        self._timeout = timeout
        self._check = check
        self._client: Any = None
        self._open = 0
        self._replacing = False
        self._changed = asyncio.Condition()

    async def replace(self, make: Callable[[], Awaitable[Any]]) -> None:
        """Finish the open requests, then use the client that `make` returns. If `make` fails, the client stays."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._replacing)
            self._replacing = True
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._open)
            self._client = await make()
        finally:
            async with self._changed:
                self._replacing = False
                self._changed.notify_all()

    async def sample(self, ids: Sequence[int], params: Mapping[str, Any], n: int) -> Any:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._replacing)
            self._open += 1
            client = self._client
        try:
            tinker = import_tinker()
            answer = client.sample_async(
                prompt=tinker.ModelInput.from_ints(list(ids)),
                num_samples=n,
                sampling_params=tinker.SamplingParams(**params),
            )
            return await call_service("sampling", answer, self._timeout, self._check)
        finally:
            self._open -= 1
            async with self._changed:
                self._changed.notify_all()


class TinkerEngine:
    """A token engine on the service. `stop_tokens` end a reply: id to text."""

    def __init__(
        self, sampler: TinkerSampler, *, name: str, stop_tokens: Mapping[int, str], context: int | None = None
    ) -> None:
        self._sampler = sampler
        self._name = name
        self._stop_tokens = stop_tokens
        self._context = context

    @property
    def name(self) -> str:
        return self._name

    async def generate(self, ids: Sequence[int], sampling: Sampling, n: int = 1) -> list[Generation]:
        room = DEFAULT_REPLY if self._context is None else max(1, self._context - len(ids))
        response = await self._sampler.sample(ids, build_params(sampling, self._stop_tokens, room), n)
        found = [read_sequence(sequence, ids, self._stop_tokens) for sequence in response.sequences]
        if len(found) != n:
            raise ModelError(f"Tinker returned {len(found)} replies instead of {n}")
        return found

    async def tokenize(self, text: str) -> Sequence[int] | None:
        """None: the service has no such request."""
        return None

    async def get_facts(self) -> EngineFacts:
        return EngineFacts(context=self._context)

    async def close(self) -> None:
        """Nothing to free: the trainer owns the client."""


def build_params(sampling: Sampling, stop_tokens: Mapping[int, str], room: int) -> JsonObject:
    """Tinker's sampling parameters. All that could cut the distribution are set."""
    if unknown := sorted(set(sampling.extra) - _KNOWN):
        raise ConfigError(f"sampling.extra: Tinker knows {', '.join(sorted(_KNOWN))}, not {', '.join(unknown)}")
    stop = [*sampling.stop, *stop_tokens.values()] if sampling.stop else list(stop_tokens)
    fields: JsonObject = {
        "max_tokens": room if sampling.max_tokens is None else sampling.max_tokens,
        "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "top_k": sampling.extra.get("top_k", -1),
        "stop": stop or None,
    }
    return fields if sampling.seed is None else {**fields, "seed": sampling.seed}


def read_sequence(sequence: Any, prompt: Sequence[int], stop_tokens: Mapping[int, str]) -> Generation:
    """One reply. What follows a stop token is cut off.

    Raises:
        ModelError: it has no logprobs, or not one for each id.
    """
    ids = [int(number) for number in sequence.tokens]
    logprobs = [] if sequence.logprobs is None else [float(value) for value in sequence.logprobs]
    if len(logprobs) != len(ids):
        raise ModelError(f"Tinker returned {len(logprobs)} logprobs for {len(ids)} sampled ids", retryable=False)
    end = next((place + 1 for place, number in enumerate(ids) if number in stop_tokens), None)
    stopped = end is not None or sequence.stop_reason == "stop"
    return Generation(
        ids=tuple(ids[:end]),
        logprobs=parse_logprobs(list(logprobs[:end])) if ids else (),
        finish=Finish.STOP if stopped else Finish.LENGTH,
        prompt=tuple(prompt),
        prompt_tokens=len(prompt),
    )
