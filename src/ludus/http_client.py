"""A small HTTP/1.1 client: send one request, read one whole response, or its events as they come.

    client.request ──> pool of the origin ──> idle connection, or a new one ──> write ──> parser (C) ──> Response

It is on the hot path of every rollout, so it has only what model servers and simple web APIs need: keep-alive,
Content-Length, chunked and until-close bodies, TLS, time limits, a size limit, an explicit proxy, unix sockets. It does
not follow redirects, keep cookies, or ask for compression (a compressed body is decompressed, within the size limit).
It reads no environment variables, and retries nothing: `send_with_retries` is for requests that may be sent twice.

Guarantees. A request ends with a `Response` of any status, or with an `HttpError`. A request that is cancelled, times
out or fails closes its connection. At most `connections` are open per origin; further requests wait in order. An idle
connection that the server has closed is replaced once, and only if no byte of a response was received; nothing else is
sent twice. Clients with a common `ByteBudget` together hold a bounded number of bytes of unfinished responses: a large
response waits while others are read. Error texts name the URL without its query, and never a header. A client belongs
to one event loop. After `close` no socket is open.
"""

import asyncio
import base64
import socket
import ssl
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import lru_cache
from time import time
from typing import NamedTuple, Self, cast
from urllib.parse import quote, unquote, urlsplit
from weakref import WeakKeyDictionary

import httptools
from msgspec import Struct

from ludus.types import Positive

Headers = Iterable[tuple[str, str]]
Feed = Callable[[bytes], None]
"""Takes a part of a body. It must not raise."""

IDLE_SECONDS = 45.0
"""A connection that was idle longer is not used again: routers drop such connections without a message."""

FREE_BYTES = 256 * 1024
"""The first bytes of a response, which no budget counts: an ordinary reply never waits for large ones."""

SHARED_BYTES = 128 * 1024 * 1024
"""The size of the budget that all clients of models and tools share."""

LONGEST_ASKED = 30.0
"""`send_with_retries` waits no longer than this for a server that asks for it."""


class HttpError(Exception):
    """The request got no whole response."""


class ClientClosed(HttpError):
    """The client was closed."""


class ConnectFailed(HttpError):
    """There is no connection: refused, unknown host, TLS failure, too slow."""


class NotTrusted(ConnectFailed):
    """TLS with this server is not possible. The user must fix it; a retry does not help."""


class ConnectionLost(HttpError):
    """The connection ended before the response did."""

    def __init__(self, message: str, received: int = 0) -> None:
        super().__init__(message)
        self.received = received
        """Bytes of the response that were received."""


class TimedOut(HttpError):
    """The response did not come in time."""


class ResponseTooLarge(HttpError):
    """The response is larger than the limit."""


class NotHttp(HttpError):
    """The response is not HTTP."""


class Timeouts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time limits of one request, in seconds."""

    connect: Positive = 10.0
    """To open a connection, TLS included."""
    silence: Positive = 600.0
    """Between two pieces of the response, and before the first one."""
    total: Positive = 900.0
    """From the first byte sent to the last byte received."""


class Response:
    """Status, headers in their order, and the whole body."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def get_header(self, name: str) -> str:
        """The first header with that name, in upper or lower case; empty if there is none."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == wanted), "")


class Target(NamedTuple):
    """The parts of a URL."""

    secure: bool
    host: str
    port: int
    path: str
    """Path and query, as in the request line."""

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.netloc}"

    @property
    def display_url(self) -> str:
        """The URL for error texts, without the query, which may contain a key."""
        return self.origin + self.path.partition("?")[0]


@lru_cache(maxsize=256)
def split_url(url: str) -> Target:
    """Split a URL into its parts.

    Raises:
        ValueError: it is not an http or https URL with a host.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"'{url.partition('?')[0]}' is not an http:// or https:// URL")
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    secure = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(secure, host, parts.port or (443 if secure else 80), quote(path, safe="/?%:@!$&'()*+,;=~-._[]|"))


def build_head(method: str, target: Target, headers: Headers, size: int, *, absolute: bool = False) -> bytes:
    """The bytes before the body. `absolute` is the form for proxies.

    Raises:
        ValueError: a header contains a line break, which would inject another header.
    """
    start = _build_start(method, target, tuple(headers), absolute)
    return b"%bContent-Length: %d\r\n\r\n" % (start, size) if size or method not in ("GET", "HEAD") else start + b"\r\n"


@lru_cache(maxsize=64)
def _build_start(method: str, target: Target, headers: tuple[tuple[str, str], ...], absolute: bool) -> bytes:
    """The head without the length. A model's requests all have the same one."""
    where = target.origin + target.path if absolute else target.path
    lines = [f"{method} {where} HTTP/1.1", f"Host: {target.netloc}"]
    lines += [f"{name}: {value}" for name, value in headers]
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise ValueError("a header has a line break in its name or value")
    return (text + "\r\n").encode("latin-1")


class ByteBudget:
    """Bounds the bytes of all responses that are being read.

    A connection whose bytes do not fit stops reading until others have ended. One connection at a time, the first that
    did not fit, goes on, so there is always progress, and a response larger than the budget is read alone. The most
    that is held is `limit`, one response of the largest size, and per connection `FREE_BYTES` and one piece.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.peak = 0
        self._favoured: _Connection | None = None
        """The connection that may exceed the limit."""
        self._paused: dict[_Connection, None] = {}

    def add(self, connection: "_Connection", size: int) -> bool:
        """Count bytes that were received. Returns whether the connection may read more; else it is resumed later."""
        self.used += size
        self.peak = max(self.peak, self.used)
        if self.used <= self.limit or self._favoured is connection:
            return True
        if self._favoured is None:
            self._favoured = connection
            return True
        self._paused[connection] = None
        return False

    def release(self, connection: "_Connection", size: int) -> None:
        """The bytes of a connection are no longer held. Others go on reading."""
        self.used -= size
        self._paused.pop(connection, None)
        if self._favoured is connection:
            self._favoured = None
        while self._paused and (self.used < self.limit or self._favoured is None):
            first = next(iter(self._paused))
            del self._paused[first]
            if self.used >= self.limit:
                self._favoured = first
            first.resume()


_shared: "WeakKeyDictionary[asyncio.AbstractEventLoop, ByteBudget]" = WeakKeyDictionary()


def get_shared_budget() -> ByteBudget:
    """The budget of the running event loop."""
    loop = asyncio.get_running_loop()
    budget = _shared.get(loop)
    if budget is None:
        budget = _shared[loop] = ByteBudget(SHARED_BYTES)
    return budget


class Client:
    """Connections to any number of origins. They stay open between requests."""

    def __init__(
        self,
        *,
        timeouts: Timeouts = Timeouts(),
        connections: int = 256,
        response_bytes: int = 64 * 1024 * 1024,
        proxy: str = "",
        unix: str = "",
        tls: ssl.SSLContext | None = None,
        budget: Callable[[], ByteBudget] | None = None,
    ) -> None:
        """`unix` is the path of a socket to which all requests go, whatever host their URL names. `budget` is called
        for each new connection, in the event loop. Without it, only single responses are limited."""
        self._budget = budget
        self._timeouts = timeouts
        self._connections = connections
        self._response_bytes = response_bytes
        self._proxy = proxy
        self._unix = unix
        self._tls = tls
        self._pools: dict[tuple[bool, str, int], _Pool] = {}
        self._open: set[_Connection] = set()
        self._closed = False

    async def request(
        self,
        method: str,
        url: str,
        headers: Headers = (),
        body: bytes = b"",
        *,
        timeouts: Timeouts | None = None,
        feed: Feed | None = None,
    ) -> Response:
        """Send one request and read the whole response. If it is a stream of events, `feed` gets each part of the body
        as it comes, and the response has none.

        Raises:
            HttpError: there is no whole response; the subclass says why.
            ValueError: the URL or a header cannot be sent.
        """
        self._check_open()
        target = split_url(url)
        absolute = bool(self._proxy) and not target.secure
        if absolute:
            headers = (*headers, *_make_proxy_auth(self._proxy))
        data = build_head(method, target, headers, len(body), absolute=absolute) + body
        limits = timeouts or self._timeouts
        pool = self._get_pool(target)
        async with pool.turns:
            idle = pool.take(asyncio.get_running_loop().time())
            if idle is not None:
                try:
                    return await self._exchange(idle, pool, data, target, method, limits, feed)
                except ConnectionLost as lost:
                    self._check_open()
                    if lost.received:
                        raise
            fresh = await self._connect(target, limits)
            return await self._exchange(fresh, pool, data, target, method, limits, feed)

    def abort(self) -> None:
        """Close every connection at once. Running requests fail. Use `close` to also wait for the sockets."""
        self._closed = True
        for connection in tuple(self._open):
            connection.abort()

    async def close(self) -> None:
        """`abort`, and wait until every socket is closed. Safe to call twice."""
        self.abort()
        await asyncio.gather(*(connection.gone for connection in tuple(self._open)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the HTTP client is closed")

    def _get_pool(self, target: Target) -> "_Pool":
        key = target[:3]
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = _Pool(self._connections)
        return pool

    async def _exchange(
        self,
        connection: "_Connection",
        pool: "_Pool",
        data: bytes,
        target: Target,
        method: str,
        limits: Timeouts,
        feed: Feed | None,
    ) -> Response:
        try:
            response = await connection.send(data, target, limits, headers_only=method == "HEAD", feed=feed)
        except BaseException:
            connection.abort()
            raise
        connection.release_bytes()
        if connection.reusable:
            pool.put(connection)
        else:
            connection.abort()
        return response

    # ---- connecting -----------------------------------------------------------------------------------------------

    async def _connect(self, target: Target, limits: Timeouts) -> "_Connection":
        try:
            async with asyncio.timeout(limits.connect):
                if self._proxy:
                    connection = await self._connect_through_proxy(target, limits)
                else:
                    connection = await self._dial(target)
        except TimeoutError:
            raise ConnectFailed(f"{self._describe_route(target)}: no connection within {limits.connect:g} s") from None
        except OSError as error:
            kind = NotTrusted if _is_final(error) else ConnectFailed
            raise kind(f"{self._describe_route(target)}: {_describe_reason(error)}") from error
        if self._closed:
            connection.abort()
            self._check_open()
        return connection

    def _describe_route(self, target: Target) -> str:
        """The target for error texts. It names the proxy too, because the proxy may be the cause."""
        return (
            f"{target.display_url} (through the proxy {split_url(self._proxy).origin})"
            if self._proxy
            else target.display_url
        )

    async def _dial(self, target: Target) -> "_Connection":
        loop = asyncio.get_running_loop()
        tls = self._get_tls() if target.secure else None

        def make_connection() -> _Connection:
            return _Connection(loop, self._open, self._response_bytes, self._budget and self._budget())

        if self._unix:
            _, connection = await loop.create_unix_connection(make_connection, self._unix, ssl=tls)
        else:
            _, connection = await loop.create_connection(make_connection, target.host, target.port, ssl=tls)
        return connection

    async def _connect_through_proxy(self, target: Target, limits: Timeouts) -> "_Connection":
        """Connect to the proxy. For TLS, open a tunnel through it."""
        connection = await self._dial(split_url(self._proxy))
        if not target.secure:
            return connection
        try:
            await self._open_tunnel(connection, target, limits)
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _open_tunnel(self, connection: "_Connection", target: Target, limits: Timeouts) -> None:
        address = f"[{target.host}]:{target.port}" if ":" in target.host else f"{target.host}:{target.port}"
        auth = "".join(f"{name}: {value}\r\n" for name, value in _make_proxy_auth(self._proxy))
        head = f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n{auth}\r\n"
        response = await connection.send(head.encode("latin-1"), target, limits, headers_only=True)
        connection.release_bytes()
        if response.status != 200:
            raise ConnectFailed(f"{self._describe_route(target)}: it refused the tunnel with status {response.status}")
        await connection.start_tls(self._get_tls(), target.host)

    def _get_tls(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


async def send_with_retries(
    send: Callable[[], Awaitable[Response]], pauses: Sequence[float], is_busy: Callable[[int], bool]
) -> Response:
    """The response to a request that may be sent more than once. After each of the pauses it is sent again, if there
    was no response, or one whose status `is_busy`. A server that asks for another pause gets it.

    Raises:
        HttpError: the last attempt got no whole response.
    """
    for pause in pauses:
        asked = None
        with suppress(HttpError):
            response = await send()
            if not is_busy(response.status):
                return response
            asked = read_retry_after(response, time())
        await asyncio.sleep(pause if asked is None else min(asked, LONGEST_ASKED))
    return await send()


def read_retry_after(response: Response, now: float) -> float | None:
    """The seconds that the server asks to wait. The headers give milliseconds, seconds, or a date."""
    if milliseconds := _parse_number(response.get_header("retry-after-ms")):
        return milliseconds / 1000
    text = response.get_header("retry-after")
    if not text:
        return None
    seconds = _parse_number(text)
    if seconds is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except ValueError:
        return None


def _parse_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """The decompressed body. Raises ValueError if it cannot be decompressed or is too large."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity") or not body:
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ValueError(f"the body is compressed as {encoding}, which was not requested")
    stream = zlib.decompressobj(zlib.MAX_WBITS | 32)  # accepts gzip and zlib headers
    try:
        plain = stream.decompress(body, limit)
    except zlib.error as error:
        raise ValueError(f"the body is not {encoding}, as its header says ({error})") from None
    if not stream.eof:
        raise ValueError(f"the body is cut off, or larger than {limit} bytes when decompressed")
    return plain


def _has_events(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a body is a stream of events that is not compressed."""
    kinds = [value for name, value in headers if name.lower() == b"content-type"]
    packed = any(name.lower() == b"content-encoding" and value.lower() != b"identity" for name, value in headers)
    return bool(kinds) and kinds[0].lower().startswith(b"text/event-stream") and not packed


def _make_proxy_auth(proxy: str) -> tuple[tuple[str, str], ...]:
    parts = urlsplit(proxy)
    if parts.username is None:
        return ()
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return (("Proxy-Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"),)


def _is_final(error: OSError) -> bool:
    if not isinstance(error, ssl.SSLError):
        return False
    return isinstance(error, ssl.SSLCertVerificationError) or error.reason == "WRONG_VERSION_NUMBER"


def _describe_reason(error: OSError) -> str:
    """The system's message, without the address that asyncio puts into it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({error.verify_message}); to add your own, set SSL_CERT_FILE"
    if _is_final(error):
        return "it does not speak TLS: should its address start with http://?"
    if isinstance(error, socket.gaierror):
        return "unknown host"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return error.strerror or str(error) or type(error).__name__


class _Pool:
    """The connections of one origin. A request needs a turn, has at most one connection and takes an idle one first,
    so there are never more open connections than turns."""

    __slots__ = ("_idle", "turns")

    def __init__(self, size: int) -> None:
        self.turns = asyncio.Semaphore(size)
        self._idle: list[_Connection] = []

    def take(self, now: float) -> "_Connection | None":
        """The most recently used idle connection that is still usable."""
        while self._idle:
            connection = self._idle.pop()
            if connection.alive and now - connection.idle_since < IDLE_SECONDS:
                return connection
            connection.abort()
        return None

    def put(self, connection: "_Connection") -> None:
        self._idle.append(connection)


class _Connection(asyncio.Protocol):
    """One socket with at most one exchange. The parser calls the `on_…` methods."""

    __slots__ = (
        "_body",
        "_budget",
        "_counted",
        "_deadline",
        "_feed",
        "_framed",
        "_headers",
        "_headers_only",
        "_keep",
        "_last",
        "_limit",
        "_loop",
        "_open",
        "_parser",
        "_paused",
        "_received",
        "_silence",
        "_status",
        "_streams",
        "_target",
        "_timer",
        "_transport",
        "_waiter",
        "gone",
        "idle_since",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, opened: "set[_Connection]", limit: int, budget: ByteBudget | None
    ) -> None:
        self._loop = loop
        self._budget = budget
        self._counted = 0
        """Bytes that the budget counts."""
        self._paused = False
        self._open = opened
        self._limit = limit
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Response] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._feed: Feed | None = None
        self._streams = False
        """The response is passed on as it comes."""
        self._keep = False
        self._received = 0
        self.gone: asyncio.Future[None] = loop.create_future()
        """Done when the socket is closed."""
        self.idle_since = 0.0

    # ---- for the client -------------------------------------------------------------------------------------------

    def send(
        self, data: bytes, target: Target, limits: Timeouts, *, headers_only: bool, feed: Feed | None = None
    ) -> asyncio.Future[Response]:
        """Start an exchange. If it fails, the future raises an `HttpError`, and the caller aborts the connection."""
        assert self._waiter is None
        self._waiter = waiter = self._loop.create_future()
        self._target = target
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._status = 0
        self._received = 0
        self._framed = False
        self._keep = False
        self._headers_only = headers_only
        self._feed = feed
        self._streams = False
        self._last = now = self._loop.time()
        self._silence = limits.silence
        self._deadline = now + limits.total
        if self._transport is None:
            self._fail(ConnectionLost(f"{target.display_url}: the connection was closed"))
            return waiter
        self._timer = self._loop.call_at(min(self._deadline, now + self._silence), self._check_time)
        self._transport.write(data)
        return waiter

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def reusable(self) -> bool:
        """Whether the connection can be used again: the exchange has ended and both sides keep it open."""
        return self._keep and self._transport is not None and not self._transport.get_write_buffer_size() and self.alive

    def release_bytes(self) -> None:
        """The response is complete or given up, and its bytes no longer count. Safe to call twice."""
        if self._counted and self._budget is not None:
            counted, self._counted = self._counted, 0
            self._budget.release(self, counted)
            self.resume()

    def resume(self) -> None:
        """Go on reading, if reading was paused."""
        if self._paused:
            self._paused = False
            self._last = self._loop.time()
            if self.alive:
                cast(asyncio.Transport, self._transport).resume_reading()

    def abort(self) -> None:
        """Close at once. A running exchange fails."""
        self.release_bytes()
        if self._transport is not None:
            self._transport.abort()

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Switch to TLS, after a proxy has opened a tunnel."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        transport = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
        self._transport = transport

    # ---- called by the event loop ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open.add(self)
        sock = cast("socket.socket | None", transport.get_extra_info("socket"))
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:  # no request is running: a closing message such as "408 idle too long"
            self.abort()
            return
        self._last = self._loop.time()
        self._received += len(data)
        if self._received > self._limit:
            self._fail(ResponseTooLarge(f"{self._target.display_url}: the response is larger than {self._limit} bytes"))
            return
        if self._budget is not None and self._received > FREE_BYTES and not self._streams:
            self._count(self._received - FREE_BYTES - self._counted)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            start = data[:80].decode("latin-1")
            self._fail(NotHttp(f"{self._target.display_url}: not an HTTP response ({error}): {start!r}"))

    def _count(self, size: int) -> None:
        """Count bytes against the budget. Stop reading if they do not fit."""
        if self._budget is None:
            return
        self._counted += size
        if not self._budget.add(self, size) and not self._paused and self.alive:
            self._paused = True
            cast(asyncio.Transport, self._transport).pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._transport.abort()  # a TLS transport that the peer closed is not closed by itself
        self._transport = None
        self._open.discard(self)
        if not self.gone.done():
            self.gone.set_result(None)
        if self._waiter is None:
            return
        if exc is None and self._status and not self._framed and not self._headers_only:
            self._finish()  # without a length, the body ends with the connection
            return
        how = f"{self._received} bytes into the response" if self._received else "before any response"
        what = "reset" if isinstance(exc, ConnectionError) else "closed"
        self._fail(ConnectionLost(f"{self._target.display_url}: the connection was {what} {how}", self._received))

    def _check_time(self) -> None:
        if self._paused:  # this side is silent, not the server
            self._last = self._loop.time()
        due = min(self._deadline, self._last + self._silence)
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._check_time)
            return
        is_late = self._loop.time() >= self._deadline
        what = "no whole response in time" if is_late else f"silent for {self._silence:g} s"
        self._fail(TimedOut(f"{self._target.display_url}: {what} ({self._received} bytes received)"))

    # ---- called by the parser -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._status and self._waiter is None:
            self._keep = False  # more than one response to one request: the stream is out of sync

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))
        if not self._framed and name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._streams = self._feed is not None and 200 <= self._status < 300 and _has_events(self._headers)
        if self._headers_only and self._status >= 200:
            self._finish()

    def on_body(self, data: bytes) -> None:
        if self._streams and self._feed is not None:
            self._feed(data)
        else:
            self._body.append(data)

    def on_message_complete(self) -> None:
        if self._status < 200:  # 100 Continue, 103 Early Hints: the response follows
            self._headers = []
            self._framed = False
            self._status = 0
        elif self._waiter is not None:
            self._keep = self._parser.should_keep_alive()
            self._finish()

    # ---- end of an exchange ---------------------------------------------------------------------------------------

    def _finish(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        for name, value in self._headers:
            if name.lower() == b"content-encoding":
                try:
                    body = decompress(body, value.decode("latin-1"), self._limit)
                except ValueError as error:
                    self._fail(NotHttp(f"{self._target.display_url}: {error}"))
                    return
                self._count(len(body))
        self.idle_since = self._last
        waiter = self._end_exchange()
        if waiter is not None:
            waiter.set_result(Response(self._status, self._headers, body))

    def _fail(self, error: HttpError) -> None:
        waiter = self._end_exchange()
        if waiter is not None:
            waiter.set_exception(error)
            waiter.exception()  # mark as retrieved: if the caller was cancelled, asyncio would log a warning
        self.abort()

    def _end_exchange(self) -> asyncio.Future[Response] | None:
        """Stop the timer and drop the pieces of the body. Returns the waiter, or None if nobody waits any more."""
        waiter, self._waiter = self._waiter, None
        self._body = []  # an idle connection must not keep it
        self._feed = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return waiter if waiter is not None and not waiter.done() else None
