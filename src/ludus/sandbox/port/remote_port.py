"""The driver's half of a door in a slot elsewhere: connections of the slot, carried over the link to whoever answers.

    agent ──> slotd (`slotd/door.py`) ══ accept, hear, say over the link ══> socket pair ──> the answering protocol

Each connection is a socket pair here, of which the answering protocol has one end, as if it had accepted it; nothing
listens on this host. A connection has one request under way in each direction, so buffers are bounded at both ends and
in between. Where one direction ends, the other goes on. Connections are cut when the block is left, the slot is reset
or closed, the link dies or the owner is cancelled. At most `STREAMS` are open at a time: further ones wait in the slot,
at its port.
"""

import asyncio
import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

from ludus.errors import SandboxError
from ludus.sandbox.port.local_port import Answer
from ludus.sandbox.remote.link import Link
from ludus.sandbox.slotd.frames import Message
from ludus.sandbox.slotd.slot_port import PIECE_BYTES
from ludus.sandbox.teardown import to_the_end

STREAMS = 64
_SECONDS = 60.0


@asynccontextmanager
async def open_passage(link: Link, slot: str, answer: Answer) -> AsyncGenerator[int, None]:
    """A door in a slot behind a link. See `doorway.open_door`."""
    passage = _Passage(link, slot, answer)
    try:
        yield await passage.open()
    finally:
        await to_the_end(passage.close())


class _Passage:
    def __init__(self, link: Link, slot: str, answer: Answer) -> None:
        self._link = link
        self._place = {"slot": slot, "door": secrets.token_hex(4)}
        self._answer = answer
        self._room = asyncio.Semaphore(STREAMS)
        self._carrying: asyncio.Task[None] | None = None

    async def open(self) -> int:
        """Open the door and begin to carry; its port."""
        reply = await self._link.call({"op": "door", **self._place}, seconds=_SECONDS)
        self._carrying = asyncio.create_task(self._carry_all())
        return int(reply.head["port"])

    async def close(self) -> None:
        """Cut what is open, and shut the door, even one that was asked for in vain."""
        if self._carrying is not None:
            self._carrying.cancel()
            await asyncio.wait((self._carrying,))
        await self._shut()
        if self._carrying is not None and not self._carrying.cancelled():
            self._carrying.result()

    async def _shut(self) -> None:
        with suppress(SandboxError):  # then there is none
            await self._link.call({"op": "shut", **self._place}, seconds=_SECONDS)

    async def _carry_all(self) -> None:
        """One connection after the other, until it is cancelled or there can be no more."""
        try:
            async with asyncio.TaskGroup() as streams:
                for number in count(1):
                    await self._room.acquire()
                    await self._ask("accept", stream=number)
                    streams.create_task(self._carry(number))
        except* SandboxError:
            pass  # the link is dead, or the slot ended: whoever runs something there hears of it
        await self._shut()  # else agents would wait at it in vain

    async def _carry(self, number: int) -> None:
        """One connection, from its beginning to its end."""
        whole = False
        try:
            async with self._answered() as (reader, writer), asyncio.TaskGroup() as directions:
                directions.create_task(self._hear(number, writer))
                directions.create_task(self._say(number, reader))
            whole = True
        except* (SandboxError, OSError):
            pass  # one of its ends is gone, and takes the other along
        try:
            with suppress(SandboxError):
                await self._ask("drop", stream=number, cut=not whole)
        finally:
            self._room.release()

    @asynccontextmanager
    async def _answered(self) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
        """A connection to whoever answers. It is cut if the block fails."""
        ours, theirs = socket.socketpair()
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            theirs.close()
            raise
        try:
            await asyncio.get_running_loop().create_unix_connection(self._answer, sock=theirs)
            yield reader, writer
        except BaseException:
            writer.transport.abort()
            raise
        writer.close()

    async def _hear(self, number: int, writer: asyncio.StreamWriter) -> None:
        for turn in count(1):
            piece = (await self._ask("hear", stream=number, turn=turn)).body
            if not piece:
                writer.write_eof()
                return
            writer.write(piece)
            await writer.drain()

    async def _say(self, number: int, reader: asyncio.StreamReader) -> None:
        for turn in count(1):
            piece = await reader.read(PIECE_BYTES)
            await self._ask("say", piece, stream=number, turn=turn)
            if not piece:
                return

    async def _ask(self, operation: str, body: bytes = b"", **more: Any) -> Message:
        """A request that may take as long as the agent likes; the link's heartbeat tells whether slotd lives."""
        return await self._link.call({"op": operation, **self._place, **more}, body, seconds=None)
