"""A toy engine with a real vocabulary. It gives scripted replies, in ids that no tokenizer would choose.

Real models sample text in pieces that encoding the text again does not reproduce: a word in two halves, a character in
single bytes, a tag letter by letter. The toy does this at random, which makes it the hardest engine for code that
encodes text again. All prompts and replies are kept in `log`, to compare with.

It is deterministic: the same replies, prompts and seed give the same ids and logprobs. `engine_standin` serves it over
HTTP in the wire formats of the real engines.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ludus.errors import ModelError
from ludus.models.reply_pieces import PieceStream
from ludus.tokens import EngineFacts, Generation, TakeIds
from ludus.tokens.tokenizer import Tokenizer
from ludus.types import Finish, Sampling

Replies = Callable[[str], str]
"""Gets the text of a prompt and returns the text of the reply."""


@dataclass(frozen=True)
class ToySample:
    """One prompt and the reply to it."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    text: str | None
    """None if the reply was cut."""


class ToyEngine:
    """Gives scripted replies: a list is used once, in order; a function gets the text of the prompt."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        replies: Replies | Sequence[str],
        *,
        seed: int = 0,
        scatter: float = 0.3,
        end: str = "",
    ) -> None:
        self.tokenizer = tokenizer
        self.log: list[ToySample] = []
        self.scatter = scatter
        """The probability with which a text is cut after a byte."""
        self.replies = replies if callable(replies) else _make_player(list(replies))
        named = [number for number, text in tokenizer.stop_tokens.items() if text == end]
        self._end = (named or list(tokenizer.stop_tokens) or [None])[0]
        self._bytes = _find_byte_ids(tokenizer)
        self._random = random.Random(seed)

    @property
    def name(self) -> str:
        return "toy"

    async def generate(self, ids: Sequence[int], sampling: Sampling, n: int = 1) -> list[Generation]:
        return [_make_generation(self.sample(ids, sampling)) for _ in range(n)]

    async def stream(
        self, ids: Sequence[int], sampling: Sampling, reply_stream: PieceStream, begin: Callable[[], TakeIds]
    ) -> Generation:
        """Sample one reply, and pass on one id at a time. If the reader goes away, the rest is not sampled."""
        sampled, take, count = self.sample(ids, sampling), begin(), 0
        try:
            for number in sampled.ids:
                reply_stream.emit(take((number,)))
                count += 1
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not reply_stream.abandoned or task.uncancel():
                raise
            sampled = replace(
                sampled, ids=sampled.ids[:count], logprobs=sampled.logprobs[:count], finish=Finish.OTHER, text=None
            )
            self.log[-1] = sampled
        return _make_generation(sampled)

    async def tokenize(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    async def get_facts(self) -> EngineFacts:
        return EngineFacts(vocabulary=self.tokenizer.size)

    async def close(self) -> None:
        """Nothing to close."""

    def sample(self, prompt: Sequence[int], sampling: Sampling, text: str | None = None) -> ToySample:
        """Sample one reply: the given text, or the next reply of the script."""
        text = self.replies(self.tokenizer.decode(prompt)) if text is None else text
        ids = self.scatter_ids(text)
        finish, limit = Finish.STOP, sampling.max_tokens
        stopped = self._find_stop(ids, sampling.stop)
        if stopped is not None:
            ids = ids[:stopped]
        elif limit is not None and len(ids) >= limit:
            ids, finish = ids[:limit], Finish.LENGTH
        elif self._end is not None:
            ids = [*ids, self._end]
        logprobs = tuple(-((number * 31 + place * 17) % 997 + 1) / 100 for place, number in enumerate(ids))
        decoded = self.tokenizer.decode(ids[:-1] if ids and ids[-1] in self.tokenizer.stop_tokens else ids)
        for word in sampling.stop:
            decoded = decoded.partition(word)[0]
        sampled = ToySample(tuple(prompt), tuple(ids), logprobs, finish, decoded)
        self.log.append(sampled)
        return sampled

    def _find_stop(self, ids: Sequence[int], stop: Sequence[str]) -> int | None:
        """The number of ids up to the end of the first stop string; None if there is none."""
        if stop and any(word in self.tokenizer.decode(ids) for word in stop):
            return next(
                k for k in range(1, len(ids) + 1) if any(word in self.tokenizer.decode(ids[:k]) for word in stop)
            )
        return None

    def scatter_ids(self, text: str) -> list[int]:
        """Encode a text in pieces that are cut at random places, also inside characters."""
        data = text.encode()
        ids: list[int] = []
        start = 0
        while start < len(data):
            end = start + 1
            while end < len(data) and self._random.random() >= self.scatter:
                end += 1
            ids += self._encode_piece(data[start:end])
            start = end
        return ids

    def _encode_piece(self, data: bytes) -> list[int]:
        try:
            ids = self.tokenizer.encode(data.decode())
        except UnicodeDecodeError:
            return [self._bytes[byte] for byte in data]
        return ids if self.tokenizer.decode(ids).encode() == data else [self._bytes[byte] for byte in data]


def _make_generation(sampled: ToySample) -> Generation:
    return Generation(
        ids=sampled.ids, logprobs=sampled.logprobs, finish=sampled.finish, text=sampled.text, prompt=sampled.prompt
    )


def _make_player(replies: list[str]) -> Replies:
    def play(_: str) -> str:
        if not replies:
            raise ModelError("the toy engine has no reply left", retryable=False)
        return replies.pop(0)

    return play


def _find_byte_ids(tokenizer: Tokenizer) -> list[int]:
    """The id of every single byte, in either of the two spellings that vocabularies use."""
    found: list[int] = []
    for byte, letter in enumerate(_list_byte_letters()):
        number = tokenizer.find_id(f"<0x{byte:02X}>")
        number = tokenizer.find_id(letter) if number is None else number
        found.append(0 if number is None else number)
    return found


def _list_byte_letters() -> list[str]:
    """The letters with which byte-level vocabularies write bytes: printable ones as they are, others shifted up."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    shifted = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(256)]
