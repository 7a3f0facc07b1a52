"""The toolset `browser`: a real Chromium in a slot, where Playwright and Chromium are installed."""

import contextlib
import re
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

import pytest
from tests.sandbox_kit import make_pool

from ludus.errors import ConfigError, ToolBroken
from ludus.models.scripted import ScriptedModel
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.local.bwrap import Bwrap
from ludus.sandbox.local.unisolated import Local
from ludus.tools import BadArguments
from ludus.tools.browser import BrowserHost, check_playwright, make_browser_toolset
from ludus.tools.settings import BrowserSettings
from ludus.tools.vision import Viewer
from ludus.types import Observation

CHROMIUM = shutil.which("/usr/lib/chromium/chromium") or ""
real = pytest.mark.skipif(not CHROMIUM or find_spec("playwright") is None, reason="needs Playwright and Chromium")

FIRST = (
    b"<title>Shop</title><h1>Lamps</h1><form action=two.html><input name=q aria-label=Query><button>Go</button></form>"
    b"<a href=two.html target=_blank>more</a><div style='height: 3000px'></div><img src=lamp.png alt='a lamp'>"
)
SECOND = b"<title>Two</title><script>console.log('asked', location.search)</script><p>Second page</p>"

Call = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def open_browser(backend: Any, settings: BrowserSettings) -> AsyncGenerator[tuple[Call, Sandbox, BrowserHost]]:
    """Calls of the tools of a browser in a fresh slot."""
    host, slots = BrowserHost(settings), backend()
    try:
        async with make_pool(slots.create) as pool, pool.lease(SandboxSpec(memory_mb=2048)) as box:
            toolset = make_browser_toolset(host, Viewer(ScriptedModel(lambda *_: "It is green.")))
            tools = {each.name: each for each in (toolset.make(box) if toolset.make else ())}

            async def call(name: str, **arguments: Any) -> Any:
                return await tools[f"browser_{name}"].run(arguments)

            yield call, box, host
    finally:
        await host.close()
        await slots.close()


async def serve(box: Sandbox) -> str:
    """Serve the pages in the slot. Returns their address."""
    await box.write("site/index.html", FIRST)
    await box.write("site/two.html", SECOND)
    program = (
        "import http.server as h, functools as f\n"
        "s = h.ThreadingHTTPServer(('127.0.0.1', 0), f.partial(h.SimpleHTTPRequestHandler, directory='site'))\n"
        "open('port', 'w').write(str(s.server_port))\ns.serve_forever()"
    )
    await box.write("serve.py", program.encode())
    await box.start("python3 serve.py")
    await box.exec("until [ -s port ]; do sleep 0.02; done")
    return f"http://127.0.0.1:{(await box.read('port')).decode()}"


def find_ref(snapshot: str, what: str) -> str:
    found = re.search(rf"{what}.*?\[ref=(\w+)\]", snapshot)
    assert found, snapshot
    return found[1]


@real
async def test_a_browser_in_a_slot(bwrap):
    async with open_browser(Bwrap, BrowserSettings(executable=CHROMIUM, screenshots=True, seconds=20)) as (
        call,
        box,
        _,
    ):
        address = await serve(box)
        page = await call("navigate", url=f"{address}/")
        assert page.startswith(f"Shop\n{address}/\n") and 'heading "Lamps"' in page
        assert "lamp.png  a lamp" in await call("get_images")
        assert "pixels 640 to 1440" in await call("scroll", direction="down")
        page = await call("type", ref=find_ref(page, 'textbox "Query"'), text="lamp", submit=True)
        assert f"{address}/two.html?q=lamp" in page and "Second page" in page
        assert "log: asked ?q=lamp" in await call("console")
        page = await call("back")
        ref = find_ref(page, 'link "more"')
        page = await call("click", ref=f"[ref={ref}]")
        while "Second page" not in page:  # the new tab becomes the current page
            page = await call("snapshot")
        await call("press", key="Tab")
        assert await call("vision", question="Which color?") == "It is green."
        shown = await call("screenshot")
        assert isinstance(shown, Observation) and shown.images[0].startswith("data:image/png;base64,")
        with pytest.raises(Exception, match="ERR_"):  # the slot has no network
            await call("navigate", url="http://192.0.2.1/")
        with pytest.raises(BadArguments, match="is no reference"):
            await call("click", ref="a, b")
        await box.exec("pkill -9 chromium")
        with contextlib.suppress(Exception):  # the call that finds it dead
            await call("snapshot")
        assert "Second page" in await call("navigate", url=f"{address}/two.html"), "it is started again"


async def test_a_slot_without_chromium_is_the_users_problem():
    async with open_browser(Local, BrowserSettings(executable="/no/such/file")) as (call, _, _):
        with pytest.raises(ToolBroken, match=r"tools\.browser\.executable: the slot has no /no/such/file") as broken:
            await call("snapshot")
        assert not broken.value.retryable


async def test_what_does_not_start_is_shown_to_the_model():
    async with open_browser(Local, BrowserSettings(executable="false")) as (call, _, _):
        with pytest.raises(RuntimeError, match="The browser did not start: Chromium ended with exit code 1"):
            await call("snapshot")


FAKE = """#!/usr/bin/env python3
import pathlib, socket, sys
(profile,) = [word.partition("=")[2] for word in sys.argv if word.startswith("--user-data-dir=")]
server = socket.create_server(("127.0.0.1", 0))
pathlib.Path(profile, "DevToolsActivePort").write_text(f"{server.getsockname()[1]}\\n/etc/passwd")
server.accept()[0].recv(1)
"""


async def test_a_program_of_the_agent_that_answers_in_place_of_chromium_is_refused():
    async with open_browser(Local, BrowserSettings(executable="x")) as (call, box, host):
        await box.write("fake", FAKE.encode())
        await box.exec("chmod +x fake")
        fake = (await box.exec("realpath fake")).text.strip()
        host.settings = BrowserSettings(executable=fake)
        with pytest.raises(RuntimeError, match="what answered is no Chromium"):
            await call("snapshot")


def test_without_the_extra_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"ludus-train\[browser\]"):
        check_playwright()
