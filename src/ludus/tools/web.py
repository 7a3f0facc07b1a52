"""The web tools: search and reading pages, through a provider that the operator chooses.

Requests are made by this process, not in the slot: the model gives the query, and never sees the key. `Tavily` searches
and extracts. `Brave` and `Searxng` (self-hosted, no key) search, and `Pages` fetches pages and strips the HTML. The
wire formats are those that the providers document. The tests use loopback servers that follow them, not the providers.

The model is shown: no results, a page that is gone or refused, a query that the provider rejects. A provider that is
down, limits requests for long or refuses the key is a failure of the world (`ToolBroken`).

`Pages` fetches any address that the model names, so it refuses hosts whose addresses are not public (this machine, the
local network, cloud metadata), at every redirect. It resolves the name before the connection does, so a name server
that changes its reply in between is not guarded against. Block such networks at the firewall if that matters.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Annotated, Protocol, TypeVar
from urllib.parse import urlencode, urljoin

import msgspec
from msgspec import Meta, Struct

from ludus.errors import ConfigError, ToolBroken, suggest
from ludus.http_client import Client, HttpError, Response, Timeouts, send_with_retries, split_url
from ludus.sandbox import Sandbox
from ludus.tools import Tool, tool
from ludus.tools.settings import WebSettings
from ludus.tools.toolsets import Toolset

RESULTS = 20
"""The most results of one search."""
PAGES = 5
"""The most pages that one call reads."""
PAGE_CHARS = 50_000
PAGE_BYTES = 1_000_000
"""How much of a page is read."""
REDIRECTS = 5
PAUSES = (1.0, 2.0)
"""Seconds before a provider that is busy or cannot be reached is asked again."""
TIMEOUTS = Timeouts(connect=10.0, silence=30.0, total=60.0)

Reply = TypeVar("Reply")


class Hit(Struct, frozen=True):
    """One search result."""

    title: str = ""
    url: str = ""
    snippet: str = ""


class Page(Struct, frozen=True):
    """The text of one address, or why it could not be read."""

    url: str
    text: str = ""
    error: str = ""


class WebProvider(Protocol):
    async def search(self, query: str, limit: int) -> Sequence[Hit]: ...

    async def extract(self, urls: Sequence[str]) -> Sequence[Page]:
        """One page for every address, in order."""
        ...


# ---- the tools ----------------------------------------------------------------------------------------------------


def make_web_toolsets(provider: WebProvider) -> tuple[Toolset, Toolset]:
    """The toolsets `search` and `extract`, for `Registry.extend`. The toolset `web` includes both."""

    def search(_: Sandbox | None) -> Sequence[Tool]:
        return [web_search.bind(provider)]

    def extract(_: Sandbox | None) -> Sequence[Tool]:
        return [web_extract.bind(provider)]

    return Toolset("search", "search the web", search), Toolset("extract", "read web pages", extract)


@tool(bound=True, parallel=True)
async def web_search(
    provider: WebProvider,
    query: Annotated[str, Meta(description="What to look for.", min_length=1)],
    limit: Annotated[int, Meta(description=f"How many results, at most {RESULTS}.", ge=1)] = 5,
) -> str:
    """Search the web. Returns titles, addresses and short extracts; read a whole page with web_extract."""
    hits = await provider.search(query, min(limit, RESULTS))
    rows = [f"{n}. {hit.title}\n   {hit.url}\n   {_join_lines(hit.snippet)}" for n, hit in enumerate(hits[:limit], 1)]
    return "\n".join(rows) or "No results."


@tool(bound=True, parallel=True)
async def web_extract(
    provider: WebProvider,
    urls: Annotated[list[str], Meta(description=f"Addresses to read, at most {PAGES}.", min_length=1)],
) -> str:
    """Read web pages as text."""
    if len(urls) > PAGES:
        raise ValueError(f"web_extract: {len(urls)} addresses; give at most {PAGES} at a time")
    return "\n\n".join(_format_page(page) for page in await provider.extract(urls))


def _format_page(page: Page) -> str:
    if page.error:
        return f"# {page.url}\n[could not be read: {page.error}]"
    rest = len(page.text) - PAGE_CHARS
    return f"# {page.url}\n{page.text[:PAGE_CHARS]}" + (f"\n[... {rest} more characters]" if rest > 0 else "")


def _join_lines(text: str) -> str:
    return " ".join(text.split())


# ---- providers ----------------------------------------------------------------------------------------------------


_PROVIDERS = ("tavily", "brave", "searxng")


def make_provider(settings: WebSettings, http: Client, *, key: str = "") -> WebProvider:
    """Make the provider that the settings name. The caller closes the client."""
    name, base_url, allow_private = settings.provider, settings.base_url, settings.allow_private
    if name not in _PROVIDERS:
        raise ConfigError(f"tools.web.provider: unknown provider '{name}'; {suggest(name, list(_PROVIDERS))}")
    if name == "searxng":
        if not base_url:
            raise ConfigError("tools.web.base_url: searxng is self-hosted; give the address of your server")
        return Searxng(http, base_url.rstrip("/"), Pages(http, allow_private))
    if not key:
        raise ConfigError(f"tools.web.api_key_var: {name} needs a key; name the environment variable that holds it")
    if name == "brave":
        return Brave(http, key, Pages(http, allow_private), (base_url or Brave.base_url).rstrip("/"))
    return Tavily(http, key, (base_url or Tavily.base_url).rstrip("/"))


class _TavilyHit(Struct):
    title: str | None = ""
    url: str = ""
    content: str | None = ""
    raw_content: str | None = ""
    error: str | None = ""


class _TavilyReply(Struct):
    results: list[_TavilyHit] = []
    failed_results: list[_TavilyHit | str] = []


@dataclass(frozen=True)
class Tavily:
    """Search and extraction by tavily.com."""

    http: Client
    key: str = field(repr=False)
    base_url: str = "https://api.tavily.com"

    async def search(self, query: str, limit: int) -> Sequence[Hit]:
        reply = await self._post("/search", {"query": query, "max_results": limit})
        return [Hit(hit.title or "", hit.url, hit.content or "") for hit in reply.results]

    async def extract(self, urls: Sequence[str]) -> Sequence[Page]:
        reply = await self._post("/extract", {"urls": list(urls), "format": "markdown"})
        texts = {hit.url: hit.raw_content or "" for hit in reply.results}
        errors = {hit.url: hit.error or "" for hit in reply.failed_results if isinstance(hit, _TavilyHit)}
        return [
            Page(url, texts[url]) if url in texts else Page(url, error=errors.get(url) or "the provider has no text")
            for url in urls
        ]

    async def _post(self, path: str, body: dict[str, object]) -> _TavilyReply:
        headers = (("Authorization", f"Bearer {self.key}"), ("Content-Type", "application/json"))
        response = await _send_request(self.http, "POST", self.base_url + path, headers, msgspec.json.encode(body))
        return _decode_reply(response, _TavilyReply, "tavily")


class _BraveHit(Struct):
    title: str = ""
    url: str = ""
    description: str = ""


class _BraveWeb(Struct):
    results: list[_BraveHit] = []


class _BraveReply(Struct):
    web: _BraveWeb | None = None


@dataclass(frozen=True)
class Brave:
    """Search by Brave. Pages are fetched directly."""

    http: Client
    key: str = field(repr=False)
    pages: "Pages"
    base_url: str = "https://api.search.brave.com/res/v1"

    async def search(self, query: str, limit: int) -> Sequence[Hit]:
        headers = (("X-Subscription-Token", self.key), ("Accept", "application/json"))
        address = f"{self.base_url}/web/search?{urlencode({'q': query, 'count': limit})}"
        reply = _decode_reply(await _send_request(self.http, "GET", address, headers), _BraveReply, "brave")
        found = reply.web.results if reply.web else []
        return [Hit(strip_html(hit.title), hit.url, strip_html(hit.description)) for hit in found]

    async def extract(self, urls: Sequence[str]) -> Sequence[Page]:
        return await self.pages.extract(urls)


class _SearxngHit(Struct):
    title: str | None = ""
    url: str = ""
    content: str | None = ""


class _SearxngReply(Struct):
    results: list[_SearxngHit] = []


@dataclass(frozen=True)
class Searxng:
    """Search by a self-hosted SearXNG server whose settings allow the json format. Pages are fetched directly."""

    http: Client
    base_url: str
    pages: "Pages"

    async def search(self, query: str, limit: int) -> Sequence[Hit]:
        address = f"{self.base_url}/search?{urlencode({'q': query, 'format': 'json'})}"
        response = await _send_request(
            self.http, "GET", address, hint="does its settings.yml list json under search.formats?"
        )
        reply = _decode_reply(response, _SearxngReply, "searxng")
        return [Hit(hit.title or "", hit.url, hit.content or "") for hit in reply.results[:limit]]

    async def extract(self, urls: Sequence[str]) -> Sequence[Page]:
        return await self.pages.extract(urls)


async def _send_request(
    http: Client,
    method: str,
    url: str,
    headers: Sequence[tuple[str, str]] = (),
    body: bytes = b"",
    hint: str = "check the key and the plan",
) -> Response:
    """Send a request to a provider. Retries while it is busy or cannot be reached; then raises `ToolBroken`."""
    try:
        response = await send_with_retries(
            lambda: http.request(method, url, headers, body, timeouts=TIMEOUTS), PAUSES, _is_busy
        )
    except HttpError as error:
        raise ToolBroken(f"web: {error}") from None
    status = response.status
    if status == 200:
        return response
    words = _join_lines(response.body[:300].decode(errors="replace"))
    problem = f"{split_url(url).origin} answered {status}: {words}"
    if status in (401, 402, 403, 404):
        raise ToolBroken(f"web: {problem}; {hint}", retryable=False)
    if _is_busy(status):
        raise ToolBroken(f"web: {problem}")
    raise ValueError(problem)


def _is_busy(status: int) -> bool:
    return status == 429 or status >= 500


def _decode_reply(response: Response, kind: type[Reply], provider: str) -> Reply:
    try:
        return msgspec.json.decode(response.body, type=kind)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise ToolBroken(f"web: {provider} sent something that is not its documented answer ({error})") from None


# ---- fetching pages -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pages:
    """Fetches pages and strips the HTML."""

    http: Client
    allow_private: bool = False
    """Whether it may fetch from this machine and the local network."""

    async def extract(self, urls: Sequence[str]) -> Sequence[Page]:
        async with asyncio.TaskGroup() as group:
            pages = [group.create_task(self._read_page(url)) for url in urls]
        return [page.result() for page in pages]

    async def _read_page(self, url: str) -> Page:
        try:
            response = await self._fetch(url)
            return Page(url, await asyncio.to_thread(_read_body, response))
        except (HttpError, ValueError) as error:
            return Page(url, error=str(error))

    async def _fetch(self, url: str) -> Response:
        headers = (("Accept", "text/html, text/*;q=0.9, application/json;q=0.8"), ("User-Agent", "ludus"))
        for _ in range(REDIRECTS + 1):
            if not self.allow_private:
                await _require_public(url)
            response = await self.http.request("GET", url, headers, timeouts=TIMEOUTS)
            target = response.get_header("location")
            if response.status not in (301, 302, 303, 307, 308) or not target:
                if response.status != 200:
                    raise ValueError(f"the server answered {response.status}")
                return response
            url = urljoin(url, target)
        raise ValueError(f"more than {REDIRECTS} redirects")


async def _require_public(url: str) -> None:
    """Raise ValueError for a host that is not on the public internet."""
    target = split_url(url)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError:
        raise ValueError("unknown host") from None
    for *_, address in found:
        if not is_public(str(address[0]).partition("%")[0]):
            raise ValueError("the address is not public")


def is_public(address: str) -> bool:
    """Whether an address, and the IPv4 address embedded in it, belong to a host on the public internet."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        low = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        inner = low if any(ip in network for network in _HOLDS_IPV4) else ip.sixtofour
        if inner is not None and not is_public(str(inner)):
            return False
    return ip.is_global and not ip.is_multicast


_HOLDS_IPV4 = (ipaddress.IPv6Network("::/96"), ipaddress.IPv6Network("64:ff9b::/96"))


def _read_body(response: Response) -> str:
    kind, _, parameters = response.get_header("content-type").lower().partition(";")
    if kind and not kind.strip().startswith("text/") and not re.search(r"(json|xml)\s*$", kind):
        raise ValueError(f"it is {kind.strip()}, not text")
    charset = re.search(r"charset=[\"']?([\w-]+)", parameters)
    body = response.body[:PAGE_BYTES]
    try:
        text = body.decode(charset.group(1) if charset else "utf-8", errors="replace")
    except LookupError:  # an unknown charset
        text = body.decode(errors="replace")
    return strip_html(text) if "html" in kind or not kind else text


_HIDDEN = frozenset(["script", "style", "noscript", "template", "svg", "iframe"])
_INLINE = frozenset(
    {"a", "abbr", "b", "cite", "code", "em", "font", "i", "img", "kbd", "mark", "q", "s", "samp", "small", "span"}
    | {"strong", "sub", "sup", "time", "tt", "u", "var", "wbr"}
)


class _Stripper(HTMLParser):
    """Collects the text of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN:
            self._hidden.append(tag)
        elif tag not in _INLINE:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        elif tag not in _INLINE:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)


def strip_html(html: str) -> str:
    """The readable text of a page: one line per block, without scripts, styles and tags."""
    stripper = _Stripper()
    stripper.feed(html)
    stripper.close()
    lines = (_join_lines(line) for line in "".join(stripper.parts).split("\n"))
    return "\n".join(line for line in lines if line)
