"""A real Chromium that looks at `ludus view`, for tests of its pages.

LUDUS_TEST_SCREENSHOTS=DIR keeps a picture of every page, on a desktop, in the dark and on a phone.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.cli_kit import LUDUS

CHROMIUM = shutil.which("chromium") or ""
AXE = Path(sys.prefix, "node/node_modules/axe-core/axe.min.js")
"""`make lint` fetches it."""
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
FLAGS += ("--disable-component-update", "--disable-sync")  # nothing but the pages is fetched
PATIENCE_MS = 180_000
MODES = {
    "desktop": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
SCREENSHOTS = os.environ.get("LUDUS_TEST_SCREENSHOTS", "")

needs_chromium = pytest.mark.skipif(
    not CHROMIUM or find_spec("playwright") is None,
    reason="needs Debian's chromium (make backends) and Playwright (the extra dev)",
)


class View(NamedTuple):
    """`ludus view` in a process of its own."""

    url: str
    address: str
    folder: Path


@contextmanager
def serve_view(folder: Path, *words: str, runs: str = "runs") -> Generator[View]:
    """Run `ludus view` on the runs of a folder until the block ends."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    command = [*LUDUS, "view", runs, "--no-browser", "--port", "0", "--json", *words]
    with (folder / "view.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, env=environment)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, (folder / "view.log").read_text()
        said = json.loads(line)
        yield View(said["url"], said["address"], folder)
    finally:
        process.stdout.close()
        process.terminate()
        process.wait(60)


class Look:
    """A window of the browser on a view. What the console says, and what fails, is kept."""

    def __init__(self, context: Any, view: View) -> None:
        self.context, self.view = context, view
        self.page = context.new_page()
        self.problems: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.goto(view.address)
        self.page.wait_for_selector("main h1")

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text}")

    def open(self, place: str) -> Any:
        """Go to a page, by what stands after `#`, and wait until it is there."""
        self.page.evaluate(
            "place => { document.querySelector('main').setAttribute('aria-busy', ''); location.hash = place }", place
        )
        if self.page.evaluate("place => decodeURI(location.hash) !== decodeURI('#' + place)", place):
            raise AssertionError(f"{place} is not an address")
        self.wait()
        return self.page

    def wait(self) -> None:
        self.page.wait_for_selector("main:not([aria-busy])")  # not a function: the policy of the pages forbids `eval`

    def find_overflow(self) -> list[str]:
        """Elements that are wider than the window."""
        return self.page.evaluate(
            "document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll('body *')]"
            ".filter(one => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.scroll'))"
            ".map(one => `${one.tagName}.${one.className}`).slice(0, 5)"
        )

    def find_barriers(self) -> list[str]:
        """What axe finds serious or critical."""
        if not AXE.exists():
            return []
        self.page.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
        found = self.page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
        return [
            f"{each['id']}: {[node['html'][:150] for node in each['nodes'][:3]]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]

    def keep(self, name: str) -> None:
        """Keep a picture, if somebody wants to look at it."""
        if SCREENSHOTS:
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=Path(SCREENSHOTS, f"{name}.png"))


@contextmanager
def open_browser() -> Generator[Any]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS), timeout=PATIENCE_MS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def look_at(browser: Any, view: View, mode: str = "desktop", **options: Any) -> Generator[Look]:
    """A window that is closed at the end. Nothing may be said on the console."""
    context = browser.new_context(**{**MODES[mode], **options})
    context.set_default_timeout(PATIENCE_MS)
    try:
        look = Look(context, view)
        yield look
        assert not look.problems, look.problems
    finally:
        with suppress(Exception):
            context.close()
