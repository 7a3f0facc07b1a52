"""The Docker engine's HTTP API over its unix socket, as far as slots need it. Podman's service has the same API.

Each request has its own connection: requests are rare, and a connection that is not kept cannot be stale. `attach`
turns a connection into a container's stdin and stdout, as a `Channel`. Every request has a time limit. No response, a
broken response or an error status is a `DockerApiError`.
"""

import asyncio
import struct
from contextlib import suppress
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from ludus.errors import SandboxError
from ludus.http_client import Client, ConnectionLost, HttpError, TimedOut, Timeouts, build_head, split_url

T = TypeVar("T")

_READ_BYTES = 2**18
_STDERR_BYTES = 4096
_CLOSE_SECONDS = 5.0
_RESPONSE_BYTES = 2**30
_CLOSE = (("Connection", "close"),)
_UPGRADE = (("Connection", "Upgrade"), ("Upgrade", "tcp"))


class DockerApiError(SandboxError):
    """The engine refused a request, or did not respond."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status; 0 if there was no response."""


class DockerApi:
    """A client of the engine that listens on `socket`."""

    def __init__(self, socket: str, *, seconds: float = 60.0) -> None:
        self._socket = socket
        self._seconds = seconds

    async def request(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: object = None,
        *,
        seconds: float | None = None,
    ) -> bytes:
        """Send a request. Returns the body of the response, most often JSON."""
        limit = self._seconds if seconds is None else seconds
        limits = Timeouts(connect=limit, silence=limit, total=limit)
        data = b"" if body is None else msgspec.json.encode(body)
        headers = _CLOSE if body is None else (*_CLOSE, ("Content-Type", "application/json"))
        try:
            async with (
                asyncio.timeout(limit),
                Client(unix=self._socket, timeouts=limits, response_bytes=_RESPONSE_BYTES) as client,
            ):
                response = await client.request(method, _make_url(path, query or {}), headers, data)
        except (TimeoutError, TimedOut):
            raise DockerApiError(f"the engine did not respond to {method} {path} within {limit:g} s") from None
        except HttpError as error:
            why = "it hung up" if isinstance(error, ConnectionLost) else str(error.__cause__ or error)
            raise DockerApiError(f"the engine at {self._socket} cannot be reached: {why}") from error
        if response.status >= 400:
            raise DockerApiError(
                f"the engine refused {method} {path} with {response.status}: {_parse_reason(response.body)}",
                status=response.status,
            )
        return response.body

    async def get(self, path: str, query: dict[str, str], kind: type[T]) -> T:
        """Send a GET request. Returns the decoded response."""
        data = await self.request("GET", path, query)
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise DockerApiError(f"the engine's response to {path} is not understood: {error}") from error

    async def attach(self, container: str) -> "AttachedChannel":
        """The container's stdin, stdout and stderr. Attach before the container starts, so that nothing is missed."""
        path = f"/containers/{container}/attach"
        query = {"stream": "1", "stdin": "1", "stdout": "1", "stderr": "1"}
        try:
            async with asyncio.timeout(self._seconds):
                reader, writer = await asyncio.open_unix_connection(self._socket, limit=_READ_BYTES)
                try:
                    writer.write(build_head("POST", split_url(_make_url(path, query)), _UPGRADE, 0))
                    head = await reader.readuntil(b"\r\n\r\n")
                    status = int(head.split(b" ", 2)[1])
                    if status not in (101, 200):
                        raise DockerApiError(f"the engine refused to attach with {status}", status=status)
                except BaseException:
                    await _close_writer(writer)
                    raise
        except TimeoutError:
            raise DockerApiError(f"the engine did not attach within {self._seconds:g} s") from None
        except (OSError, EOFError, ValueError) as error:
            raise DockerApiError(f"the engine at {self._socket} did not attach: {error}") from error
        return AttachedChannel(reader, writer)


def _make_url(path: str, query: dict[str, str]) -> str:
    return f"http://engine{path}" + (f"?{urlencode(query)}" if query else "")


class _Refusal(msgspec.Struct):
    message: str


def _parse_reason(data: bytes) -> str:
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(data, type=_Refusal).message.strip()
    return data[:300].decode(errors="replace").strip()


async def _close_writer(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await writer.wait_closed()


class AttachedChannel:
    """A connection that was turned into a container's streams. Bytes are sent as they are; the container's output comes
    in pieces, each with a head that names stdout or stderr."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._stderr = b""
        self._left = 0
        """Bytes still to come of the current piece of stdout."""

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    async def receive(self) -> bytes:
        try:
            while not self._left:
                kind, size = struct.unpack(">B3xI", await self._reader.readexactly(8))
                if kind == 2:
                    text = await self._reader.readexactly(size)
                    self._stderr = (self._stderr + text)[-_STDERR_BYTES:]
                else:
                    self._left = size
        except asyncio.IncompleteReadError:
            return b""
        data = await self._reader.read(min(self._left, _READ_BYTES))
        self._left -= len(data)
        return data

    def get_stderr(self) -> str:
        return self._stderr.decode(errors="replace").strip()

    async def close(self) -> None:
        await _close_writer(self._writer)
