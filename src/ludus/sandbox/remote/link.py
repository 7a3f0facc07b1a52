"""The driver's end of a conversation with a `slotd`.

A `Link` carries requests and their answers. `StdioLink` does so over any two-way stream of bytes (a `Channel`): a
program's stdin and stdout, the attached streams of a container. `HttpLink` does so over HTTP, for a slotd that listens
on a port.

Guarantees of both: a request ends in its answer or in a `SandboxError`, within its time limit; a heartbeat tells the
other side that the driver lives, and this side that slotd does, so that a vanished host is noticed while a long command
runs; after `close` nothing of the link is left here. Over HTTP a request may be sent again when its answer was lost:
slotd knows executions by their id, and requests to a port by their number, and does nothing twice.
"""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

from ludus.errors import SandboxError
from ludus.http_client import Client, HttpError, Timeouts
from ludus.sandbox.remote.bundle import build_shipment
from ludus.sandbox.slotd import frames as wire
from ludus.sandbox.slotd.frames import Frame
from ludus.sandbox.teardown import run_shielded

_BEATS_PER_LAPSE = 5
_GOODBYE_SECONDS = 5.0
_WORDS_SECONDS = 2.0
_WAIT_SECONDS = 20.0
"""How long one HTTP request waits for a command; a longer command is asked for again."""
_LASTING = ("run", "accept", "receive", "send")
"""Requests whose answer depends on a command or an agent, and may take long."""
_RETRY_PAUSES = (0.1, 0.3, 1.0, 2.0, 4.0)


class Channel(Protocol):
    """A two-way stream of bytes to a program."""

    def send(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        """Wait until what was sent is on its way. Raises OSError when it cannot be."""
        ...

    async def receive(self) -> bytes:
        """Some bytes; none at the end."""
        ...

    def get_stderr(self) -> str:
        """What the program has said on its stderr, or why the stream ended."""
        ...

    async def close(self) -> None:
        """End the program, or at least the stream. Bounded in time, safe to call twice."""
        ...


class Link(Protocol):
    @property
    def alive(self) -> bool: ...

    async def call(self, head: Mapping[str, Any], body: bytes = b"", *, seconds: float | None) -> Frame:
        """Ask for something. Raises SandboxError when it is refused, or no answer comes within `seconds`. Without a
        limit, the heartbeat still tells when slotd is gone."""
        ...

    async def close(self) -> None: ...


class _Heartbeat:
    """A heartbeat: calls, one after the other, until one fails."""

    def __init__(self, link: Link, lapse: float) -> None:
        self._task = asyncio.create_task(self._beat(link, lapse))

    async def _beat(self, link: Link, lapse: float) -> None:
        with suppress(SandboxError):  # the link knows that it is dead, and tells whoever uses it
            while True:
                await asyncio.sleep(lapse / _BEATS_PER_LAPSE)
                await link.call({"op": "beat"}, seconds=lapse)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))


async def _send_bye(link: Link, beats: _Heartbeat | None) -> None:
    if beats is not None:
        await beats.stop()
    if link.alive:
        with suppress(SandboxError):
            await link.call({"op": "exit"}, seconds=_GOODBYE_SECONDS)


# ---- stdio --------------------------------------------------------------------------------------------------------


class StdioLink:
    """Frames over a channel. Many requests may be under way at once."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._dead = ""
        self._listener = asyncio.create_task(self._listen())
        self._beats: _Heartbeat | None = None

    @property
    def alive(self) -> bool:
        return not self._dead

    async def start(self, settings: Mapping[str, Any], *, seconds: float, lapse: float) -> Frame:
        """Send slotd to the other side and greet it. `lapse`: silence after which each takes the other for dead."""
        self._channel.send(build_shipment())
        hello = {"op": "hello", "version": wire.VERSION, **settings, "lapse": lapse}
        about = await self.call(hello, seconds=seconds)
        self._beats = _Heartbeat(self, lapse)
        return about

    async def call(self, head: Mapping[str, Any], body: bytes = b"", *, seconds: float | None) -> Frame:
        self._raise_if_dead()
        number = next(self._numbers)
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(seconds):
                self._channel.send(wire.pack(Frame({"id": number, **head}, body)))
                await self._channel.drain()
                return _raise_if_refused(await answer)
        except TimeoutError:
            self._mark_dead(_describe_timeout(head, seconds))
            raise SandboxError(self._dead) from None
        except OSError as error:
            await asyncio.wait((self._listener,), timeout=_WORDS_SECONDS)  # the end of the stream may tell more
            self._mark_dead(f"the connection is lost: {error}")
            raise SandboxError(self._dead) from error
        finally:
            del self._waiting[number]
            if answer.done() and not answer.cancelled():
                answer.exception()

    async def close(self) -> None:
        await run_shielded(self._close())

    async def _close(self) -> None:
        await _send_bye(self, self._beats)
        self._mark_dead("the link is closed")
        self._listener.cancel()
        await asyncio.wait((self._listener,))
        await self._channel.close()

    async def _listen(self) -> None:
        unpacker = wire.Unpacker()
        try:
            while data := await self._channel.receive():
                for message in unpacker.feed(data):
                    answer = self._waiting.get(message.head.get("id", 0))
                    if answer is not None and not answer.done():
                        answer.set_result(message)
        except OSError as error:
            self._mark_dead(f"the connection is lost: {error}")
        except wire.FrameError as garbled:
            self._mark_dead(f"what came back is not from slotd: {garbled}")
        finally:  # also when cancelled: whoever waits for an answer would wait in vain
            self._mark_dead(f"the connection ended: {_shorten(self._channel.get_stderr())}".rstrip(": "))

    def _mark_dead(self, reason: str) -> None:
        if self._dead:
            return
        self._dead = reason
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(SandboxError(reason))

    def _raise_if_dead(self) -> None:
        if self._dead:
            raise SandboxError(self._dead)


def _shorten(words: str) -> str:
    """Several lines as one."""
    return "; ".join(line.strip() for line in words.splitlines() if line.strip("@ \r\t"))


def _describe_timeout(head: Mapping[str, Any], seconds: float | None) -> str:
    return f"no answer to '{head['op']}'" + ("" if seconds is None else f" within {seconds:g} s")


def _raise_if_refused(message: Frame) -> Frame:
    error = message.head.get("error")
    if error is not None:
        raise SandboxError(str(error), retryable=bool(message.head.get("retryable", True)))
    return message


# ---- HTTP ---------------------------------------------------------------------------------------------------------


class HttpLink:
    """Requests to a slotd that listens at `url`."""

    def __init__(self, client: Client, url: str, token: str) -> None:
        self._client = client
        self._url = url.rstrip("/") + "/call"
        self._headers = (("Authorization", f"Bearer {token}"),)
        self._dead = ""
        self._beats: _Heartbeat | None = None

    @property
    def alive(self) -> bool:
        return not self._dead

    async def start(self, *, seconds: float, lapse: float) -> Frame:
        """Wait until slotd answers."""
        about = await self.call({"op": "hello"}, seconds=seconds)
        self._beats = _Heartbeat(self, lapse)
        return about

    async def call(self, head: Mapping[str, Any], body: bytes = b"", *, seconds: float | None) -> Frame:
        if self._dead:
            raise SandboxError(self._dead)
        try:
            async with asyncio.timeout(seconds):
                return _raise_if_refused(await self._call_until_done(head, body))
        except TimeoutError:
            self._dead = self._dead or _describe_timeout(head, seconds)
            raise SandboxError(self._dead) from None

    async def _call_until_done(self, head: Mapping[str, Any], body: bytes) -> Frame:
        if head["op"] not in _LASTING:
            return await self._send(head, body, patient=head["op"] == "hello")
        message = await self._send({**head, "wait": _WAIT_SECONDS}, body)
        while message.head.get("pending"):
            if head["op"] == "run":
                head, body = {"op": "run", "slot": head["slot"], "execution": head["execution"], "again": True}, b""
            message = await self._send({**head, "wait": _WAIT_SECONDS}, body)
        return message

    async def _send(self, head: Mapping[str, Any], body: bytes = b"", *, patient: bool = False) -> Frame:
        """One request, repeated while nothing comes back. `patient`: for as long as the caller can wait."""
        data = wire.pack(Frame(dict(head), body))
        timeouts = Timeouts(connect=10.0, silence=_WAIT_SECONDS + 20.0, total=600.0)
        for attempt in count():
            try:
                response = await self._client.request("POST", self._url, self._headers, data, timeouts=timeouts)
                if response.status == 200:
                    return wire.unpack(response.body)
                problem = f"slotd answered with status {response.status}"
                if response.status in (400, 401, 404, 413):
                    raise SandboxError(problem, retryable=False)
            except (HttpError, wire.FrameError) as error:
                problem = str(error)
            if attempt >= len(_RETRY_PAUSES) and not patient:
                self._dead = self._dead or problem
                raise SandboxError(problem)
            pause = _RETRY_PAUSES[min(attempt, len(_RETRY_PAUSES) - 1)]
            await asyncio.sleep(min(pause, 0.5) if patient else pause * random.uniform(0.7, 1.3))
        raise AssertionError("unreachable")

    async def close(self) -> None:
        await run_shielded(self._close())

    async def _close(self) -> None:
        await _send_bye(self, self._beats)
        self._dead = self._dead or "the link is closed"
