import asyncio
import gzip
import shutil
import socket
import ssl
import struct
import subprocess
import tracemalloc
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from email.utils import formatdate
from functools import partial
from pathlib import Path

import pytest

from ludus import http_client as http
from ludus.errors import ModelUnusable
from ludus.http_client import (
    ByteBudget,
    Client,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    NotHttp,
    NotTrusted,
    Response,
    ResponseTooLarge,
    TimedOut,
    Timeouts,
    build_head,
    read_retry_after,
    send_with_retries,
    split_url,
)
from ludus.models.openai import ChatModel
from ludus.models.settings import OpenAISettings
from ludus.types import Message, Sampling

# ---- urls and heads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://a", (False, "a", 80, "/")),
        ("https://a.b/c?d=e#f", (True, "a.b", 443, "/c?d=e")),
        ("http://[::1]:81/x", (False, "::1", 81, "/x")),
        ("http://a/with space/é", (False, "a", 80, "/with%20space/%C3%A9")),
        ("http://a/already%20quoted", (False, "a", 80, "/already%20quoted")),
        ("https://user:secret@a/", (True, "a", 443, "/")),
    ],
)
def test_urls_are_split(url, expected):
    assert tuple(split_url(url)) == expected


@pytest.mark.parametrize("url", ["", "ftp://a", "localhost:8000/v1", "http://", "/v1"])
def test_an_invalid_url_is_refused(url):
    with pytest.raises(ValueError, match=r"not an http:// or https:// URL"):
        split_url(url)


def test_a_url_in_an_error_text_has_no_query():
    assert split_url("https://a:8443/b?key=secret").display_url == "https://a:8443/b"


def test_heads():
    target = split_url("http://h:81/p?q=1")
    assert build_head("POST", target, [("A", "b")], 3) == (
        b"POST /p?q=1 HTTP/1.1\r\nHost: h:81\r\nA: b\r\nContent-Length: 3\r\n\r\n"
    )
    assert build_head("GET", target, [], 0) == b"GET /p?q=1 HTTP/1.1\r\nHost: h:81\r\n\r\n"
    assert build_head("POST", target, [], 0).endswith(b"Content-Length: 0\r\n\r\n")
    assert build_head("GET", target, [], 0, absolute=True).startswith(b"GET http://h:81/p?q=1 HTTP/1.1\r\n")


@pytest.mark.parametrize("value", ["a\r\nEvil: 1", "a\n", "a\r"])
def test_a_line_break_in_a_header_is_refused(value):
    with pytest.raises(ValueError, match="line break") as caught:
        build_head("GET", split_url("http://h"), [("A", value)], 0)
    assert value not in str(caught.value)


# ---- what comes back ----------------------------------------------------------------------------------------------


async def ask(kit, handler, *, times: int = 1, method: str = "POST", body: bytes = b"ask", **options):
    """Send the same request so many times; returns the responses and the server, which has been closed."""

    async with kit.Loopback(handler) as server, Client(**options) as client:
        got = [await client.request(method, server.url + "/p", [("X-One", "1")], body) for _ in range(times)]
        return got, server


async def test_a_request_arrives_whole_and_so_does_the_response(kit):
    (got,), server = await ask(kit, kit.sequence(kit.response(b"answer", 201, X_Some_Header="Value")))
    (request,) = server.requests
    assert (request.method, request.path, request.body, request.headers["x-one"]) == ("POST", "/p", b"ask", "1")
    assert (got.status, got.body, got.get_header("x-some-header"), got.get_header("absent")) == (
        201,
        b"answer",
        "Value",
        "",
    )


async def test_connections_are_kept(kit):
    got, server = await ask(kit, kit.sequence(kit.response(b"x")), times=5)
    assert [r.body for r in got] == [b"x"] * 5
    assert server.connections == 1


async def test_a_connection_that_the_server_closes_is_not_reused(kit):
    _, server = await ask(kit, kit.sequence(kit.response(b"x", Connection="close")), times=3)
    assert server.connections == 3


CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n5;note=1\r\ndefgh\r\n0\r\nX-Trailer: 1\r\n\r\n"
)


async def test_chunked_bodies(kit):
    got, server = await ask(kit, kit.sequence(CHUNKED), times=2)
    assert [r.body for r in got] == [b"abcdefgh"] * 2
    assert server.connections == 1


async def test_a_compressed_body_is_decompressed(kit):
    text = b'{"choices": []}' * 1000
    for encoding, packed in (("gzip", gzip.compress(text)), ("deflate", zlib.compress(text)), ("identity", text)):
        (got,), _ = await ask(kit, kit.sequence(kit.response(packed, Content_Encoding=encoding)))
        assert got.body == text


@pytest.mark.parametrize(
    ("encoding", "body", "words"),
    [
        ("br", b"x", "compressed as br, which was not requested"),
        ("gzip", b"plain text", "the body is not gzip, as its header says"),
        ("gzip", gzip.compress(b"x" * 100, mtime=0)[:20], "cut off"),
        ("gzip", gzip.compress(b"x" * 1_000_000, mtime=0), "larger than 5000 bytes when decompressed"),
    ],
)
async def test_a_body_that_cannot_be_decompressed(kit, encoding, body, words):
    with pytest.raises(NotHttp, match=words):
        await ask(kit, kit.sequence(kit.response(body, Content_Encoding=encoding)), response_bytes=5000)


async def test_a_response_in_single_bytes(kit):
    async def handler(request, writer):
        for byte in CHUNKED:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        return b""

    (got,), _ = await ask(kit, handler)
    assert got.body == b"abcdefgh"


async def test_without_a_length_the_end_of_the_connection_is_the_end_of_the_body(kit):
    async def handler(request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    got, server = await ask(kit, handler, times=2)
    assert [r.body for r in got] == [b"all of it"] * 2
    assert server.connections == 2


async def test_informational_responses_are_skipped(kit):
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    (got, _), server = await ask(kit, kit.sequence(early + kit.response(b"real", A="b")), times=2)
    assert (got.status, got.body, got.get_header("link")) == (200, b"real", "")
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]
)
async def test_empty_bodies(kit, answer):
    (got, _), server = await ask(kit, kit.sequence(answer), times=2)
    assert got.body == b""
    assert server.connections == 1


async def test_a_head_request_has_no_body(kit):
    (got,), _ = await ask(kit, kit.sequence(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"), method="HEAD", body=b"")
    assert (got.status, got.get_header("content-length"), got.body) == (200, "99", b"")


async def test_large_bodies_both_ways(kit):
    async def handler(request, writer):
        return kit.response(request.body)

    (got,), _ = await ask(kit, handler, body=b"x" * 5_000_000)
    assert len(got.body) == 5_000_000


async def test_a_second_response_to_one_request_is_never_taken_for_the_next_one(kit):
    answers = kit.sequence(kit.response(b"one") + kit.response(b"junk"), kit.response(b"two"))
    got, server = await ask(kit, answers, times=2)
    assert [r.body for r in got] == [b"one", b"two"]
    assert server.connections == 2


async def test_an_answer_that_does_not_wait_for_the_request_ends_the_connection(kit):
    writers: list[asyncio.StreamWriter] = []

    async def too_early(reader, writer):
        writers.append(writer)
        writer.write(kit.response(b"no", 413))

    async with await asyncio.start_server(too_early, "127.0.0.1", 0) as server, Client() as client:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for _ in range(2):
            got = await client.request("POST", url, body=b"x" * 20_000_000)
            assert got.status == 413
        assert len(writers) == 2
        for writer in writers:
            writer.transport.abort()


# ---- what goes wrong ----------------------------------------------------------------------------------------------


async def test_an_unreachable_server():
    with free_port() as port:
        async with Client() as client:
            with pytest.raises(ConnectFailed, match=r"http://127.0.0.1:\d+/p: connection refused") as caught:
                await client.request("GET", f"http://127.0.0.1:{port}/p?key=secret")
    assert "secret" not in str(caught.value)


@contextmanager
def free_port() -> Generator[int]:
    """A port that nobody listens on, kept so by a socket that is bound to it."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


async def test_a_host_that_does_not_exist():
    with pytest.raises(ConnectFailed, match=r"no-such-host\.invalid"):
        async with Client() as client:
            await client.request("GET", "http://no-such-host.invalid/")


async def test_no_connection_in_time():
    """A listener with a full backlog takes no further connection."""

    with pytest.raises(ConnectFailed, match=r"no connection within 0\.05 s"), socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        blockers = [socket.socket() for _ in range(4)]
        for blocker in blockers:
            blocker.setblocking(False)
            blocker.connect_ex(address)
        try:
            async with Client(timeouts=Timeouts(connect=0.05)) as client:
                await client.request("GET", f"http://127.0.0.1:{address[1]}/")
        finally:
            for blocker in blockers:
                blocker.close()


async def test_half_a_body_then_the_end(kit):
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"

    async def handler(request, writer):
        writer.write(half)

    with pytest.raises(ConnectionLost, match=r"closed \d+ bytes into the response") as caught:
        await ask(kit, handler)
    assert caught.value.received == len(half)


async def test_half_a_body_then_a_reset(kit):
    async def handler(request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await asyncio.sleep(0.01)
        reset(writer)
        return b""

    with pytest.raises(ConnectionLost, match=r"reset|closed"):
        await ask(kit, handler)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_a_broken_chunk(kit):
    with pytest.raises(NotHttp, match="not an HTTP response"):
        await ask(kit, kit.sequence(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc"))


async def test_something_that_is_not_http(kit):
    with pytest.raises(NotHttp, match=r"SSH-2\.0"):
        await ask(kit, kit.sequence(b"SSH-2.0-OpenSSH_9.6\r\n"))


async def test_silence(kit):
    async def handler(request, writer):
        await asyncio.Event().wait()

    with pytest.raises(TimedOut, match=r"silent for 0\.05 s \(0 bytes received\)"):
        await ask(kit, handler, timeouts=Timeouts(silence=0.05))


async def test_a_drip_is_not_silence_but_has_a_total_limit(kit):
    async def handler(request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            writer.write(b".")
            await asyncio.sleep(0.01)

    with pytest.raises(TimedOut, match="no whole response in time"):
        await ask(kit, handler, timeouts=Timeouts(silence=5, total=0.1))


@pytest.mark.parametrize("head", [b"Content-Length: 100000000", b"Transfer-Encoding: chunked", b"X: y"])
async def test_a_response_without_end_is_cut_off(kit, head):
    async def handler(request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
        piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        for _ in range(200):
            writer.write(piece)
            await writer.drain()

    with pytest.raises(ResponseTooLarge, match="larger than 1000000 bytes"):
        await ask(kit, handler, response_bytes=1_000_000)


async def test_headers_without_end_are_cut_off(kit):
    async def handler(request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\n")
        for _ in range(200):
            writer.write(b"X: " + b"x" * 10000 + b"\r\n")
            await writer.drain()

    with pytest.raises((ResponseTooLarge, NotHttp)):
        await ask(kit, handler, response_bytes=100_000)


# ---- connections over time ----------------------------------------------------------------------------------------


async def test_a_connection_closed_between_requests_is_replaced(kit):
    async def handler(request, writer):
        writer.write(kit.response(b"x"))
        # returns None: closes after the answer, without having said so

    async with kit.Loopback(handler) as server, Client() as client:
        for _ in range(3):
            await client.request("GET", server.url)
            await server.closed()
    assert server.connections == 3


async def test_a_kept_connection_that_dies_under_a_request_is_replaced_once(kit):
    """The server hangs up on the second request of each connection, without one byte."""
    counts: dict[int, int] = {}

    async def handler(request, writer):
        counts[request.connection] = counts.get(request.connection, 0) + 1
        return kit.response(b"x") if counts[request.connection] == 1 else None

    got, server = await ask(kit, handler, times=3)
    assert [r.body for r in got] == [b"x"] * 3
    assert server.connections == 3
    assert len(server.requests) == 5


async def test_a_fresh_connection_that_dies_is_not_replaced(kit):
    with pytest.raises(ConnectionLost, match="before any response"):
        await ask(kit, kit.sequence(None))


async def test_a_kept_connection_that_dies_within_a_response_is_not_replaced(kit):
    async def handler(request, writer):
        if len(server_requests) == 0:
            server_requests.append(request)
            return kit.response(b"x")
        writer.write(b"H")
        return None

    server_requests: list[object] = []
    async with kit.Loopback(handler) as server, Client() as client:
        await client.request("GET", server.url)
        with pytest.raises(ConnectionLost):
            await client.request("GET", server.url)
    assert len(server.requests) == 2


async def test_data_on_an_idle_connection_is_not_taken_for_a_response(kit):
    async def handler(request, writer):
        if len(seen) == 0:
            seen.append(1)
            asyncio.get_running_loop().call_later(0.01, writer.write, kit.response(b"idle", 408))
        return kit.response(b"x")

    seen: list[int] = []
    async with kit.Loopback(handler) as server, Client() as client:
        await client.request("GET", server.url)
        await server.closed()
        result = await client.request("GET", server.url)
    assert result.body == b"x"


async def test_an_old_idle_connection_is_not_reused(kit, monkeypatch):
    monkeypatch.setattr(http, "IDLE_SECONDS", -1.0)
    _, server = await ask(kit, kit.sequence(kit.response(b"x")), times=3)
    assert server.connections == 3


async def test_connections_are_bounded_and_shared_in_order(kit):
    async def handler(request, writer):
        await asyncio.sleep(0.001)
        return kit.response(request.body)

    async def main():
        async with kit.Loopback(handler) as server, Client(connections=3) as client:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(client.request("POST", server.url, body=str(n).encode())) for n in range(50)]
            return [t.result().body for t in tasks], server

    bodies, server = await main()
    assert bodies == [str(n).encode() for n in range(50)]
    assert server.peak <= 3
    assert server.connections == 3
    assert [r.body for r in server.requests[:3]] == [b"0", b"1", b"2"]


async def test_cancelling_a_request_closes_its_connection(kit):
    started = asyncio.Event()

    async def handler(request, writer):
        started.set()
        await asyncio.Event().wait()

    async with kit.Loopback(handler) as server, Client() as client:
        task = asyncio.ensure_future(client.request("GET", server.url))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.closed()


async def test_cancelling_a_waiting_request_passes_its_turn_on(kit):
    release = asyncio.Event()

    async def handler(request, writer):
        await release.wait()
        return kit.response(request.body)

    async with kit.Loopback(handler) as server, Client(connections=1) as client:
        tasks = [asyncio.ensure_future(client.request("POST", server.url, body=b"%d" % n)) for n in range(3)]
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        release.set()
        got = await asyncio.gather(*tasks, return_exceptions=True)
        assert got[0].body == b"0"
        assert isinstance(got[1], asyncio.CancelledError)
        assert got[2].body == b"2"
        assert server.connections == 1


async def test_close_ends_running_requests_and_can_be_called_twice(kit):
    started = asyncio.Event()

    async def handler(request, writer):
        started.set()
        await asyncio.Event().wait()

    async with kit.Loopback(handler) as server:
        client = Client()
        task = asyncio.ensure_future(client.request("GET", server.url))
        await started.wait()
        await client.close()
        await client.close()
        with pytest.raises(ConnectionLost):
            await task
        with pytest.raises(ClientClosed):
            await client.request("GET", server.url)
        await server.closed()


# ---- tls and proxies ----------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path):
    """A server and a client context that trust each other, for 127.0.0.1."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = f"req -x509 -newkey rsa:2048 -nodes -days 2 -keyout {key} -out {cert}"
    names = "-subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([openssl, *made.split(), *names.split()], check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    return server, ssl.create_default_context(cafile=str(cert))


async def test_tls(kit, certificate):
    server_side, client_side = certificate

    async with kit.Loopback(kit.sequence(kit.response(b"x")), tls=server_side) as server:
        async with Client(tls=client_side) as client:
            for _ in range(3):
                assert (await client.request("GET", server.url)).body == b"x"
        assert server.connections == 1
        await server.closed()
        async with Client() as strangers:
            with pytest.raises(NotTrusted, match="certificate is not accepted"):
                await strangers.request("GET", server.url)


async def test_a_server_without_tls_is_not_retried():
    received: list[bytes] = []

    gone = asyncio.Event()

    class Plain(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            received.append(data)
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            self.transport.close()

        def connection_lost(self, exc):
            gone.set()

    loop = asyncio.get_running_loop()
    async with await loop.create_server(Plain, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        model = ChatModel(OpenAISettings(base_url=f"https://127.0.0.1:{port}", name="m"))
        with pytest.raises(ModelUnusable, match=r"it does not speak TLS: .* start with http://\?$") as caught:
            await model.complete([Message("user", "hi")], [], Sampling())
        await model.close()
        await asyncio.wait_for(gone.wait(), 60)
    assert (caught.value.retryable, len(received)) == (False, 1)


async def test_a_tls_server_that_closes_an_idle_connection(kit, certificate):
    server_side, client_side = certificate

    async def handler(request, writer):
        writer.write(kit.response(b"x"))

    async with kit.Loopback(handler, tls=server_side) as server, Client(tls=client_side) as client:
        for _ in range(2):
            await client.request("GET", server.url)
            await server.closed()


async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: list[str]) -> None:
    """A CONNECT proxy in a few lines."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    seen.append(head)
    host, _, port = head.split(" ")[1].partition(":")
    far_reader, far_writer = await asyncio.open_connection(host, int(port))
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
        sink.close()

    await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer), return_exceptions=True)
    far_writer.close()
    writer.close()


async def test_tls_through_a_proxy(kit, certificate):
    server_side, client_side = certificate

    seen: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    def connected(reader, writer):
        tasks.append(asyncio.get_running_loop().create_task(tunnel(reader, writer, seen)))

    async with (
        kit.Loopback(kit.sequence(kit.response(b"through")), tls=server_side) as server,
        await asyncio.start_server(connected, "127.0.0.1", 0) as proxy,
    ):
        address = f"http://me:pass%20word@127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        async with Client(tls=client_side, proxy=address) as client:
            for _ in range(2):
                assert (await client.request("GET", server.url)).body == b"through"
        await asyncio.gather(*tasks)
        (head,) = seen
        assert head.startswith(f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n")
        assert "Proxy-Authorization: Basic bWU6cGFzcyB3b3Jk\r\n" in head


async def test_a_proxy_that_refuses(kit):
    async with kit.Loopback(kit.sequence(kit.response(b"no", 407))) as proxy, Client(proxy=proxy.url) as client:
        words = rf"https://\[::1\]/ \(through the proxy {proxy.url}\): it refused the tunnel with status 407"
        with pytest.raises(ConnectFailed, match=words):
            await client.request("GET", "https://[::1]/")
        assert proxy.requests[0].path == "[::1]:443"


async def test_a_proxy_that_is_not_there_is_named_without_its_password():
    with free_port() as port:
        async with Client(proxy=f"http://me:pass@127.0.0.1:{port}") as client:
            with pytest.raises(ConnectFailed, match=r"\(through the proxy http://127.0.0.1:\d+\): connection refused"):
                await client.request("GET", "http://example.invalid/")


async def test_plain_http_through_a_proxy(kit):
    async with kit.Loopback(kit.sequence(kit.response(b"x"))) as proxy:
        async with Client(proxy=proxy.url.replace("://", "://me:pw@")) as client:
            await client.request("GET", "http://example.invalid/p?q=1")
        (request,) = proxy.requests
        assert request.path == "http://example.invalid/p?q=1"
        assert request.headers["proxy-authorization"] == "Basic bWU6cHc="


# ---- many large responses -----------------------------------------------------------------------------------------


async def fetch_large(kit, count: int, size: int, limit: int, *, handler=None, tls=None, trust=None, **options):
    """Fetch so many bodies of that size at once, under a budget; returns bodies or errors, and the budget."""
    budget = ByteBudget(limit)

    async def main():
        answer = handler or kit.sequence(kit.response(b"x" * size))
        async with (
            kit.Loopback(answer, tls=tls) as server,
            Client(budget=lambda: budget, tls=trust, **options) as client,
        ):
            asking = [client.request("GET", f"{server.url}/{n}") for n in range(count)]
            async with asyncio.timeout(60):
                return await asyncio.gather(*asking, return_exceptions=True)

    got = await main()
    assert budget.used == 0, "what was counted is given back"
    return [each.body if isinstance(each, http.Response) else each for each in got], budget


async def test_the_bytes_of_all_responses_together_are_bounded(kit):
    bodies, budget = await fetch_large(kit, 12, 3 << 20, limit=4 << 20)
    assert [len(body) for body in bodies] == [3 << 20] * 12
    assert budget.peak <= (4 << 20) + (3 << 20) + 12 * (256 << 10), "of 36 MiB"


async def test_responses_that_are_each_larger_than_the_budget_pass_one_by_one(kit):
    bodies, budget = await fetch_large(kit, 4, 3 << 20, limit=1 << 20)
    assert [len(body) for body in bodies] == [3 << 20] * 4
    assert budget.peak <= (1 << 20) + (3 << 20) + 4 * (256 << 10)


async def test_large_responses_are_bounded_over_tls_too(kit, certificate):
    serving, trust = certificate
    bodies, budget = await fetch_large(kit, 6, 2 << 20, limit=1 << 20, tls=serving, trust=trust)
    assert [len(body) for body in bodies] == [2 << 20] * 6
    assert budget.peak <= (1 << 20) + (2 << 20) + 6 * (512 << 10)


async def test_a_large_response_that_hangs_does_not_hold_the_others_for_ever(kit):
    """The first response fills the budget and stops. Small ones pass at once, large ones when it has failed."""

    async def handler(request, writer):
        if request.path != "/0":
            return kit.response(b"x" * (1000 if request.path == "/1" else 2 << 20))
        writer.write(kit.response(b"x" * (4 << 20))[: 2 << 20])
        return await asyncio.sleep(60)

    limits = Timeouts(silence=0.3)
    (hung, *rest), _ = await fetch_large(kit, 5, 0, limit=1 << 20, handler=handler, timeouts=limits)
    assert isinstance(hung, TimedOut)
    assert [len(body) for body in rest] == [1000, 2 << 20, 2 << 20, 2 << 20]


async def test_a_response_over_its_own_limit_is_refused_under_a_budget_too(kit):
    got, _ = await fetch_large(kit, 6, 4 << 20, limit=1 << 20, response_bytes=2 << 20)
    assert all(isinstance(each, ResponseTooLarge) for each in got)


async def test_cancelled_requests_give_back_their_bytes(kit):
    budget = ByteBudget(1 << 20)

    started = asyncio.Event()

    async def handler(request, writer):
        if request.path == "/whole":
            return kit.response(b"x" * (2 << 20))
        writer.write(kit.response(b"x" * (4 << 20))[: 2 << 20])
        await writer.drain()
        started.set()
        return await asyncio.sleep(60)

    async with kit.Loopback(handler) as server, Client(budget=lambda: budget) as client:
        half = [asyncio.ensure_future(client.request("GET", server.url + "/half")) for _ in range(2)]
        await started.wait()
        whole = asyncio.ensure_future(client.request("GET", server.url + "/whole"))
        await asyncio.sleep(0.01)
        for each in half:
            each.cancel()
        async with asyncio.timeout(60):
            result = len((await whole).body)
    assert result == 2 << 20
    assert budget.used == 0


async def test_an_idle_connection_does_not_keep_the_last_body(kit):
    async def main():
        answer = kit.response(b"x" * (8 << 20))
        async with kit.Loopback(kit.sequence(answer)) as server, Client() as client:
            tracemalloc.start()
            try:
                assert len((await client.request("GET", server.url)).body) == 8 << 20
                await asyncio.sleep(0.01)
                return tracemalloc.get_traced_memory()[0]
            finally:
                tracemalloc.stop()

    assert await main() < 4 << 20


async def test_model_servers_share_one_budget_per_event_loop():
    async def get_budget():
        return http.get_shared_budget()

    first = http.get_shared_budget()
    assert http.get_shared_budget() is first
    assert await asyncio.to_thread(asyncio.run, get_budget()) is not first


# ---- unix sockets -------------------------------------------------------------------------------------------------


def test_requests_over_a_unix_socket(tmp_path: Path):
    """The host of the URL is only a name."""
    path, heads = str(tmp_path / "s"), list[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        await reader.read()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_unix_server(serve, path)
        async with Client(unix=path) as client:
            for _ in range(2):
                assert (await client.request("GET", "http://engine/info?a=b")).body == b"hi"
        server.close()
        await server.wait_closed()

    asyncio.run(main())
    assert heads == [b"GET /info?a=b HTTP/1.1\r\nHost: engine\r\n\r\n"] * 2


def test_a_unix_socket_that_is_not_there(tmp_path: Path):
    async def main() -> None:
        async with Client(unix=str(tmp_path / "none")) as client:
            with pytest.raises(ConnectFailed, match="http://engine/: No such file") as caught:
                await client.request("GET", "http://engine")
            assert isinstance(caught.value.__cause__, FileNotFoundError)

    asyncio.run(main())


# ---- retries ------------------------------------------------------------------------------------------------------


class Waits:
    """Takes the place of `asyncio.sleep`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.seconds = list[float]()
        monkeypatch.setattr(asyncio, "sleep", self.wait)

    async def wait(self, seconds: float) -> None:
        self.seconds.append(seconds)


def send_each(*outcomes: Response | Exception):
    """Sends requests with these outcomes, one after the other."""
    left = list(outcomes)

    async def send() -> Response:
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return send, left


def answer(status: int, **headers: str) -> Response:
    return Response(status, [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()], b"")


is_busy = partial(int.__le__, 500)


@pytest.mark.parametrize(
    ("outcomes", "status", "waits"),
    [
        ([answer(200)], 200, []),
        ([answer(404)], 404, []),
        ([answer(503), answer(200)], 200, [1.0]),
        ([ConnectionLost("x"), answer(500), answer(200)], 200, [1.0, 2.0]),
        ([answer(500), answer(500), answer(503)], 503, [1.0, 2.0]),
        ([answer(503, retry_after="7"), answer(503, retry_after="99"), answer(200)], 200, [7.0, 30.0]),
    ],
)
def test_busy_servers_are_asked_again(monkeypatch, outcomes, status: int, waits: list[float]):
    taken = Waits(monkeypatch)
    send, left = send_each(*outcomes)
    assert asyncio.run(send_with_retries(send, (1.0, 2.0), is_busy)).status == status
    assert taken.seconds == waits and left == []


def test_the_error_of_the_last_attempt_is_raised(monkeypatch):
    Waits(monkeypatch)
    send, _ = send_each(answer(500), TimedOut("first"), ConnectFailed("last"))
    with pytest.raises(ConnectFailed, match="last"):
        asyncio.run(send_with_retries(send, (0.0, 0.0), is_busy))


def test_other_errors_are_not_retried():
    send, left = send_each(ValueError("a header"), answer(200))
    with pytest.raises(ValueError, match="a header"):
        asyncio.run(send_with_retries(send, (0.0,), is_busy))
    assert len(left) == 1


@pytest.mark.parametrize(
    ("header", "value", "seconds"),
    [
        ("Retry-After", "3", 3.0),
        ("retry-after", "0.5", 0.5),
        ("Retry-After", formatdate(1060, usegmt=True), 60.0),
        ("Retry-After", formatdate(900, usegmt=True), 0.0),
        ("Retry-After", "soon", None),
        ("Retry-After", "-5", None),
        ("Retry-After", "inf", None),
        ("Retry-After", "nan", None),
        ("retry-after-ms", "250", 0.25),
        ("Other", "1", None),
    ],
)
def test_retry_after(header, value, seconds):
    assert read_retry_after(Response(429, [(header.encode(), value.encode())], b""), now=1000.0) == seconds
