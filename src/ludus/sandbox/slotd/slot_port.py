"""A port in a slot: a listening socket on its loopback, answered by the driver.

    agent ── 127.0.0.1:PORT ──> slotd <── accept, receive, send ── driver

slotd pushes nothing. The driver asks for the next connection (`accept`), asks for data from one (`receive`), and has
data written to one (`send`). The reply comes when the work is done. So neither side buffers more than one or two pieces
of a connection per direction: an agent that sends too fast, or does not read, blocks on its own socket. An empty piece
marks the end of one direction; the other direction goes on.

Requests are numbered. A request that is repeated because its reply was lost is not carried out again.
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
"""The largest piece of a connection in one frame. Both sides use it."""
_BUFFER_BYTES = 1 << 16
_BACKLOG = 128


class NumberedRequests(Generic[T]):
    """Runs numbered requests one after the other. The latest one may be repeated."""

    def __init__(self) -> None:
        self._number = 0
        self._task: asyncio.Future[T] | None = None

    def submit(self, number: int, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """Start request `number`, or return the running or finished task of a repeated one.

        Raises ValueError for any other number, and for a new request while the last one runs.
        """
        if number == self._number + 1 and (self._task is None or self._task.done()):
            self._number, self._task = number, asyncio.ensure_future(work())
            self._task.add_done_callback(_retrieve_error)
        if number != self._number or self._task is None:
            raise ValueError(f"request {number} is out of turn")
        return self._task

    async def stop(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])


def _retrieve_error(task: asyncio.Future[Any]) -> None:
    """Mark a task's exception as retrieved, so that asyncio does not log it when no request reads it."""
    if not task.cancelled():
        task.exception()


class PortStream:
    """One connection of the agent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._receiving: NumberedRequests[bytes] = NumberedRequests()
        self._sending: NumberedRequests[None] = NumberedRequests()

    def receive(self, turn: int) -> asyncio.Future[bytes]:
        """Read what the agent has sent; empty at the end."""
        return self._receiving.submit(turn, lambda: self._reader.read(PIECE_BYTES))

    def send(self, turn: int, data: bytes) -> asyncio.Future[None]:
        """Send data to the agent; done when there is room for more. Empty data ends this direction."""
        return self._sending.submit(turn, lambda: self._send(data))

    async def _send(self, data: bytes) -> None:
        if data:
            self._writer.write(data)
            await self._writer.drain()
        elif self._writer.can_write_eof():
            self._writer.write_eof()

    async def close(self, *, abort: bool) -> None:
        """Close the connection: at once with `abort`, else after buffered data is sent."""
        await self._receiving.stop()
        await self._sending.stop()
        if abort:
            self._writer.transport.abort()
        else:
            self._writer.close()


class SlotPort:
    """A listening socket and its connections."""

    def __init__(self, name: str, listening: socket.socket) -> None:
        self.name = name
        self._listening = listening
        self._accepting: NumberedRequests[None] = NumberedRequests()
        self._streams: dict[int, PortStream] = {}

    @property
    def number(self) -> int:
        """The port number."""
        return int(self._listening.getsockname()[1])

    def accept(self, number: int) -> asyncio.Future[None]:
        """Accept the next connection, and know it by that number."""
        return self._accepting.submit(number, lambda: self._accept(number))

    async def _accept(self, number: int) -> None:
        connection, _ = await asyncio.get_running_loop().sock_accept(self._listening)
        reader, writer = await asyncio.open_connection(sock=connection, limit=_BUFFER_BYTES)
        self._streams[number] = PortStream(reader, writer)

    def get_stream(self, number: int) -> PortStream:
        if number not in self._streams:
            raise SandboxError("there is no such connection")
        return self._streams[number]

    async def drop(self, number: int, *, abort: bool) -> None:
        """Close a connection, if it exists."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            await stream.close(abort=abort)

    async def close(self) -> None:
        """Stop listening and abort all connections. Waiting clients are refused."""
        await self._accepting.stop()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # the slot may keep a copy of the socket for its next port
        self._listening.close()
        for number in tuple(self._streams):
            await self.drop(number, abort=True)


def listen_in_slot(name: str, network_socket: socket.socket | None) -> SlotPort:
    """Open a port with a free number.

    `network_socket`: a socket made in the slot's own network; None if the slot has no network of its own.
    """
    listening = socket.socket() if network_socket is None else network_socket.dup()
    try:
        listening.setblocking(False)
        if listening.getsockname()[1] == 0:
            listening.bind(("127.0.0.1", 0))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise SandboxError(f"no port could be opened in the slot: {error}", retryable=False) from error
    return SlotPort(name, listening)
