"""The driver's half of a port in a remote slot: relays the slot's connections over the link to a protocol here.

    agent ──> slotd (`slotd/slot_port.py`) ══ accept, receive, send over the link ══> socket pair ──> the protocol

Each connection is a socket pair on this host. The protocol gets one end, as if it had accepted the connection; nothing
listens on this host. A connection has at most one request in flight per direction, so buffers are bounded on both sides
and on the link. When one direction ends, the other goes on. Connections are aborted when the block is left, when the
slot is reset or closed, when the link dies, or when the owning task is cancelled. At most `STREAMS` connections are
open at a time. Further ones wait in the backlog of the slot's port.
"""

import asyncio
import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

from ludus.errors import SandboxError
from ludus.sandbox.port.local_port import ProtocolFactory
from ludus.sandbox.remote.link import Link
from ludus.sandbox.slotd.frames import Frame
from ludus.sandbox.slotd.slot_port import PIECE_BYTES
from ludus.sandbox.teardown import run_shielded

STREAMS = 64
_SECONDS = 60.0


@asynccontextmanager
async def open_remote_port(link: Link, slot: str, make_protocol: ProtocolFactory) -> AsyncGenerator[int, None]:
    """Open a port in a slot behind a link. See `local_port.open_port`."""
    port = _RemotePort(link, slot, make_protocol)
    try:
        yield await port.open()
    finally:
        await run_shielded(port.close())


class _RemotePort:
    def __init__(self, link: Link, slot: str, make_protocol: ProtocolFactory) -> None:
        self._link = link
        self._address = {"slot": slot, "port": secrets.token_hex(4)}
        self._make_protocol = make_protocol
        self._free_streams = asyncio.Semaphore(STREAMS)
        self._relaying: asyncio.Task[None] | None = None

    async def open(self) -> int:
        """Open the port, start the relay and return the port number."""
        reply = await self._link.call({"op": "open_port", **self._address}, seconds=_SECONDS)
        self._relaying = asyncio.create_task(self._relay_all())
        return int(reply.head["number"])

    async def close(self) -> None:
        """Abort open connections and close the port. Closes it also if the request to open it failed."""
        if self._relaying is not None:
            self._relaying.cancel()
            await asyncio.wait((self._relaying,))
        await self._close_port()
        if self._relaying is not None and not self._relaying.cancelled():
            self._relaying.result()

    async def _close_port(self) -> None:
        with suppress(SandboxError):  # the port does not exist
            await self._link.call({"op": "close_port", **self._address}, seconds=_SECONDS)

    async def _relay_all(self) -> None:
        """Accept connections until cancelled or until the link or the slot ends."""
        try:
            async with asyncio.TaskGroup() as streams:
                for number in count(1):
                    await self._free_streams.acquire()
                    await self._request("accept", stream=number)
                    streams.create_task(self._relay(number))
        except* SandboxError:
            pass  # the link is dead or the slot has ended: the next command in the slot raises
        await self._close_port()  # otherwise agents would wait for an answer forever

    async def _relay(self, number: int) -> None:
        """Relay one connection until it ends."""
        complete = False
        try:
            async with self._connect() as (reader, writer), asyncio.TaskGroup() as directions:
                directions.create_task(self._receive(number, writer))
                directions.create_task(self._send(number, reader))
            complete = True
        except* (SandboxError, OSError):
            pass  # one end is gone, so the other end is closed too
        try:
            with suppress(SandboxError):
                await self._request("drop", stream=number, abort=not complete)
        finally:
            self._free_streams.release()

    @asynccontextmanager
    async def _connect(self) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
        """Open a connection to a new protocol. It is aborted if the block raises."""
        ours, theirs = socket.socketpair()
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            theirs.close()
            raise
        try:
            await asyncio.get_running_loop().create_unix_connection(self._make_protocol, sock=theirs)
            yield reader, writer
        except BaseException:
            writer.transport.abort()
            raise
        writer.close()

    async def _receive(self, number: int, writer: asyncio.StreamWriter) -> None:
        """Relay from the agent to the protocol."""
        for turn in count(1):
            piece = (await self._request("receive", stream=number, turn=turn)).body
            if not piece:
                writer.write_eof()
                return
            writer.write(piece)
            await writer.drain()

    async def _send(self, number: int, reader: asyncio.StreamReader) -> None:
        """Relay from the protocol to the agent."""
        for turn in count(1):
            piece = await reader.read(PIECE_BYTES)
            await self._request("send", piece, stream=number, turn=turn)
            if not piece:
                return

    async def _request(self, operation: str, body: bytes = b"", **more: Any) -> Frame:
        """Send a request without a time limit: it waits for the agent. The link's heartbeat notices if slotd dies."""
        return await self._link.call({"op": operation, **self._address, **more}, body, seconds=None)
