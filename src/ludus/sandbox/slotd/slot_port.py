"""A door in a slot: one port on its loopback, behind which the driver answers.

    agent ── 127.0.0.1:PORT ──> slotd <── accept, hear, say ── driver

Nothing is pushed. The driver asks for the next connection (`accept`), for what came in on one (`hear`), and has bytes
written to one (`say`); an answer comes when there is something to tell. So neither side holds more than a piece or two
of a connection in each direction: an agent that sends too fast, or does not read, is held up by its own socket. An
empty piece is the end of that direction, the other goes on.

Requests are numbered. One that is repeated, because its answer was lost, is not carried out again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from ludus.errors import SandboxError

T = TypeVar("T")

PIECE_BYTES = 1 << 17
"""How much of a connection travels in one message, at most. Both sides use it."""
_BUFFER_BYTES = 1 << 16
_BACKLOG = 128


class Turns(Generic[T]):
    """One piece of work after the other, by number. The last one may be asked for again."""

    def __init__(self) -> None:
        self._number = 0
        self._task: asyncio.Future[T] | None = None

    def take(self, number: int, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        if number == self._number + 1 and (self._task is None or self._task.done()):
            self._number, self._task = number, asyncio.ensure_future(work())
            self._task.add_done_callback(_seen)
        if number != self._number or self._task is None:
            raise ValueError(f"request {number} is out of turn")
        return self._task

    async def stop(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])


def _seen(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


class Stream:
    """One connection of the agent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._hearing: Turns[bytes] = Turns()
        self._saying: Turns[None] = Turns()

    def hear(self, turn: int) -> asyncio.Future[bytes]:
        """What the agent has sent; nothing at the end."""
        return self._hearing.take(turn, lambda: self._reader.read(PIECE_BYTES))

    def say(self, turn: int, data: bytes) -> asyncio.Future[None]:
        """Send something to the agent, done when there is room for more. Nothing: that was all."""
        return self._saying.take(turn, lambda: self._say(data))

    async def _say(self, data: bytes) -> None:
        if data:
            self._writer.write(data)
            await self._writer.drain()
        elif self._writer.can_write_eof():
            self._writer.write_eof()

    async def close(self, *, cut: bool) -> None:
        """End it: after what was said is sent, or at once."""
        await self._hearing.stop()
        await self._saying.stop()
        if cut:
            self._writer.transport.abort()
        else:
            self._writer.close()


class Door:
    """A listening socket and the connections through it."""

    def __init__(self, name: str, listening: socket.socket) -> None:
        self.name = name
        self._listening = listening
        self._accepting: Turns[None] = Turns()
        self._streams: dict[int, Stream] = {}

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def accept(self, number: int) -> asyncio.Future[None]:
        """The next connection, which has that number from then on."""
        return self._accepting.take(number, lambda: self._accept(number))

    async def _accept(self, number: int) -> None:
        connection, _ = await asyncio.get_running_loop().sock_accept(self._listening)
        reader, writer = await asyncio.open_connection(sock=connection, limit=_BUFFER_BYTES)
        self._streams[number] = Stream(reader, writer)

    def stream(self, number: int) -> Stream:
        if number not in self._streams:
            raise SandboxError("there is no such connection")
        return self._streams[number]

    async def drop(self, number: int, *, cut: bool) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            await stream.close(cut=cut)

    async def shut(self) -> None:
        """Nobody gets through any more. Those who wait at it are turned away."""
        await self._accepting.stop()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # the slot may keep a copy of it, for the next door
        self._listening.close()
        for number in tuple(self._streams):
            await self.drop(number, cut=True)


def open_door(name: str, inside: socket.socket | None) -> Door:
    """A door that listens on a free port. `inside`: a socket of the slot's network, where it has one of its own."""
    listening = socket.socket() if inside is None else inside.dup()
    try:
        listening.setblocking(False)
        if listening.getsockname()[1] == 0:
            listening.bind(("127.0.0.1", 0))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise SandboxError(f"no door into the slot: {error}", retryable=False) from error
    return Door(name, listening)
