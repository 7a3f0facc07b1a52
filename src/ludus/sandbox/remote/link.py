"""The driver's end of a connection to a `slotd`.

A `Link` sends requests and returns their replies. `StdioLink` uses any two-way stream of bytes (a `Channel`): a
program's stdin and stdout, or the attached streams of a container. `HttpLink` uses HTTP, for a slotd that listens on a
port.

Both guarantee: a request ends in its reply or in a `SandboxError`, within its time limit. A heartbeat shows each side
that the other is alive, so a host that disappears is noticed even while a long command runs. After `close`, nothing of
the link is left here. Over HTTP a request may be sent again when its reply was lost. slotd does nothing twice: it knows
executions by their id, and requests to a port by their number.
"""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

from ludus.errors import SandboxError, SlotEvidence
from ludus.http_client import Client, HttpError, Timeouts
from ludus.sandbox.remote.bundle import build_shipment
from ludus.sandbox.slotd import frames as wire
from ludus.sandbox.slotd.frames import Frame
from ludus.sandbox.teardown import run_shielded

_BEATS_PER_LAPSE = 5
_EXIT_SECONDS = 5.0
_STDERR_SECONDS = 2.0
_WAIT_SECONDS = 20.0
"""How long one HTTP request waits for a command. For a longer command, further requests follow."""
_LONG_OPS = ("run", "accept", "receive", "send")
"""Requests whose reply depends on a command or an agent, and may take long."""
_RETRY_PAUSES = (0.1, 0.3, 1.0, 2.0, 4.0)


class Channel(Protocol):
    """A two-way stream of bytes to a program."""

    def send(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        """Wait until what was sent is on its way. Raises OSError if it cannot be sent."""
        ...

    async def receive(self) -> bytes:
        """The next bytes; none at the end of the stream."""
        ...

    def get_stderr(self) -> str:
        """The last part of what the program wrote to stderr."""
        ...

    async def close(self) -> None:
        """End the program, or at least the stream. Bounded in time, safe to call twice."""
        ...


class Link(Protocol):
    """A connection to one slotd."""

    @property
    def alive(self) -> bool: ...

    async def call(self, head: Mapping[str, Any], body: bytes = b"", *, seconds: float | None) -> Frame:
        """Send a request and return the reply. Raises SandboxError if slotd refuses it or does not reply within
        `seconds`. Without a time limit, the heartbeat still notices when slotd is gone."""
        ...

    async def close(self) -> None: ...


class _Heartbeat:
    """Sends a request at regular times, until one fails."""

    def __init__(self, link: Link, lapse: float) -> None:
        self._task = asyncio.create_task(self._beat(link, lapse))

    async def _beat(self, link: Link, lapse: float) -> None:
        with suppress(SandboxError):  # the link is marked dead, so its next user gets the error
            while True:
                await asyncio.sleep(lapse / _BEATS_PER_LAPSE)
                await link.call({"op": "beat"}, seconds=lapse)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))


async def _send_exit(link: Link, heartbeat: _Heartbeat | None) -> None:
    """Stop the heartbeat and tell slotd to end."""
    if heartbeat is not None:
        await heartbeat.stop()
    if link.alive:
        with suppress(SandboxError):
            await link.call({"op": "exit"}, seconds=_EXIT_SECONDS)


# ---- stdio --------------------------------------------------------------------------------------------------------


class StdioLink:
    """Frames over a channel. Many requests may be under way at once."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._dead = ""
        self._listener = asyncio.create_task(self._listen())
        self._heartbeat: _Heartbeat | None = None

    @property
    def alive(self) -> bool:
        return not self._dead

    async def start(self, settings: Mapping[str, Any], *, seconds: float, lapse: float) -> Frame:
        """Send slotd's program to the other side and make the handshake. `lapse`: after this long without a frame,
        each side takes the other for dead."""
        self._channel.send(build_shipment())
        hello = {"op": "hello", "version": wire.VERSION, **settings, "lapse": lapse}
        reply = await self.call(hello, seconds=seconds)
        self._heartbeat = _Heartbeat(self, lapse)
        return reply

    async def call(self, head: Mapping[str, Any], body: bytes = b"", *, seconds: float | None) -> Frame:
        self._raise_if_dead()
        number = next(self._numbers)
        reply: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        try:
            async with asyncio.timeout(seconds):
                self._channel.send(wire.pack(Frame({"id": number, **head}, body)))
                await self._channel.drain()
                return _raise_if_refused(await reply)
        except TimeoutError:
            self._mark_dead(_describe_timeout(head, seconds))
            raise _make_lost(self._dead) from None
        except OSError as error:
            await asyncio.wait((self._listener,), timeout=_STDERR_SECONDS)  # the end of the stream may say more
            self._mark_dead(f"the connection is lost: {error}")
            raise _make_lost(self._dead) from error
        finally:
            del self._waiting[number]
            if reply.done() and not reply.cancelled():
                reply.exception()

    async def close(self) -> None:
        await run_shielded(self._close())

    async def _close(self) -> None:
        await _send_exit(self, self._heartbeat)
        self._mark_dead("the link is closed")
        self._listener.cancel()
        await asyncio.wait((self._listener,))
        await self._channel.close()

    async def _listen(self) -> None:
        unpacker = wire.Unpacker()
        try:
            while data := await self._channel.receive():
                for frame in unpacker.feed(data):
                    reply = self._waiting.get(frame.head.get("id", 0))
                    if reply is not None and not reply.done():
                        reply.set_result(frame)
        except OSError as error:
            self._mark_dead(f"the connection is lost: {error}")
        except wire.FrameError as error:
            self._mark_dead(f"what came back is not from slotd: {error}")
        finally:  # also when cancelled: else callers would wait for replies that never come
            self._mark_dead(f"the connection ended: {_join_lines(self._channel.get_stderr())}".rstrip(": "))

    def _mark_dead(self, reason: str) -> None:
        if self._dead:
            return
        self._dead = reason
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(_make_lost(reason))

    def _raise_if_dead(self) -> None:
        if self._dead:
            raise _make_lost(self._dead)


def _join_lines(text: str) -> str:
    """Several lines as one."""
    return "; ".join(line.strip() for line in text.splitlines() if line.strip("@ \r\t"))


def _describe_timeout(head: Mapping[str, Any], seconds: float | None) -> str:
    return f"slotd did not reply to '{head['op']}'" + ("" if seconds is None else f" within {seconds:g} s")


def _raise_if_refused(frame: Frame) -> Frame:
    error = frame.head.get("error")
    if error is not None:
        head = frame.head
        evidence = SlotEvidence(inside=str(head.get("inside", "")), outside=str(head.get("outside", "")))
        raise SandboxError(str(error), retryable=bool(head.get("retryable", True)), evidence=evidence)
    return frame


def _make_lost(reason: str) -> SandboxError:
    """The error of a link that is lost. No slot can do that to the link, unless it is alone in its container: then
    `SlotServer` looks closer."""
    return SandboxError(reason, evidence=SlotEvidence(outside=reason))


# ---- HTTP ---------------------------------------------------------------------------------------------------------


class HttpLink:
    """Requests to a slotd that listens at `url`."""

    def __init__(self, client: Client, url: str, token: str) -> None:
        self._client = client
        self._url = url.rstrip("/") + "/call"
        self._headers = (("Authorization", f"Bearer {token}"),)
        self._dead = ""
        self._heartbeat: _Heartbeat | None = None

    @property
    def alive(self) -> bool:
        return not self._dead

    async def start(self, *, seconds: float, lapse: float) -> Frame:
        """Wait until slotd replies to the handshake."""
        reply = await self.call({"op": "hello"}, seconds=seconds)
        self._heartbeat = _Heartbeat(self, lapse)
        return reply

    async def call(self, head: Mapping[str, Any], body: bytes = b"", *, seconds: float | None) -> Frame:
        if self._dead:
            raise _make_lost(self._dead)
        try:
            async with asyncio.timeout(seconds):
                return _raise_if_refused(await self._call_until_done(head, body))
        except TimeoutError:
            self._dead = self._dead or _describe_timeout(head, seconds)
            raise _make_lost(self._dead) from None

    async def _call_until_done(self, head: Mapping[str, Any], body: bytes) -> Frame:
        if head["op"] not in _LONG_OPS:
            return await self._send(head, body, patient=head["op"] == "hello")
        frame = await self._send({**head, "wait": _WAIT_SECONDS}, body)
        while frame.head.get("pending"):
            if head["op"] == "run":
                head, body = {"op": "run", "slot": head["slot"], "execution": head["execution"], "again": True}, b""
            frame = await self._send({**head, "wait": _WAIT_SECONDS}, body)
        return frame

    async def _send(self, head: Mapping[str, Any], body: bytes = b"", *, patient: bool = False) -> Frame:
        """Send one request, and repeat it until there is a reply. `patient`: repeat it until the caller's time is
        up."""
        data = wire.pack(Frame(dict(head), body))
        timeouts = Timeouts(connect=10.0, silence=_WAIT_SECONDS + 20.0, total=600.0)
        for attempt in count():
            try:
                response = await self._client.request("POST", self._url, self._headers, data, timeouts=timeouts)
                if response.status == 200:
                    return wire.unpack(response.body)
                problem = f"slotd replied with status {response.status}"
                if response.status in (400, 401, 404, 413):
                    raise SandboxError(problem, retryable=False)
            except (HttpError, wire.FrameError) as error:
                problem = str(error)
            if attempt >= len(_RETRY_PAUSES) and not patient:
                self._dead = self._dead or problem
                raise _make_lost(problem)
            pause = _RETRY_PAUSES[min(attempt, len(_RETRY_PAUSES) - 1)]
            await asyncio.sleep(min(pause, 0.5) if patient else pause * random.uniform(0.7, 1.3))
        raise AssertionError("unreachable")

    async def close(self) -> None:
        await run_shielded(self._close())

    async def _close(self) -> None:
        await _send_exit(self, self._heartbeat)
        self._dead = self._dead or "the link is closed"
