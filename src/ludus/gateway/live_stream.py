"""A streamed answer on its way to a client, and the signs of life while the model works.

The status and the first events are sent with the first piece of a reply, or after `FIRST_SIGN` seconds without one. An
error before that has a status of its own; later it is an event. A stream that is silent for a while gets a ping. If the
client goes away, its samples end: whatever was sampled until then is recorded.
"""

import asyncio
import time
from collections.abc import Sequence

from ludus.gateway.dialect import Answer, ErrorReply, StreamWriter
from ludus.http_server import EVENTS, Responder
from ludus.models.reply_pieces import Piece, PieceStream

FIRST_SIGN = 0.25
"""Seconds after which a stream begins without a piece. Errors of the request itself come earlier."""


class LiveStream:
    """One streamed answer. `finish` or `fail` ends it.

    Parts that come in the same moment are sent together: a short reply costs one system call, as without a stream.
    """

    __slots__ = ("_loop", "_responder", "_samples", "_seen", "_waiting", "_writer")

    def __init__(self, responder: Responder, writer: StreamWriter) -> None:
        self._responder = responder
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        """Parts that are not sent yet."""
        self._seen = time.monotonic()
        """When the client last got something."""
        self._samples: list[tuple[asyncio.Task[object], PieceStream]] = []
        responder.on_lost = self._abandon

    def open_reply_stream(self, index: int, *, wants_logprobs: bool = False) -> PieceStream:
        """The sampling of one reply, which the running task samples."""

        def emit(pieces: Sequence[Piece]) -> None:
            self._add(self._writer.write(index, pieces))

        reply_stream = PieceStream(emit, wants_logprobs=wants_logprobs)
        task = asyncio.current_task()
        assert task is not None
        self._samples.append((task, reply_stream))
        return reply_stream

    def finish(self, answer: Answer) -> bool:
        """Send the rest. Returns whether the client was still connected."""
        self._start()
        return self._end(self._writer.finish(answer))

    def fail(self, error: ErrorReply) -> None:
        """Send an error in place of the rest."""
        self._start()
        self._end(self._writer.fail(error))

    @property
    def has_begun(self) -> bool:
        """Whether anything was written. An error is then an event."""
        return bool(self._waiting) or self._responder.has_begun

    def show_life(self, now: float, silence: float) -> None:
        """Begin the stream, or send a ping, if the client has heard nothing for too long."""
        if not self._responder.has_begun:
            if now - self._seen >= min(FIRST_SIGN, silence):
                self._add(b"")
        elif now - self._seen >= silence:
            self._add(self._writer.ping())

    def _add(self, data: bytes) -> None:
        """Send a part soon. If the reply is complete in the same moment, its end is sent with it."""
        if not self._waiting:
            # Twice: the task that samples the reply runs after the first callback, and may end the reply.
            self._loop.call_soon(self._loop.call_soon, self._flush)
            self._start()
        self._waiting.append(data)

    def _start(self) -> None:
        if not self.has_begun:
            self._waiting.append(self._writer.start())

    def _flush(self) -> None:
        data, self._waiting = b"".join(self._waiting), []
        if not data or self._responder.is_answered:
            return
        self._seen = time.monotonic()
        if self._responder.has_begun:
            self._responder.feed(data)
        else:
            self._responder.begin(EVENTS, data)

    def _end(self, data: bytes) -> bool:
        self._responder.on_lost = None
        data, self._waiting = b"".join((*self._waiting, data)), []
        if self._responder.has_begun:
            return self._responder.end(data)
        return self._responder.send(200, EVENTS, data)

    def _abandon(self) -> None:
        """End the samples: the client has gone."""
        for task, reply_stream in self._samples:
            reply_stream.abandoned = True
            task.cancel()


class KeepAlives:
    """The open streams of a gateway. One timer serves all of them, and runs only while there are any."""

    def __init__(self, silence: float) -> None:
        self._silence = silence
        self._streams: set[LiveStream] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: LiveStream) -> None:
        self._streams.add(stream)
        if self._timer is None:
            self._arm()

    def discard(self, stream: LiveStream) -> None:
        self._streams.discard(stream)

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(min(FIRST_SIGN, self._silence) / 2, self._check)

    def _check(self) -> None:
        self._timer = None
        now = time.monotonic()
        for stream in tuple(self._streams):
            stream.show_life(now, self._silence)
        if self._streams:
            self._arm()
