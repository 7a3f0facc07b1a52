"""A small HTTP/1.1 server: it reads whole requests and sends whole or streamed replies.

    bytes ──> httptools (C) ──> Request ──> serve(responder) ──> send | begin, feed, end

One `Connection` is one socket. Its requests are answered one after the other, in their order, also when the client
sends several at once. Data that is not HTTP and a head or body that is too long are refused with a status, and the
connection is closed. A client that offers another protocol (`Upgrade: h2c`) is answered in HTTP/1.1. If a client closes
its connection, its reply is dropped and the `Responder` reports it. Nothing else is affected. A server may say by the
head of a request that it does not want the body (`WantsBody`): then nothing of it is kept.

A client that has begun a request must go on sending it: one that is silent for too long, or slower than any network is,
gets a 408, and its connection is closed. Between requests a connection may stay open as long as its client likes. There
is no TLS: it is meant for programs on the same machine or a private network.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Collection
from typing import cast

import httptools

HEAD_BYTES = 64 * 1024
"""The longest request line and headers together."""

FULL_SECONDS = 1.0
"""How long no connection is accepted after the process ran out of file descriptors."""

LINGER_SECONDS = 2.0
"""How long a refused client may continue to send before the connection is closed."""

QUIET_SECONDS = 60.0
"""How long a client that has begun a request may send nothing, and how long its head may take."""

LEAST_RATE = 200
"""The bytes of a body that must come in each second, after the first `QUIET_SECONDS`."""

JSON = b"application/json"
METRICS = b"text/plain; version=0.0.4; charset=utf-8"
EVENTS = b"text/event-stream; charset=utf-8\r\nCache-Control: no-cache"

_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    409: b"Conflict",
    413: b"Content Too Large",
    426: b"Upgrade Required",
    422: b"Unprocessable Content",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    507: b"Insufficient Storage",
}


class Request:
    """A request of a client."""

    __slots__ = ("body", "headers", "keep", "method", "modern", "path", "query", "upgrades")

    def __init__(self, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.method = method
        self.path = path
        """The path without the query."""
        self.query = ""
        """The part after the question mark, as it was sent."""
        self.headers = headers
        self.body = body
        self.keep = True
        """Whether the client keeps the connection open."""
        self.modern = True
        """Whether it is HTTP/1.1, which has chunks."""
        self.upgrades = False
        """Whether the client offers to go on in another protocol."""

    def get_header(self, name: bytes) -> str:
        """The first header with that name (in lower case); empty if there is none."""
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == name), "")


def build_head(status: int, kind: bytes, size: int | None, extra: bytes = b"", *, keep: bool = True) -> bytes:
    """The bytes before a body. `size` is None for a body in chunks or until the connection closes. `extra`: whole
    header lines with their line ends."""
    if status == 200 and size is not None and keep and not extra:
        return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (kind, size)
    length = b"" if size is None else b"Content-Length: %d\r\n" % size
    close = b"" if keep else b"Connection: close\r\n"
    reason = _REASONS.get(status, b"Status")
    return b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\n%b%b%b\r\n" % (status, reason, kind, length, close, extra)


class Responder:
    """One request and its reply. If the client has closed the connection, all methods do nothing."""

    __slots__ = ("_begun", "_connection", "on_lost", "request")

    def __init__(self, connection: "Connection", request: Request) -> None:
        self._connection: Connection | None = connection
        self.request = request
        self._begun = False
        self.on_lost: Callable[[], None] | None = None
        """Called if the client closes the connection before the request is answered."""

    @property
    def has_begun(self) -> bool:
        """Whether the status has been sent."""
        return self._begun

    @property
    def is_answered(self) -> bool:
        return self._connection is None

    def send(self, status: int, kind: bytes, body: bytes, extra: bytes = b"") -> bool:
        """Send a whole reply. Returns whether the client was still connected."""
        sent = b"" if self.request.method == "HEAD" else body
        return self._finish(
            build_head(status, kind, len(body), extra, keep=self.request.keep) + sent, self.request.keep
        )

    def begin(self, kind: bytes, data: bytes) -> None:
        """Send the status and the first part of a streamed reply."""
        chunks = self.request.modern
        extra = b"Transfer-Encoding: chunked\r\n" if chunks else b""
        self._begun = True
        self._write(build_head(200, kind, None, extra, keep=self.request.keep and chunks) + self._frame(data))

    def feed(self, data: bytes) -> None:
        """Send a part of a streamed reply."""
        self._write(self._frame(data))

    def _frame(self, data: bytes) -> bytes:
        """A part of the body; nothing for no data, because an empty chunk ends the reply."""
        return b"%x\r\n%b\r\n" % (len(data), data) if data and self.request.modern else data

    def end(self, data: bytes) -> bool:
        """Send the last part. Returns whether the client was still connected."""
        if not self.request.modern:
            return self._finish(data, False)
        return self._finish(self._frame(data) + b"0\r\n\r\n", self.request.keep)

    def abort(self) -> None:
        """Close the connection without a reply."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def _write(self, data: bytes) -> None:
        if self._connection is not None and self._connection.alive:
            self._connection.write(data)

    def _finish(self, data: bytes, keep: bool) -> bool:
        connection, self._connection = self._connection, None
        if connection is None or not connection.alive:
            return False
        connection.write(data)
        connection.finish_reply(keep)
        return True


Serve = Callable[[Responder], None]
Refusal = Callable[[int, str], bytes]
"""Takes a status and a message, returns the body of the reply."""


WantsBody = Callable[[Request], bool]
"""Takes a request without its body, and says whether the body is worth keeping."""


class Connection(asyncio.Protocol):
    """One socket. The parser calls the `on_…` methods."""

    __slots__ = (
        "_blocked",
        "_body",
        "_body_bytes",
        "_busy",
        "_connections",
        "_expects",
        "_head_size",
        "_headers",
        "_heard",
        "_in_head",
        "_limit",
        "_parser",
        "_reading",
        "_refusal",
        "_refused",
        "_responder",
        "_serve",
        "_since",
        "_timer",
        "_transport",
        "_upgrades",
        "_url",
        "_waiting",
        "_wanted",
        "_wants_body",
        "gone",
    )

    def __init__(
        self,
        connections: "set[Connection]",
        serve: Serve,
        refusal: Refusal,
        limit: int,
        wants_body: WantsBody | None = None,
    ) -> None:
        self._wants_body = wants_body
        self._connections = connections
        self._serve = serve
        self._refusal = refusal
        self._limit = limit
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[Request] = deque()
        self._busy = False
        """A request is being answered."""
        self._blocked = False
        """The client does not read what it is sent."""
        self._refused = False
        """The client was refused. Further data is ignored."""
        self._responder: Responder | None = None
        """The request that is being answered."""
        self._upgrades = False
        """The client of the request that is read offers another protocol."""
        self._in_head = True
        self._head_size = 0
        self._reading = False
        """A part of a request has come."""
        self._heard = 0.0
        """When its last part came."""
        self._timer: asyncio.TimerHandle | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the socket is closed."""
        self._clear()

    def _clear(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._expects = False
        """The client waits for a word before it sends the body."""
        self._wanted = True
        """The body of the request that is read is kept."""
        self._since: float | None = None
        """Since when the request is waited for; None: all of it may have come at once."""

    # ---- for responders -------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def finish_reply(self, keep: bool) -> None:
        """Called when the request is answered. Starts the next one."""
        self._busy = False
        self._responder = None
        if not keep:
            self.close()
        elif self._waiting:
            self._serve_next()

    def close(self) -> None:
        """Close after all written data is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ---- called by asyncio ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.clear()
        self._connections.discard(self)
        if not self.gone.done():
            self.gone.set_result(None)
        responder, self._responder = self._responder, None
        if responder is not None and responder.on_lost is not None:
            responder.on_lost()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline_upgrade(data[offer.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(400, f"this is not an HTTP request: {error}")
        else:
            if self._in_head and self._head_size > HEAD_BYTES:
                self._refuse(431, f"the headers are longer than {HEAD_BYTES:,} bytes")
            elif self._reading:
                self._note_progress()

    def _note_progress(self) -> None:
        """A part of a request has come, and more must. Requests that come whole, which most do, need no clock."""
        loop = asyncio.get_running_loop()
        self._heard = loop.time()
        if self._since is None:
            self._since = self._heard
        if self._timer is None:
            self._timer = loop.call_later(QUIET_SECONDS, self._check_progress)

    def _check_progress(self) -> None:
        """Refuse a client that is too slow; else look again when it may be."""
        self._timer = None
        if not self._reading or self._refused or self._since is None:
            return
        loop = asyncio.get_running_loop()
        if self._busy or self._waiting:  # it is the client's turn again when the requests before are answered
            self._since = self._heard = loop.time()
        due = min(self._heard, self._since + self._body_bytes / LEAST_RATE) + QUIET_SECONDS
        if loop.time() >= due:
            self._refuse(408, f"the rest of the request did not come within {QUIET_SECONDS:.0f} s")
        else:
            self._timer = loop.call_at(due, self._check_progress)

    def _decline_upgrade(self, rest: bytes) -> None:
        """Read a request again as plain HTTP/1.1. The parser stops at an offer of another protocol, before the body."""
        lines = [b"%b %b HTTP/1.1" % (self._parser.get_method(), self._url)]
        closes = any(name.lower() == b"connection" and b"close" in value.lower() for name, value in self._headers)
        lines += [b"%b: %b" % (name, value) for name, value in self._headers if name.lower() != b"connection"]
        lines += [b"Connection: close"] if closes else []
        self._parser = httptools.HttpRequestParser(self)
        self._upgrades = True
        self.data_received(b"\r\n".join((*lines, b"", rest)))

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        if not self._busy and self._waiting:
            self._serve_next()

    # ---- called by the parser -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._clear()
        self._reading = True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))
        if len(name) == 6 and name.lower() == b"expect" and value.lower() == b"100-continue":
            self._expects = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._wanted = self._wants_body is None or self._wants_body(self._make_request(b""))
        if self._expects and self._wanted:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _make_request(self, body: bytes) -> Request:
        path, _, query = self._url.decode("latin-1").partition("?")
        request = Request(self._parser.get_method().decode("latin-1"), path, self._headers, body)
        request.query = query
        return request

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes <= self._limit:
            if self._wanted:
                self._body.append(data)
        else:
            self._body.clear()
            self._refuse(413, f"the body is longer than {self._limit:,} bytes")

    def on_message_complete(self) -> None:
        if self._refused or self._parser.should_upgrade():
            return
        self._reading = False
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        request = self._make_request(body)
        request.keep = self._parser.should_keep_alive()
        request.modern = self._parser.get_http_version() != "1.0"
        request.upgrades, self._upgrades = self._upgrades, False
        self._in_head, self._head_size = True, 0
        if not self._busy and not self._blocked:
            self._start(request)
            return
        self._waiting.append(request)
        if len(self._waiting) == 1 and self._transport is not None:
            self._transport.pause_reading()

    def _serve_next(self) -> None:
        if self._blocked:
            return
        request = self._waiting.popleft()
        if not self._waiting and self._transport is not None:
            self._transport.resume_reading()
        self._start(request)

    def _start(self, request: Request) -> None:
        self._busy = True
        self._responder = responder = Responder(self, request)
        self._serve(responder)

    def _refuse(self, status: int, message: str) -> None:
        if self._refused:
            return
        self._refused = True
        transport = self._transport
        if transport is None or self._busy:  # a refusal inside another reply would be read as part of it
            self.abort()
            return
        body = self._refusal(status, message)
        transport.write(build_head(status, JSON, len(body), keep=False) + body)
        # Closing now, while the client still sends, would reset the connection before it reads the reply.
        transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self.abort)


async def close_connections(connections: Collection[Connection], seconds: float) -> None:
    """Close connections. Their clients have this long to read what was sent."""
    closing = tuple(connections)
    for connection in closing:
        connection.close()
    if closing:
        await asyncio.wait([connection.gone for connection in closing], timeout=seconds)
    for connection in closing:
        connection.abort()
    await asyncio.gather(*(connection.gone for connection in closing))


class Listener:
    """Accepts connections on a listening socket, which it owns.

    It accepts all that wait before anything else is done. uvloop's own server accepts one in each turn of the loop:
    with hundreds of busy clients, a new one would wait for seconds.
    """

    def __init__(self, listening: socket.socket, make_connection: Callable[[], Connection]) -> None:
        listening.setblocking(False)
        self.socket = listening
        self._make_connection = make_connection
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[object]] = set()
        self._loop.add_reader(listening.fileno(), self._accept)

    async def close(self) -> None:
        """Stop accepting. Connections that were accepted stay open."""
        self._loop.remove_reader(self.socket.fileno())
        self.socket.close()
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no file descriptor is left
                self._loop.remove_reader(self.socket.fileno())
                self._loop.call_later(FULL_SECONDS, self._resume)
                return
            accepted.setblocking(False)
            task = self._loop.create_task(self._open(accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_connection, accepted)
        except OSError:  # the client has gone already
            accepted.close()

    def _resume(self) -> None:
        if self.socket.fileno() >= 0:
            self._loop.add_reader(self.socket.fileno(), self._accept)
            self._accept()
