"""Asking the optimizer: a prompt, its fields and the type of the reply in; a checked reply out.

A reply is one JSON object of the type that was asked for. One that is not is sent back, with what is wrong with it, a
bounded number of times; one that stays bad becomes an `Unusable`, noted in the journal with what was done without it.
It is never a crash and never silence. Each try is kept in the store under its content address (the conversation, the
model, the sampling), so that a resumed run finds the reply instead of asking again, and everything the optimizer was
ever shown can be read afterwards.

A server that is down stops the run, which can be resumed. A server that has answered before and refuses this one
conversation (a content filter, a context that is too long) makes that reply unusable.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ludus.errors import ModelError
from ludus.models import Model
from ludus.reflact.journal import Journal, Store
from ludus.reflact.json_extract import extract_json
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.records import Unusable
from ludus.reflact.transcript import shortened
from ludus.rollout import derive_seed
from ludus.types import Completion, Finish, Message, Sampling, canonical, to_json

T = TypeVar("T", bound=Struct)

CALLS = "call"
"""The kind of a `CallRecord` in the store."""
_SHOWN = 8_000
"""How much of a bad reply is shown again, in characters."""


class CallRecord(Struct, frozen=True, kw_only=True):
    """One try of one request, as it is kept."""

    stage: str
    place: str
    attempt: int
    prompt: str
    prompt_hash: str
    model: str
    sampling: Sampling
    messages: tuple[Message, ...]
    completion: Completion
    seconds: float


_RECORD = msgspec.json.Decoder(CallRecord)


class Optimizer:
    """The optimizer's model, with its prompts and its memory of what it was asked."""

    def __init__(
        self,
        model: Model,
        prompts: Prompts,
        store: Store,
        journal: Journal,
        *,
        sampling: Sampling = Sampling(),  # frozen
        tries: int = 3,
        reply_tokens: int | None = None,
        concurrency: int = 16,
        seed: int = 0,
    ) -> None:
        self.prompts = prompts
        self._model = model
        self._store = store
        self._journal = journal
        self._sampling = sampling
        self._tries = tries
        self._reply_tokens = reply_tokens
        self._slots = asyncio.Semaphore(concurrency)
        self._seed = seed
        self._answered = False

    async def ask(
        self,
        prompt: str,
        values: Mapping[str, str],
        kind: type[T],
        *,
        stage: str,
        place: str,
        otherwise: str,
        check: Callable[[T], str] | None = None,
        tokens: int | None = None,
    ) -> T | Unusable:
        """A reply of type `kind`, or why there is none.

        `place` says where in the run this is asked and must be unique to it. `otherwise` says what is done without a
        reply. `check` returns what is wrong with a reply that has the right type, or nothing.
        """
        first = self.prompts.messages(prompt, values)
        messages: tuple[Message, ...] = first
        problem = ""
        for attempt in range(1, self._tries + 1):
            try:
                completion = await self._complete(prompt, messages, stage, place, attempt, tokens)
            except ModelError as error:
                if error.retryable or not self._answered:
                    raise
                return self._give_up(stage, place, f"the server refused it: {error}", attempt, otherwise)
            reply = _read(completion, kind)
            problem = reply if isinstance(reply, str) else (check(reply) if check else "")
            if not problem and not isinstance(reply, str):
                return reply
            bad = Message("assistant", shortened(completion.message.content, _SHOWN) or "(nothing)")
            messages = (*first, bad, Message("user", self.prompts.part("reask", problem=problem)))
        return self._give_up(stage, place, problem, self._tries, otherwise)

    async def remembered(self, kind: str, what: object, make: Callable[[], Awaitable[Any]]) -> Any:
        """A plain value that is made once for `what`, for ideas that come from elsewhere than this model."""
        key = hashlib.sha256(canonical((kind, what))).hexdigest()[:32]
        kept = self._store.get_record(key)
        if kept is None:
            kept = self._store.put_record(key, kind, to_json(await make()))
        return msgspec.json.decode(kept)

    def _give_up(self, stage: str, place: str, problem: str, tries: int, consequence: str) -> Unusable:
        event = Unusable(stage, place, problem, tries, consequence)
        self._journal.note(event)
        return event

    async def _complete(
        self, prompt: str, messages: tuple[Message, ...], stage: str, place: str, attempt: int, tokens: int | None
    ) -> Completion:
        sampling = msgspec.structs.replace(
            self._sampling,
            seed=derive_seed(self._seed, f"{stage}/{place}", attempt),
            max_tokens=tokens or self._reply_tokens or self._sampling.max_tokens,
        )
        what = (self.prompts.hash(prompt), self._model.name, sampling, messages, stage, place, attempt)
        key = hashlib.sha256(canonical(what)).hexdigest()[:32]
        kept = self._store.get_record(key)
        if kept is None:
            started = time.monotonic()
            async with self._slots:
                completion = await self._model.complete(messages, (), sampling)
            record = CallRecord(
                stage=stage,
                place=place,
                attempt=attempt,
                prompt=prompt,
                prompt_hash=self.prompts.hash(prompt),
                model=self._model.name,
                sampling=sampling,
                messages=messages,
                completion=completion,
                seconds=time.monotonic() - started,
            )
            kept = self._store.put_record(key, CALLS, to_json(record))
        self._answered = True
        completion = _RECORD.decode(kept).completion
        self._journal.book("optimizer", stage, completion.usage)
        return completion


def _read(completion: Completion, kind: type[T]) -> T | str:
    """The reply, or what is wrong with it."""
    if completion.finish is Finish.FILTER:
        return "the server's content filter withheld it"
    if completion.finish is Finish.LENGTH:
        return "it was cut off at the length limit; say it in fewer words"
    try:
        return msgspec.convert(_cleaned(extract_json(completion.message.content)), kind, strict=False)
    except msgspec.ValidationError as error:
        return f"its JSON does not have the form that was asked for: {error}"
    except ValueError as error:
        return str(error)


_OURS = frozenset({"form", "support", "source", "level", "evidence"})


def _cleaned(value: Any) -> Any:
    """Without nulls, which stand for fields that were left out, and without claims about where an item comes from:
    that is known, and not the model's to say."""
    if isinstance(value, dict):
        fields: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return {key: _cleaned(item) for key, item in fields.items() if item is not None and key not in _OURS}
    if isinstance(value, list):
        entries: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
        return [_cleaned(item) for item in entries]
    return value
