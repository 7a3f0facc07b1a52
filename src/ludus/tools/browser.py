"""The toolset `browser`: a real Chromium in the agent's slot, driven through Playwright.

    tool ──> Playwright, in the driver ──> 127.0.0.1 ──> the slot's port ──> browser_relay.py ──> Chromium, in the slot

Chromium runs in the slot like any program of the agent: it reaches what the slot reaches, and nothing else. In a slot
without a network that is what the agent serves on its own loopback, and its own files; with `sandbox.network` the web
too. It has the slot's memory and processes (1 GB of `sandbox.memory_mb` are enough for most pages). It is dead before
`verify` runs, as every process of the agent is.

It is started by the first call, one for each rollout, and again by the next call if it has ended. The slot must have
Chromium and Python 3.8. `BrowserHost` is Playwright, once for a run.

Text of pages and the debugging protocol come from a place that the agent controls: they are read as data, and files
that pages offer are not downloaded.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

from msgspec import Meta

from ludus.errors import ConfigError, ToolBroken
from ludus.images import encode_image
from ludus.sandbox import Sandbox
from ludus.sandbox.port.local_port import open_port
from ludus.tools import BadArguments, Tool, tool
from ludus.tools.settings import BrowserSettings
from ludus.tools.toolsets import Toolset
from ludus.tools.vision import Viewer
from ludus.types import Observation

Page = Any
Browser = Any
"""A page and a browser of `playwright.async_api`. The package is an extra: its types are not always there."""

_RELAY = Path(__file__).with_name("browser_relay.py")
_RELAY_PATH = "/tmp/ludus-browser-relay.py"
_START_SECONDS = 60.0
_SETTLE_SECONDS = 0.3
_CONSOLE_LINES = 100
_SCROLLED = 0.8
"""The part of the window's height that one scroll moves."""


class BrowserHost:
    """Playwright, for all rollouts of a run. It is started when the first browser is."""

    def __init__(self, settings: BrowserSettings) -> None:
        self.settings = settings
        self._lock = asyncio.Lock()
        self._playwright: Any = None
        self._sessions: set[asyncio.Task[None]] = set()

    async def connect(self, url: str) -> Browser:
        """Connect with a Chromium by the address of its debugging socket."""
        async with self._lock:
            if self._playwright is None:
                api: Any = import_module("playwright.async_api")  # an extra
                self._playwright = await api.async_playwright().start()
        return await self._playwright.chromium.connect_over_cdp(url, timeout=1000 * _START_SECONDS)

    def keep(self, session: "asyncio.Task[None]") -> None:
        self._sessions.add(session)
        session.add_done_callback(self._sessions.discard)

    async def close(self) -> None:
        for session in tuple(self._sessions):
            session.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)
        if self._playwright is not None:
            await self._playwright.stop()
            self._playwright = None


class RolloutBrowser:
    """The browser of one rollout."""

    def __init__(self, host: BrowserHost, box: Sandbox) -> None:
        self._host = host
        self._box = box
        self._page: Page | None = None
        self.console: deque[str] = deque(maxlen=_CONSOLE_LINES)

    @property
    def settings(self) -> BrowserSettings:
        return self._host.settings

    async def get_page(self) -> Page:
        """The page that was opened last. Starts the browser if none runs."""
        if self._page is None or self._page.is_closed():  # none yet, or the agent has ended it
            ready: asyncio.Future[Page] = asyncio.get_running_loop().create_future()
            session = asyncio.create_task(self._serve(ready))
            self._host.keep(session)
            try:
                self._page = await ready
            except asyncio.CancelledError:
                session.cancel()
                raise
        return self._page

    async def _serve(self, ready: asyncio.Future[Page]) -> None:
        """Run a browser until its connection ends."""
        try:
            async with self._open_bridge() as bridge, self._open_page(bridge.url) as page:
                ready.set_result(page)
                await bridge.ended.wait()
                self._forget(page)
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)

    def _forget(self, page: Page) -> None:
        """Forget the pages of a browser that has ended, unless another one runs already."""
        if self._page is not None and self._page.context is page.context:
            self._page = None

    @asynccontextmanager
    async def _open_page(self, url: str) -> AsyncGenerator[Page, None]:
        browser = await self._host.connect(url)
        try:
            size: Any = {"width": self.settings.width, "height": self.settings.height}
            context = await browser.new_context(viewport=size, accept_downloads=False)
            context.set_default_timeout(1000 * self.settings.seconds)
            context.on("page", self._watch)
            yield await context.new_page()
        finally:
            with contextlib.suppress(Exception):  # its connection may be gone
                await browser.close()

    def _watch(self, page: Page) -> None:
        """Make a new page, which a click may have opened, the current one."""
        self._page = page
        page.on("console", self._note_message)
        page.on("pageerror", self._note_error)
        page.on("close", self._leave)

    def _note_message(self, message: Any) -> None:
        self.console.append(f"{message.type}: {message.text}")

    def _note_error(self, error: Any) -> None:
        self.console.append(f"error: {error}")

    def _leave(self, closed: Page) -> None:
        if closed is self._page:
            pages = [page for page in closed.context.pages if page is not closed]
            self._page = pages[-1] if pages else self._page

    @asynccontextmanager
    async def _open_bridge(self) -> "AsyncGenerator[_Bridge, None]":
        """Start Chromium in the slot, and connect its debugging socket with a port of this host."""
        bridge = _Bridge()
        async with open_port(self._box, bridge.make_protocol) as port:
            await self._box.write(_RELAY_PATH, _RELAY.read_bytes())
            words = (self.settings.executable, str(self.settings.width), str(self.settings.height))
            relay = quote(self._box.resolve(_RELAY_PATH))
            process = await self._box.start(f"python3 -I {relay} {port} {' '.join(map(quote, words))}")
            try:
                await self._wait_for(bridge, process)
                async with bridge.serve():
                    yield bridge
            finally:  # the relay ends with its connection; later, the slot may be that of another rollout
                bridge.close()

    async def _wait_for(self, bridge: "_Bridge", process: str) -> None:
        """Return when Chromium has connected. Slots do not report the end of a process, so it is polled."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS):
                while not bridge.is_connected:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(asyncio.shield(bridge.connected), 0.2)
                    if not bridge.is_connected and await self._box.poll(process) is not None:
                        break
        if bridge.is_connected:
            return
        log = (await self._box.log(process)).decode(errors="replace").strip()[-500:]
        if "no-executable:" in log:
            raise ToolBroken(
                f"tools.browser.executable: the slot has no {self.settings.executable}: install Chromium where slots "
                "see it, or name another path",
                retryable=False,
            )
        await self._box.kill(process)
        raise RuntimeError(f"The browser did not start: {log or 'no answer'}")


class _Bridge:
    """Passes bytes between the relay in the slot and Playwright. Each side may connect once."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = loop.create_future()
        self.ended = asyncio.Event()
        self.url = ""
        self._writers: list[asyncio.StreamWriter] = []
        self._passing: list[asyncio.Task[None]] = []

    @property
    def is_connected(self) -> bool:
        return self.connected.done()

    def make_protocol(self) -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._accept_relay)

    def _accept_relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.connected.done():  # another program of the agent's
            writer.close()
            return
        self._writers.append(writer)
        self.connected.set_result((reader, writer))

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[None, None]:
        """Listen for Playwright on this host, at `url`."""
        reader, writer = self.connected.result()
        path = (await reader.readline()).decode(errors="replace").strip()
        if not path.startswith("/devtools/browser/"):
            raise RuntimeError("The browser did not start: what answered is no Chromium")

        def accept(ours: asyncio.StreamReader, our_writer: asyncio.StreamWriter) -> None:
            if len(self._writers) > 1:
                our_writer.close()
                return
            self._writers.append(our_writer)
            self._passing += [
                asyncio.create_task(self._pass_on(ours, writer)),
                asyncio.create_task(self._pass_on(reader, our_writer)),
            ]

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}"
        try:
            yield
        finally:
            server.close()

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
        except OSError:
            pass
        finally:  # both sides end together: then what waits for an answer fails at once
            self._close_writers()

    def close(self) -> None:
        for task in self._passing:
            task.cancel()
        self._close_writers()

    def _close_writers(self) -> None:
        self.ended.set()
        for writer in self._writers:
            writer.close()


# ---- the tools ----------------------------------------------------------------------------------------------------


async def _describe_page(page: Page) -> str:
    """The page as a tree of roles and names. What can be acted on has a reference, `[ref=e5]`."""
    tree = await page.aria_snapshot(mode="ai")
    return f"{await page.title() or '(no title)'}\n{page.url}\n\n{tree.strip() or '(the page is empty)'}"


def _find(page: Page, ref: str) -> Any:
    name = ref.strip().strip("[]@").removeprefix("ref=")
    if not name.isalnum():
        raise BadArguments(f"'{ref}' is no reference of the snapshot, such as e5")
    return page.locator(f"aria-ref={name}")


Ref = Annotated[str, Meta(description="The element's reference in the latest snapshot, such as e5.")]


@tool(bound=True)
async def browser_navigate(
    browser: RolloutBrowser, url: Annotated[str, Meta(description="A whole address: http://, https:// or file://.")]
) -> str:
    """Open an address in the browser. Returns the page as a tree of its elements, with references for the other
    browser tools."""
    page = await browser.get_page()
    await page.goto(url, wait_until="domcontentloaded")
    return await _describe_page(page)


@tool(bound=True)
async def browser_snapshot(browser: RolloutBrowser) -> str:
    """Show the current page as a tree of its elements, with references."""
    return await _describe_page(await browser.get_page())


@tool(bound=True)
async def browser_click(browser: RolloutBrowser, ref: Ref) -> str:
    """Click an element. Returns the page after the click."""
    await _find(await browser.get_page(), ref).click()
    return await _describe_page(await _settle(browser))


@tool(bound=True)
async def browser_type(
    browser: RolloutBrowser,
    ref: Ref,
    text: str,
    submit: Annotated[bool, Meta(description="Press Enter afterwards.")] = False,
) -> str:
    """Replace the text of an input field."""
    field = _find(await browser.get_page(), ref)
    await field.fill(text)
    if submit:
        await field.press("Enter")
    return await _describe_page(await _settle(browser))


@tool(bound=True)
async def browser_press(
    browser: RolloutBrowser, key: Annotated[str, Meta(description="Such as Enter, Tab, ArrowDown or Control+a.")]
) -> str:
    """Press a key on the keyboard."""
    await (await browser.get_page()).keyboard.press(key)
    return await _describe_page(await _settle(browser))


@tool(bound=True)
async def browser_scroll(browser: RolloutBrowser, direction: Literal["up", "down"]) -> str:
    """Scroll the page by most of the window's height."""
    page = await browser.get_page()
    distance = _SCROLLED * browser.settings.height * (1 if direction == "down" else -1)
    place = await page.evaluate(
        "y => { window.scrollBy(0, y); const d = document.documentElement;"
        " return [Math.round(window.scrollY), window.innerHeight, d.scrollHeight]; }",
        distance,
    )
    return f"The window shows the pixels {place[0]} to {place[0] + place[1]} of {place[2]}."


@tool(bound=True)
async def browser_back(browser: RolloutBrowser) -> str:
    """Go back to the page before."""
    page = await browser.get_page()
    await page.go_back(wait_until="commit")  # a page that is kept in memory is not loaded again
    if page.url == "about:blank":
        return "There is no page before the first one."
    return await _describe_page(page)


@tool(bound=True)
async def browser_get_images(browser: RolloutBrowser) -> str:
    """List the pictures of the current page: address, alternative text and size."""
    page = await browser.get_page()
    found: list[dict[str, Any]] = await page.evaluate(
        "[...document.images].slice(0, 100).map(i => ({src: i.currentSrc || i.src, alt: i.alt,"
        " width: i.naturalWidth, height: i.naturalHeight}))"
    )
    lines = [f"{i['src'][:300]}  {i['alt'] or '(no text)'}  {i['width']}×{i['height']}" for i in found]
    return "\n".join(lines) or "The page has no pictures."


@tool(bound=True)
async def browser_console(browser: RolloutBrowser) -> str:
    """Show the latest messages and errors of the pages' scripts."""
    return "\n".join(browser.console) or "No messages."


@tool(bound=True)
async def browser_screenshot(browser: RolloutBrowser) -> Observation:
    """Take a picture of what the window shows."""
    page = await browser.get_page()
    return Observation(f"{page.url} as the window shows it:", (encode_image(await page.screenshot()),))


async def _settle(browser: RolloutBrowser) -> Page:
    """The current page after an action that may have opened another one or another address. Nothing tells whether it
    will, so it gets a moment."""
    await asyncio.sleep(_SETTLE_SECONDS)
    page = await browser.get_page()
    with contextlib.suppress(Exception):  # a page that keeps loading is shown as it is
        await page.wait_for_load_state("domcontentloaded")
    return page


_TOOLS = (
    browser_navigate,
    browser_snapshot,
    browser_click,
    browser_type,
    browser_press,
    browser_scroll,
    browser_back,
    browser_get_images,
    browser_console,
)


def make_browser_toolset(host: BrowserHost, viewer: Viewer | None) -> Toolset:
    """The toolset of a run. With a model for pictures, the agent may ask it about the page."""

    def make(box: Sandbox | None) -> Sequence[Tool]:
        assert box is not None
        browser = RolloutBrowser(host, box)
        tools = [each.bind(browser) for each in _TOOLS]
        if host.settings.screenshots:
            tools.append(browser_screenshot.bind(browser))
        if viewer is not None:
            tools.append(_make_vision_tool(browser, viewer))
        return tools

    return Toolset("browser", "use a web browser", make, needs_box=True)


def _make_vision_tool(browser: RolloutBrowser, viewer: Viewer) -> Tool:
    @tool
    async def browser_vision(question: str) -> str:
        """Ask a question about how the current page looks."""
        page = await browser.get_page()
        return await viewer.ask(encode_image(await page.screenshot()), question)

    return browser_vision


def check_playwright() -> None:
    """Raise `ConfigError` if Playwright is not installed."""
    from importlib.util import find_spec

    if find_spec("playwright") is None:
        raise ConfigError("tools.browser: the browser needs: pip install 'ludus-train[browser]'")
