"""Which text of a reply is its content.

Content is the text outside calls, as it was written, with these exceptions: whitespace before a call belongs to the
call; so does whitespace (and what a format puts between two calls) behind it, unless more content follows; markup
around calls is content only when no call was found in it. Some formats end a reply with their calls: there, text that
follows is not content but is reported as stray, so that nothing is lost without a word.
"""

import re
from collections.abc import Callable

from ludus.parsers.formats import Format
from ludus.parsers.shapes import MAX_RAW, CallProblem

_SPACE = re.compile(r"\s*+")


class ContentCollector:
    """Takes text and the news of calls, in order; gives content to `say` as soon as it is certain."""

    def __init__(self, format: Format, say: Callable[[str], None]) -> None:
        self._keep = format.keep
        self._glue = format.between_calls
        self._say = say
        self.has_text = False
        """There was text that is not blank."""
        self._called = False
        self._just_called = False
        self._blank: list[str] = []
        self._enclosed: list[str] | None = None
        """What was read since a section began, while no call was found in it."""
        self._aside: list[str] = []
        """Text that is content only if there are no calls at all."""
        self._stray: list[str] = []
        self._stray_at = 0

    def open_section(self, tag: str) -> None:
        """A section begins."""
        self._enclosed = [tag]

    def close_section(self, tag: str, at: int) -> None:
        """A section ends; if it held no call, it was text."""
        if self._enclosed is not None:
            enclosed, self._enclosed = [*self._enclosed, tag], None
            self.add_text("".join(enclosed), at)
        elif self._just_called:
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
            spoken = text.rstrip()
            said = "".join((*self._blank, spoken))
            self._blank = [text[len(spoken) :]] if len(spoken) < len(text) else []
            if self._called and not self.has_text:
                said = self._glue.sub("", said, count=1)
            self._emit(said, at + len(text) - len(text.lstrip()))
            self.has_text, self._just_called = True, False

    def _emit(self, said: str, at: int) -> None:
        if self._keep == "all" or (self._keep == "before" and not self._called):
            self._say(said)
        elif self._keep == "nothing":
            self._aside.append(said)
        else:
            self._stray_at = self._stray_at if self._stray else at
            self._stray.append(said)

    def finish(self) -> list[CallProblem]:
        if self._enclosed is not None:
            self.close_section("", 0)
        if not self._just_called and self._blank:
            self._emit("".join(self._blank), 0)
        if self._aside and not self._called:
            self._say("".join(self._aside))
            self._aside.clear()
        stray = "".join((*self._aside, *self._stray)).strip()
        return [CallProblem("stray", self._stray_at, stray[:MAX_RAW], "text beside the calls")] if stray else []
