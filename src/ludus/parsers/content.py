"""Collects the content of a reply: the text outside its calls.

The text is kept as it was written, with these exceptions. White space before a call belongs to the call. So does white
space after it (and what a format puts between two calls), unless more content follows. Markup around calls is content
only if it holds no call. In some formats calls end a reply: text after them is not content, but is reported as stray.
"""

import re
from collections.abc import Callable

from ludus.parsers.formats import Format
from ludus.parsers.shapes import MAX_RAW, CallProblem

_SPACE = re.compile(r"\s*+")


class ContentCollector:
    """Gets text and calls in order. Passes content to `emit` as soon as it is certain."""

    def __init__(self, format: Format, emit: Callable[[str], None]) -> None:
        self._keep = format.keep
        self._glue = format.between_calls
        self._emit_text = emit
        self.has_text = False
        """Whether there was text that is not blank."""
        self._called = False
        self._just_called = False
        self._blank: list[str] = []
        self._enclosed: list[str] | None = None
        """The text since the beginning of a section, while no call was found in it."""
        self._aside: list[str] = []
        """Text that is content only if the reply has no calls."""
        self._stray: list[str] = []
        self._stray_at = 0

    def open_section(self, tag: str) -> None:
        """Begin a section."""
        self._enclosed = [tag]

    def close_section(self, tag: str, at: int) -> None:
        """End a section. If it held no call, it was text."""
        if self._enclosed is not None:
            enclosed, self._enclosed = [*self._enclosed, tag], None
            self.add_text("".join(enclosed), at)
        elif self._just_called:
            self._blank.clear()

    def open_channel(self) -> None:
        """Begin a part whose markup is not content. White space before the first one belongs to the markup."""
        if not self.has_text:
            self._blank.clear()

    def add_call(self, at: int) -> None:
        if self._enclosed is not None:
            between, self._enclosed = "".join(self._enclosed[1:]), None
            if between.strip():
                self.add_text(between, at)
        self._blank.clear()
        self._called = self._just_called = True

    def add_text(self, text: str, at: int) -> None:
        if not text:
            return
        if self._enclosed is not None:
            self._enclosed.append(text)
        elif (self._glue if self._just_called else _SPACE).fullmatch(text):
            self._blank.append(text)
        else:
            stripped = text.rstrip()
            content = "".join((*self._blank, stripped))
            self._blank = [text[len(stripped) :]] if len(stripped) < len(text) else []
            if self._called and not self.has_text:
                content = self._glue.sub("", content, count=1)
            self._sort_text(content, at + len(text) - len(text.lstrip()))
            self.has_text, self._just_called = True, False

    def _sort_text(self, content: str, at: int) -> None:
        if self._keep == "all" or (self._keep == "before" and not self._called):
            self._emit_text(content)
        elif self._keep == "nothing":
            self._aside.append(content)
        else:
            self._stray_at = self._stray_at if self._stray else at
            self._stray.append(content)

    def finish(self) -> list[CallProblem]:
        if self._enclosed is not None:
            self.close_section("", 0)
        if not self._just_called and self._blank:
            self._sort_text("".join(self._blank), 0)
        if self._aside and not self._called:
            self._emit_text("".join(self._aside))
            self._aside.clear()
        stray = "".join((*self._aside, *self._stray)).strip()
        return [CallProblem("stray", self._stray_at, stray[:MAX_RAW], "text beside the calls")] if stray else []
