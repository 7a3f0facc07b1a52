"""Web tools against loopback servers that answer as the providers' documentation says they do."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ludus.errors import ConfigError, ToolBroken
from ludus.http_client import Client
from ludus.tools import Tool
from ludus.tools import web as web_module
from ludus.tools.settings import WebSettings
from ludus.tools.toolsets import BUILTIN
from ludus.tools.web import Pages, WebProvider, is_public, make_provider, make_web_toolsets, strip_html


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict[str, str])


def as_json(value: Any, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


def page(body: str, kind: str = "text/html; charset=utf-8") -> Reply:
    return Reply(200, body.encode(), {"Content-Type": kind})


@asynccontextmanager
async def stand_in(answer: Callable[[Request], Reply]) -> AsyncGenerator[str, None]:
    """A server on loopback that answers every request by a function; gives its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *rest = head.decode("latin-1").strip().split("\r\n")
                method, target, _ = line.split()
                headers = {k.lower(): v.strip() for k, _, v in (row.partition(":") for row in rest)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                url = urlsplit(target)
                reply = answer(Request(method, url.path, parse_qs(url.query), headers, body))
                extra = "".join(f"{k}: {v}\r\n" for k, v in reply.headers.items())
                writer.write(f"HTTP/1.1 {reply.status} X\r\n{extra}Content-Length: {len(reply.body)}\r\n\r\n".encode())
                writer.write(reply.body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def open_web_tools(name: str, answer: Callable[[Request], Reply]) -> AsyncGenerator[tuple[dict[str, Tool], str]]:
    """The tools of a provider, and the address of its stand-in."""
    async with stand_in(answer) as address, Client() as http:
        provider = make_provider(
            WebSettings(provider=name, base_url=address, allow_private=True),  # pyright: ignore[reportArgumentType]
            http,
            key="k-123",
        )
        tools = BUILTIN.extend(*make_web_toolsets(provider)).make_tools(["web"], None)
        yield {tool.name: tool for tool in tools}, address


async def test_tavily_searches_and_extracts():
    seen: list[Request] = []

    def answer(request: Request) -> Reply:
        seen.append(request)
        if request.path == "/search":
            hit = {"title": "Bees", "url": "https://b.example/", "content": "All\nabout  bees.", "score": 0.9}
            return as_json({"query": "bees", "results": [hit], "response_time": 1.1, "images": []})
        return as_json(
            {
                "results": [{"url": "https://b.example/", "raw_content": "# Bees", "images": []}],
                "failed_results": [{"url": "https://gone.example/", "error": "not found"}],
                "response_time": 0.1,
            }
        )

    async with open_web_tools("tavily", answer) as (tools, _):
        found = await tools["web_search"].run({"query": "bees", "limit": "3"})
        assert found == "1. Bees\n   https://b.example/\n   All about bees."
        urls = ["https://b.example/", "https://gone.example/", "https://other.example/"]
        text = await tools["web_extract"].run({"urls": urls})
        assert text == (
            "# https://b.example/\n# Bees\n\n"
            "# https://gone.example/\n[could not be read: not found]\n\n"
            "# https://other.example/\n[could not be read: the provider has no text]"
        )
    search, extract = seen
    assert (search.method, extract.method) == ("POST", "POST")
    assert search.headers["authorization"] == extract.headers["authorization"] == "Bearer k-123"
    assert json.loads(search.body) == {"query": "bees", "max_results": 3}
    assert json.loads(extract.body)["urls"][0] == "https://b.example/"


async def test_brave_searches_and_pages_are_fetched():
    seen: list[Request] = []

    def answer(request: Request) -> Reply:
        seen.append(request)
        if request.path == "/web/search":
            hit = {"title": "A &amp; B", "url": "https://a.example/", "description": "the <strong>best</strong> &lt;3"}
            return as_json({"type": "search", "web": {"type": "search", "results": [hit]}})
        return page("<title>T</title><p>Hello <b>you</b></p><script>no()</script>")

    async with open_web_tools("brave", answer) as (tools, address):
        found = await tools["web_search"].run({"query": "ä & b", "limit": 500})
        assert found == "1. A & B\n   https://a.example/\n   the best <3"
        assert await tools["web_extract"].run({"urls": f"{address}/x"}) == f"# {address}/x\nT\nHello you"
    assert seen[0].method == "GET"
    assert seen[0].headers["x-subscription-token"] == "k-123"
    assert seen[0].query == {"q": ["ä & b"], "count": ["20"]}
    assert "x-subscription-token" not in seen[1].headers


async def test_searxng_needs_no_key_and_is_cut_to_the_limit():
    seen: list[Request] = []

    def answer(request: Request) -> Reply:
        seen.append(request)
        hits = [{"title": f"T{n}", "url": f"https://{n}.example/", "content": None, "engine": "x"} for n in range(30)]
        return as_json({"query": "q", "number_of_results": 30, "results": hits, "unresponsive_engines": []})

    async with open_web_tools("searxng", answer) as (tools, _):
        found = await tools["web_search"].run({"query": "q", "limit": 2})
        assert [line for line in found.split("\n") if "http" in line] == [
            "   https://0.example/",
            "   https://1.example/",
        ]
    assert (seen[0].path, seen[0].query) == ("/search", {"q": ["q"], "format": ["json"]})


@pytest.mark.parametrize(("provider", "reply"), [("brave", {"type": "search"}), ("tavily", {"results": []})])
async def test_no_results_are_an_answer(provider: str, reply: dict[str, Any]):
    async with open_web_tools(provider, lambda _: as_json(reply)) as (tools, _):
        assert await tools["web_search"].run({"query": "q"}) == "No results."


@pytest.mark.parametrize(
    ("reply", "kind", "says"),
    [
        (as_json({"detail": "bad key"}, 401), ToolBroken, "answered 401: .*bad key.*check the key"),
        (as_json({"detail": "query too long"}, 400), ValueError, "answered 400: .*query too long"),
        (Reply(200, b"<html>hello</html>"), ToolBroken, "not its documented answer"),
        (Reply(200, b'{"results": ['), ToolBroken, "not its documented answer"),
    ],
)
async def test_what_a_provider_refuses(reply: Reply, kind: type[Exception], says: str):
    async with open_web_tools("tavily", lambda _: reply) as (tools, _):
        with pytest.raises(kind, match=says):
            await tools["web_search"].run({"query": "q"})


async def test_a_busy_provider_is_asked_again_and_then_given_up():
    at_once = {"Retry-After": "0"}
    busy = [Reply(429, b"slow down", at_once), Reply(503, b"down", at_once)]
    replies = iter([*busy, as_json({"results": []}), *busy, Reply(502, b"still down", at_once)])

    async with open_web_tools("tavily", lambda _: next(replies)) as (tools, _):
        assert await tools["web_search"].run({"query": "q"}) == "No results."
        with pytest.raises(ToolBroken, match="answered 502: still down") as raised:
            await tools["web_search"].run({"query": "q"})
        assert raised.value.retryable


async def test_a_server_that_is_not_there_is_the_worlds_failure(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(web_module, "PAUSES", ())

    async with stand_in(lambda _: Reply()) as address:
        pass
    async with Client() as http:
        with pytest.raises(ToolBroken, match="refused"):
            await make_provider(WebSettings(provider="searxng", base_url=address), http).search("q", 3)


async def fetched(
    answer: Callable[[Request], Reply], path: str = "/", *, allow_private: bool = True
) -> tuple[str, str]:
    async with stand_in(answer) as address, Client() as http:
        (got,) = await Pages(http, allow_private).extract([address + path])
        return got.text, got.error


async def test_redirects_are_followed_but_not_for_ever():
    hops = {"/": Reply(302, b"", {"Location": "/next"}), "/next": page("there")}
    assert await fetched(lambda request: hops[request.path]) == ("there", "")
    assert await fetched(lambda _: Reply(301, b"", {"Location": "/"})) == ("", "more than 5 redirects")


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply(404, b"gone"), ("", "the server answered 404")),
        (Reply(200, b"\x89PNG", {"Content-Type": "image/png"}), ("", "it is image/png, not text")),
        (page('{"a": 1}', "application/json"), ('{"a": 1}', "")),
        (page("a < b\n  c", "text/plain"), ("a < b\n  c", "")),
        (Reply(200, "<p>né".encode("latin-1"), {"Content-Type": "text/html; charset=ISO-8859-1"}), ("né", "")),
        (Reply(200, b"<p>n\xff", {"Content-Type": "text/html; charset=nonsense"}), ("n\ufffd", "")),
        (Reply(200, b"<p>plain"), ("plain", "")),
    ],
)
async def test_what_a_page_may_be(reply: Reply, expected: tuple[str, str]):
    assert await fetched(lambda _: reply) == expected


async def test_a_huge_page_is_read_in_part():
    text, _ = await fetched(lambda _: page("<p>word " * 200_000))
    assert 0 < len(text) <= web_module.PAGE_BYTES


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("http://127.0.0.1:9/", "the address is not public"),
        ("http://localhost/", "the address is not public"),
        ("http://[::1]/", "the address is not public"),
        ("http://169.254.169.254/latest/meta-data/", "the address is not public"),
        ("http://10.0.0.1/", "the address is not public"),
        ("http://[::ffff:127.0.0.1]/", "the address is not public"),
        ("http://0x7f000001/", "the address is not public"),
        ("http://nowhere.invalid/", "unknown host"),
        ("file:///etc/passwd", "'file:///etc/passwd' is not an http:// or https:// URL"),
        ("ftp://example.com/", "'ftp://example.com/' is not an http:// or https:// URL"),
        ("http://", "'http://' is not an http:// or https:// URL"),
        ("http://[", "Invalid IPv6 URL"),
    ],
)
async def test_only_public_addresses_are_fetched(url: str, error: str):
    async with Client() as http:
        (got,) = await Pages(http).extract([url])
        assert (got.text, got.error) == ("", error)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("64:ff9b::5db8:d822", True),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("::1", False),
        ("::ffff:10.0.0.1", False),
        ("::127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
        ("224.0.0.1", False),
        ("ff02::1", False),
    ],
)
def test_an_address_in_the_clothes_of_another_is_known(address: str, public: bool):
    assert is_public(address) is public


async def test_a_redirect_to_a_private_address_is_refused_too(monkeypatch: pytest.MonkeyPatch):
    checked: list[str] = []
    require = web_module._require_public  # pyright: ignore[reportPrivateUsage]

    async def first_hop_passes(url: str) -> None:
        checked.append(url)
        if len(checked) > 1:
            await require(url)

    monkeypatch.setattr(web_module, "_require_public", first_hop_passes)
    secret = {"/": Reply(302, b"", {"Location": "/secret"}), "/secret": page("secret")}
    assert await fetched(lambda r: secret[r.path], allow_private=False) == ("", "the address is not public")
    assert len(checked) == 2


async def test_too_many_pages_at_once():
    async with open_web_tools("brave", lambda _: Reply()) as (tools, _):
        with pytest.raises(ValueError, match="6 addresses; give at most 5"):
            await tools["web_extract"].run({"urls": ["http://x.example/"] * 6})


async def test_settings_that_cannot_work():
    async with Client() as http:
        with pytest.raises(ConfigError, match=r"unknown provider 'tavilly'; did you mean 'tavily'\?"):
            make_provider(WebSettings(provider="tavilly"), http)  # pyright: ignore[reportArgumentType]
        with pytest.raises(ConfigError, match=r"tools\.web\.api_key_var: brave needs a key"):
            make_provider(WebSettings(provider="brave"), http)
        with pytest.raises(ConfigError, match=r"tools\.web\.base_url"):
            make_provider(WebSettings(provider="searxng"), http)
        provider: WebProvider = make_provider(WebSettings(provider="tavily"), http, key="k-123")
        assert "k-123" not in repr(provider)


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>one</p><p>two <i>three</i></p>", "one\ntwo three"),
        ("<ul><li>a<li>b</ul>", "a\nb"),
        ("x<br>y&nbsp;z &eacute; &#x1F600;", "x\ny z é 😀"),
        ("<style>p{}</style><script>var a = '<p>';</script>seen<svg><text>no</text></svg>", "seen"),
        ("<!-- no --><table><tr><td>1<td>2</table>", "1\n2"),
        ("<a href=x>link</a>ed wo<b>r</b>d", "linked word"),
        ("<script>never closed", ""),
        ("</p></div>stray", "stray"),
        ("", ""),
    ],
)
def test_html_becomes_text(html: str, text: str):
    assert strip_html(html) == text
