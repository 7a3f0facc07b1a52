"""Real servers on loopback that answer, misbehave and count, and a clock that does not wait."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from ludus.models.server_pool import Timing


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    """The number of the connection it came on, from 1."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Handler = Callable[[Request, asyncio.StreamWriter], Awaitable[bytes | None]]
"""Answers a request: the raw bytes to send, or None to close the connection."""


@dataclass
class Loopback:
    """A server on 127.0.0.1. The test writes its answers, byte by byte if needed."""

    handler: Handler
    tls: Any = None
    at: int = 0
    """The port to listen on; 0: a free one."""
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    active: int = 0
    """Requests being handled."""
    peak: int = 0
    open: int = 0
    """Connections that are open."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a connection ends."""

    async def __aenter__(self) -> "Loopback":
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._start, "127.0.0.1", self.at, ssl=self.tls)
        self._port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    async def closed(self) -> None:
        """Wait until no connection is open."""
        async with asyncio.timeout(60):
            while self.open:
                self.changed.clear()
                await self.changed.wait()

    def _start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer, self.connections))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.open += 1
        try:
            while (request := await read_request(reader, number)) is not None:
                self.requests.append(request)
                if (answer := await self._answer(request, reader, writer)) is None:
                    return
                writer.write(answer)
        finally:
            self.open -= 1
            self.changed.set()
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

    async def _answer(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes | None:
        """Run the handler. Stop when the client disconnects."""
        self.active += 1
        self.peak = max(self.peak, self.active)
        handling = asyncio.ensure_future(self.handler(request, writer))
        disconnected = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((handling, disconnected), return_when=asyncio.FIRST_COMPLETED)
            return handling.result() if handling.done() else None
        finally:
            handling.cancel()
            disconnected.cancel()
            await asyncio.gather(handling, disconnected, return_exceptions=True)
            self.active -= 1


async def read_request(reader: asyncio.StreamReader, number: int) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body, number)


def response(body: object = b"", status: int = 200, **headers: str) -> bytes:
    """An HTTP response with a length; anything but bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


def chat_reply(content: str | None = "hello", **message: Any) -> dict[str, Any]:
    """The JSON of an OpenAI chat completion."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "served-model",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content, **message},
                "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }


def sequence(*answers: Any) -> Handler:
    """Answer in this order; the last answer repeats. Bytes, None to disconnect, or anything else as JSON."""
    left = list(answers)

    async def handler(request: Request, writer: asyncio.StreamWriter) -> bytes | None:
        answer = left.pop(0) if len(left) > 1 else left[0]
        return answer if answer is None or isinstance(answer, bytes) else response(answer)

    return handler


@dataclass
class FakeTime:
    """A clock that moves only when a task sleeps."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    @property
    def timing(self) -> Timing:
        return Timing(clock=lambda: self.now, sleep=self.sleep, sample=lambda: 0.5)


class Kit:
    """Shared by the tests of models and the HTTP client."""

    Loopback = Loopback
    FakeTime = FakeTime
    Request = Request
    response = staticmethod(response)
    chat_reply = staticmethod(chat_reply)
    sequence = staticmethod(sequence)


@pytest.fixture
def kit() -> type[Kit]:
    return Kit
