"""Requests to the optimizer: from a prompt, its values and the type of the reply to a checked reply.

A reply is one JSON object of the requested type. A bad reply is sent back with the problem, a limited number of times.
If it stays bad the result is an `UnusableReply`, which the journal records together with what was done instead. It
never crashes the run and is never silent. Each try is stored under its content address (the messages, the model, the
sampling), so that a resumed run finds the reply instead of asking again, and everything that the optimizer was shown
can be read later.

Each request carries its stage (`sampling.stage`: `analyst_failure`, `rank`, …; the name of the prompt). A simulated
optimizer can go by it. It is not sent to servers, stored or hashed.

If the server is down the run stops and can be resumed. If the server has answered before and refuses only this request
(a content filter, a context that is too long), that reply is unusable.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from ludus.encoding import canonical, replace_surrogates, to_json
from ludus.engine import derive_seed
from ludus.errors import LudusError, ModelError, ModelUnusable, comes_from_user, describe_error
from ludus.models import Model
from ludus.reflact.journal import Journal
from ludus.reflact.json_extract import extract_json
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.records import REFUSED, UnusableReply
from ludus.reflact.transcript import shorten
from ludus.store import Store, decode_record
from ludus.types import Completion, Finish, Message, Sampling

T = TypeVar("T", bound=Struct)

CALLS = "call"
"""The kind of a `CallRecord` in the store."""
_MAX_SHOWN = 8_000
"""The number of characters of a bad reply that are shown again."""


class CallRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One try of one request, as it is stored."""

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
    chars: int = 0
    """The length of a reply that was too long to be read: what is stored is what the model is shown of it."""


REPLY_CHARS = 1_000_000
"""A longer reply is neither read nor stored whole. No whole document is as long, and servers need not keep to the limit
of tokens."""
_RECORD = msgspec.json.Decoder(CallRecord)
_ANY = msgspec.json.Decoder()


class _StageSampling(Sampling, frozen=True, kw_only=True):
    """The sampling that the model gets: with the stage. Content addresses and records use the plain one."""

    stage: str = ""  # pyright: ignore[reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]


class _RequestLimits(NamedTuple):
    """What is special to a request: its most tokens, and fields beside those of all requests."""

    tokens: int | None
    extra: Mapping[str, Any]


def read_calls(store: Store) -> Iterator[CallRecord]:
    """The requests to the optimizer that a store has, with their replies, in the order in which they were stored."""
    for _, body in store.read_records(CALLS):
        yield decode_record(_RECORD, body)


class Optimizer:
    """The optimizer's model, with its prompts and the store of its replies."""

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
        shape: Callable[[Any], Any] | None = None,
        tokens: int | None = None,
        extra: Mapping[str, Any] = MappingProxyType({}),
    ) -> T | UnusableReply:
        """Ask for a reply of type `kind`; an `UnusableReply` says why there is none.

        `place` names the place in the run and must be unique within its stage. `otherwise` says what is done without a
        reply. `check` gets a reply of the right type and returns what is wrong with it, or an empty text. `shape` gets
        the JSON before it is given a type, and may put right what is plain. `tokens` and `extra` replace the length and
        the further fields that requests have.
        """
        limits = _RequestLimits(tokens or self._reply_tokens or self._sampling.max_tokens, extra)
        first = tuple(map(_clean_message, self.prompts.render_messages(prompt, values)))
        messages: tuple[Message, ...] = first
        problem = ""
        for attempt in range(1, self._tries + 1):
            try:
                record = await self._complete(prompt, messages, stage, place, attempt, limits)
            except ModelError as error:
                if error.retryable or isinstance(error, ModelUnusable) or not self._answered:
                    raise
                return self._give_up(stage, place, f"{REFUSED}: {error}", attempt, otherwise)
            reply = _parse_reply(record, kind, shape)
            problem = reply if isinstance(reply, str) else (check(reply) if check else "")
            if not problem and not isinstance(reply, str):
                return reply
            said = record.completion.message.content
            bad = Message("assistant", said if record.chars else shorten(said, _MAX_SHOWN) or "(nothing)")
            messages = (*first, bad, Message("user", self.prompts.render_part("reask", problem=problem)))
        return self._give_up(stage, place, problem, self._tries, otherwise)

    async def remember(self, kind: str, what: object, make: Callable[[], Awaitable[Any]]) -> Any:
        """Make a plain value once for `what` and store it. For proposals that do not come from this model."""
        key = hashlib.sha256(canonical((kind, what))).hexdigest()[:32]
        kept = self._store.get_record(key)
        if kept is None:
            kept = self._store.put_record(key, kind, to_json(await make()))
        return decode_record(_ANY, kept)

    def _give_up(self, stage: str, place: str, problem: str, tries: int, consequence: str) -> UnusableReply:
        event = UnusableReply(stage, place, problem, tries, consequence)
        self._journal.note(event)
        return event

    async def _complete(
        self, prompt: str, messages: tuple[Message, ...], stage: str, place: str, attempt: int, limits: "_RequestLimits"
    ) -> CallRecord:
        sampling = msgspec.structs.replace(
            self._sampling,
            seed=derive_seed(self._seed, f"{stage}/{place}", attempt),
            max_tokens=limits.tokens,
            extra={**self._sampling.extra, **limits.extra},
        )
        what = (self.prompts.get_hash(prompt), self._model.name, sampling, messages, stage, place, attempt)
        key = hashlib.sha256(canonical(what)).hexdigest()[:32]
        kept = self._store.get_record(key)
        if kept is None:
            started = time.monotonic()
            tagged = _StageSampling(**msgspec.structs.asdict(sampling), stage=prompt)
            async with self._slots:
                completion = await self._call(messages, tagged)
            record = CallRecord(
                stage=stage,
                place=place,
                attempt=attempt,
                prompt=prompt,
                prompt_hash=self.prompts.get_hash(prompt),
                model=self._model.name,
                sampling=sampling,
                messages=messages,
                completion=_cut_reply(completion),
                seconds=time.monotonic() - started,
                chars=size if (size := len(completion.message.content)) > REPLY_CHARS else 0,
            )
            kept = self._store.put_record(key, CALLS, to_json(record))
        self._answered = True
        found = decode_record(_RECORD, kept)  # as it will be after a resume
        self._journal.book("optimizer", stage, found.completion.usage)
        return found

    async def _call(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Ask the model. What a script of the user's own raises stops the run, which can be resumed."""
        try:
            return await self._model.complete(messages, (), sampling)
        except Exception as error:
            if isinstance(error, LudusError) or not comes_from_user(error):
                raise
            raise ModelUnusable(f"optimizer: {describe_error(error)}") from error


def _clean_message(message: Message) -> Message:
    """The message with valid text: values come from rollouts, whose tools may print half of a surrogate pair."""
    content = replace_surrogates(message.content)
    return message if content == message.content else msgspec.structs.replace(message, content=content)


def _cut_reply(completion: Completion) -> Completion:
    """The completion as it is stored: a reply that is too long to be read is cut, and its reasoning left out."""
    if len(completion.message.content) <= REPLY_CHARS:
        return completion
    return msgspec.structs.replace(
        completion, message=Message("assistant", shorten(completion.message.content, _MAX_SHOWN)), tokens=None
    )


def _parse_reply(record: CallRecord, kind: type[T], shape: Callable[[Any], Any] | None = None) -> T | str:
    """Parse a completion. Returns the reply, or the problem as text."""
    completion = record.completion
    if completion.finish is Finish.FILTER:
        return "the server's content filter withheld it"
    if completion.finish is Finish.LENGTH:
        return "it was cut off at the length limit; say it in fewer words"
    if (size := record.chars or len(completion.message.content)) > REPLY_CHARS:
        return f"it has {size:,} characters; at most {REPLY_CHARS:,} are read: say it in fewer words"
    try:
        value = _clean_value(extract_json(completion.message.content))
        return msgspec.convert(shape(value) if shape else value, kind, strict=False)
    except msgspec.ValidationError as error:
        return f"its JSON does not have the form that was asked for: {error}"
    except ValueError as error:
        return str(error)
    except RecursionError:
        return "its JSON is nested too deeply"


_CREDIT_FIELDS = frozenset({"form", "support", "source", "level", "evidence"})


def _clean_value(value: Any) -> Any:
    """Remove nulls, which stand for omitted fields, and what the model claims about the origin of an item: that is
    known already."""
    if isinstance(value, dict):
        fields: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return {
            key: _clean_value(item) for key, item in fields.items() if item is not None and key not in _CREDIT_FIELDS
        }
    if isinstance(value, list):
        entries: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
        return [_clean_value(item) for item in entries]
    return value
