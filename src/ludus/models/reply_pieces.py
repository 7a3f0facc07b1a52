"""A reply while it is sampled: its pieces, their reader, and reasoning that comes as text.

A model that can stream has a second method beside `complete`:

    completion = await model.stream(messages, tools, sampling, reply_stream)

It passes pieces to the `PieceStream` as soon as they are certain, and returns the same `Completion` as `complete`
would. All pieces together are the message of the completion, or its beginning. The reader takes the rest from the
completion. A reader that goes away sets `abandoned` and cancels the task. The model then closes its connection, which
ends the sample at the server, and returns what has come until then.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from ludus.types import Completion, Message, Sampling, ToolSpec


class Piece(Struct, frozen=True, gc=False):
    """A part of a reply: some text, some reasoning, or some of a call."""

    text: str = ""
    thought: str = ""
    call: int = -1
    """The number of the call in the reply; -1 if this is no part of a call. The first part of a call has its name."""
    id: str = ""
    name: str = ""
    arguments: str = ""
    is_whole: bool = False
    """Whether this is a whole call."""


Emit = Callable[[Sequence[Piece]], None]


class PieceStream:
    """One reply that somebody reads while it is sampled."""

    __slots__ = ("_emit", "abandoned", "begun", "logprobs", "wants_logprobs")

    def __init__(self, emit: Emit | None = None, *, wants_logprobs: bool = False) -> None:
        self._emit = emit
        self.begun = False
        """Whether the reader has seen a piece. A sample that failed is then not repeated."""
        self.abandoned = False
        """Whether the reader has gone."""
        self.wants_logprobs = wants_logprobs
        """Whether the reader asked for the server's logprobs."""
        self.logprobs: list[Any] = []
        """The server's logprobs in the form of the chat API, if they were wanted."""

    def emit(self, pieces: Sequence[Piece]) -> None:
        """Pass pieces on."""
        if pieces and self._emit is not None:
            self.begun = True
            self._emit(pieces)


@runtime_checkable
class StreamingModel(Protocol):
    """A model that passes a reply on while it is sampled."""

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling, reply_stream: PieceStream
    ) -> Completion: ...


_OPEN, _CLOSE = "<think>", "</think>"


class ThinkSplitter:
    """Splits a think block off the start of a text that comes in pieces, as `openai.split_think` does with a whole one.

    A closing tag without an opening one is only understood if `thinking` says that the prompt has opened the block.
    """

    __slots__ = ("_any", "_held", "_state", "_thinking")

    def __init__(self, *, thinking: bool = False) -> None:
        self._thinking = thinking
        self._any = False
        """Whether a part of the thought was passed on."""
        self._state = "start"
        self._held = ""
        """Text on which it cannot be decided yet."""

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain now."""
        if self._state == "text":
            return [Piece(text)] if text else []
        self._held += text
        pieces: list[Piece] = []
        if self._state == "start" and not self._start():
            return pieces
        if self._state == "thought":
            self._read_thought(pieces)
        if self._state == "after":
            self._held = self._held.lstrip()
            if self._held:
                self._state = "text"
        if self._state == "text" and self._held:
            pieces.append(Piece(self._held))
            self._held = ""
        return pieces

    def _start(self) -> bool:
        """Decide whether the text begins with a thought. Returns whether that is known."""
        begin = self._held.lstrip()
        if begin.startswith(_OPEN):
            self._state, self._held = "thought", begin[len(_OPEN) :]
        elif _OPEN.startswith(begin):
            return False
        elif self._thinking:
            self._state, self._held = "thought", begin
        else:
            self._state = "text"
        return True

    def _read_thought(self, pieces: list[Piece]) -> None:
        if not self._any:
            self._held = self._held.lstrip()
        end = self._held.find(_CLOSE)
        if end >= 0:
            thought, self._held, self._state = self._held[:end].rstrip(), self._held[end + len(_CLOSE) :], "after"
        else:
            # White space at the end may belong to the tag, and the tag may have begun.
            certain = self._held[: len(self._held) - count_overlap(self._held, _CLOSE)].rstrip()
            thought, self._held = certain, self._held[len(certain) :]
        if thought:
            self._any = True
            pieces.append(Piece(thought=thought))


def count_overlap(text: str, word: str) -> int:
    """How many characters at the end of the text are the beginning of the word."""
    for size in range(min(len(word) - 1, len(text)), 0, -1):
        if text.endswith(word[:size]):
            return size
    return 0
