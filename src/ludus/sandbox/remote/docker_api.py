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

import httptools
import msgspec

from ludus.errors import SandboxError

T = TypeVar("T")

_READ_BYTES = 2**18
_STDERR_BYTES = 4096
_CLOSE_SECONDS = 5.0


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
        try:
            async with asyncio.timeout(limit):
                status, data = await self._send_request(method, path, query or {}, body)
        except TimeoutError:
            raise DockerApiError(f"the engine did not respond to {method} {path} within {limit:g} s") from None
        except (OSError, EOFError, httptools.HttpParserError) as error:
            raise DockerApiError(
                f"the engine at {self._socket} cannot be reached: {str(error) or 'it hung up'}"
            ) from error
        if status >= 400:
            raise DockerApiError(
                f"the engine refused {method} {path} with {status}: {_parse_reason(data)}", status=status
            )
        return data

    async def get(self, path: str, query: dict[str, str], kind: type[T]) -> T:
        """Send a GET request. Returns the decoded response."""
        data = await self.request("GET", path, query)
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise DockerApiError(f"the engine's response to {path} is not understood: {error}") from error

    async def _send_request(self, method: str, path: str, query: dict[str, str], body: object) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_unix_connection(self._socket, limit=_READ_BYTES)
        try:
            writer.write(_encode_request(method, path, query, body, "Connection: close\r\n"))
            await writer.drain()
            response = _ResponseReader()
            while not response.complete:
                data = await reader.read(_READ_BYTES)
                if not data:
                    break
                response.feed(data)
            if not response.complete and not (response.status and response.until_close):
                raise EOFError
            return response.status, bytes(response.body)
        finally:
            await _close_writer(writer)

    async def attach(self, container: str) -> "AttachedChannel":
        """The container's stdin, stdout and stderr. Attach before the container starts, so that nothing is missed."""
        path = f"/containers/{container}/attach"
        query = {"stream": "1", "stdin": "1", "stdout": "1", "stderr": "1"}
        try:
            async with asyncio.timeout(self._seconds):
                reader, writer = await asyncio.open_unix_connection(self._socket, limit=_READ_BYTES)
                try:
                    writer.write(_encode_request("POST", path, query, None, "Connection: Upgrade\r\nUpgrade: tcp\r\n"))
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


def _encode_request(method: str, path: str, query: dict[str, str], body: object, more: str) -> bytes:
    target = path + (f"?{urlencode(query)}" if query else "")
    data = b"" if body is None else msgspec.json.encode(body)
    kind = "" if body is None else "Content-Type: application/json\r\n"
    length = f"Content-Length: {len(data)}\r\n" if method != "GET" else ""
    return f"{method} {target} HTTP/1.1\r\nHost: engine\r\n{more}{kind}{length}\r\n".encode() + data


class _ResponseReader:
    """Collects an HTTP response. The parser calls the `on_…` methods."""

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()
        self.complete = False
        self.until_close = True
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self.until_close = False

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


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
