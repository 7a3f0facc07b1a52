"""Reads a reply from its ids while they are sampled: pieces of text, thoughts and calls.

    ids ──> text (whole characters only) ──> before the stop texts ──> parser ──> think block ──> pieces

It shows a reader what `Codec.parse_reply` will find in the whole reply, as far as that is certain. The record does not
depend on it. A parser of your own that has no `stream` method reads whole replies only: with tools offered, such a
reply is shown when it is complete.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from ludus.models.reply_pieces import Piece, ThinkSplitter, count_overlap
from ludus.parsers import ReplyStream, Text, Thought
from ludus.tokens.codec import Codec
from ludus.types import Call, ToolSpec


@runtime_checkable
class StreamingParser(Protocol):
    """A parser that reads a reply in pieces."""

    def stream(self, tools: Sequence[ToolSpec], *, thinking: bool = False, first: int = 0) -> ReplyStream: ...


MAX_UNDECIDED = 64
"""A character has at most four bytes. If this many ids in a row make none, the rest of a reply is shown at its end."""


class TextDecoder:
    """Decodes ids that come in pieces. A character whose bytes are not all there waits."""

    __slots__ = ("_decode", "_ids", "_shown", "_text")

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        """The last ids that were shown, and those that were not. Decoding may depend on the former: some vocabularies
        drop a first space."""
        self._shown = 0
        """How many of the ids were shown."""
        self._text = ""
        """The text of those."""

    def feed(self, ids: Sequence[int]) -> str:
        """The text that is new and certain."""
        self._ids += ids
        if len(self._ids) - self._shown > MAX_UNDECIDED + len(ids):
            return ""
        text = self._decode(self._ids)
        if text.endswith("\ufffd") or not text.startswith(self._text):
            return ""
        new = text[len(self._text) :]
        del self._ids[: self._shown]
        self._shown = len(self._ids)
        self._text = self._decode(self._ids)
        return new


class ReplyDecoder:
    """One reply in token mode. Call it with ids as they come."""

    def __init__(
        self,
        codec: Codec,
        tools: Sequence[ToolSpec] = (),
        *,
        stop: Sequence[str] = (),
        thinking: bool = False,
        first: int = 0,
        raw: bool = False,
    ) -> None:
        """`raw`: the reply is plain text. The others are as in `Codec.parse_reply`."""
        self._codec = codec
        self._text = TextDecoder(codec.tokenizer.decode)
        self._stop = [word for word in stop if word]
        self._held: str = ""
        """Text that may be the beginning of a stop text."""
        self._ended = False
        self._splitter: ThinkSplitter | None = None if raw else ThinkSplitter(thinking=thinking)
        self._calls = 0
        self._parser: ReplyStream | None = None
        if tools:
            if isinstance(codec.parser, StreamingParser):
                self._parser = codec.parser.stream(tools, thinking=thinking, first=first)
            else:
                self._ended = True

    def __call__(self, ids: Sequence[int]) -> list[Piece]:
        if self._ended or not ids:
            return []
        if self._codec.ends_turn(ids):
            ids, self._ended = ids[:-1], True
        text = self._cut(self._text.feed(ids)) if ids else ""
        return self._read(text) if text else []

    def _cut(self, text: str) -> str:
        """The text up to a stop text, or to what may be the beginning of one."""
        if not self._stop:
            return text
        text, self._held = self._held + text, ""
        found = [at for word in self._stop if (at := text.find(word)) >= 0]
        if found:
            self._ended = True
            return text[: min(found)]
        overlap = max(count_overlap(text, word) for word in self._stop)
        self._held = text[len(text) - overlap :]
        return text[: len(text) - overlap]

    def _read(self, text: str) -> list[Piece]:
        if self._parser is None:
            return self._split(text)
        pieces: list[Piece] = []
        for event in self._parser.feed(text):
            match event:
                case Text():
                    pieces += self._split(event.text)
                case Thought():
                    self._splitter = None
                    pieces.append(Piece(thought=event.text))
                case Call():
                    call = Piece("", "", self._calls, event.id, event.name, event.arguments, True)
                    pieces.append(call)
                    self._calls += 1
                case _:
                    pass
        return pieces

    def _split(self, text: str) -> list[Piece]:
        return [Piece(text)] if self._splitter is None else self._splitter.feed(text)
