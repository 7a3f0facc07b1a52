"""Splits a reply into content, thoughts and calls while it comes in.

`ReplyStream` looks for the next marker of its format, lets the shapes read there, and continues after what they read.
Text that turns out to be no call is content. The stream keeps only the text on which it cannot decide yet. A whole text
is a stream that is fed once, so any way of cutting it into pieces gives the same result.

Guarantees: no input makes it raise. The time is in proportion to the length, whatever the text. Content is passed on as
soon as it is certain to be content, a call when it is complete. Not guaranteed: that a call fits its tool. The loop
checks that and tells the model.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from ludus.parsers.content import ContentCollector
from ludus.parsers.formats import End, Format, Markup, Noise, Section, Span
from ludus.parsers.markup_reader import NotACall, TextSource
from ludus.parsers.normalize import CallRefused, normalize_call
from ludus.parsers.offered_tools import OfferedTools
from ludus.parsers.shapes import MAX_RAW, PATIENCE, CallProblem, RawCall, Shape, ShapeMatch, make_problem
from ludus.parsers.values import IncompleteText, MalformedText
from ludus.types import Call, ToolSpec

SMALL = 256
"""An unfinished call up to this length is read again with every piece of text. A longer one is read again only when it
has grown by a sixteenth, so that the cost per character is constant."""


MAX_PROBLEMS = 100
"""The most problems that are reported for one reply."""


class Text(Struct, frozen=True):
    """A piece of content."""

    text: str


class Thought(Struct, frozen=True):
    """A piece of the format's own thinking channel."""

    text: str


Event = Text | Thought | Call | CallProblem


class ParsedReply(Struct, frozen=True):
    """A reply: content, calls, problems and reasoning."""

    content: str = ""
    calls: tuple[Call, ...] = ()
    problems: tuple[CallProblem, ...] = ()
    reasoning: str = ""
    """The text of the format's own thinking channel. A `<think>` block stays in the content."""

    @classmethod
    def from_events(cls, events: Sequence[Event]) -> "ParsedReply":
        content: list[str] = []
        thought: list[str] = []
        calls: list[Call] = []
        problems: list[CallProblem] = []
        for event in events:
            match event:
                case Text():
                    content.append(event.text)
                case Call():
                    calls.append(event)
                case CallProblem():
                    problems.append(event)
                case Thought():
                    thought.append(event.text)
        return cls("".join(content), tuple(calls), tuple(problems), "".join(thought).strip())


class ReplyStream:
    """One reply of a model. `feed` it pieces of text, then `finish` it. Both return the events that are certain now."""

    def __init__(
        self, format: Format, tools: Sequence[ToolSpec] = (), *, thinking: bool = False, first: int = 0
    ) -> None:
        """`thinking`: the prompt ends with an open think block. `first`: the number of the first call. Numbers that
        continue through a conversation keep ids apart."""
        self._format = format
        self._tools = OfferedTools(tools)
        self._content = ContentCollector(format, self._add_text)
        self._span: Span | None = format.spans[0] if thinking and format.spans else None
        self._span_at = 0
        self._reopens = thinking
        """The prompt has opened a block, and the model may open it again."""
        self._inner = 0
        """The number of open blocks inside this one."""
        self._closed_at = 0
        """The position of a closing tag that is known to close this block."""
        self._section: Section | None = None
        self._number = first
        self._ids: set[str] = set()
        self._problems = 0
        self._events: list[Event] = []
        self._text = ""
        self._base = 0
        """The position of `_text` in the reply."""
        self._pieces: list[str] = []
        self._size = 0
        self._enough = 0
        """The length that the undecided text must have to be read again."""
        self._failed_until = 0
        """The end of text that was read and was no call. Reading again before it counts as a failure."""
        self._failures = 0
        """How often that happened; `PATIENCE` limits it."""

    def feed(self, piece: str) -> list[Event]:
        """Add a piece of the reply."""
        self._pieces.append(piece)
        self._size += len(piece)
        return self._advance(final=False) if self._size >= self._enough else []

    def finish(self, piece: str = "") -> list[Event]:
        """End the reply, after a last piece if there is one. What was undecided is decided now."""
        self._pieces.append(piece)
        self._advance(final=True)
        self._events += self._content.finish()
        if self._span and (self._span.tags or self._span.thought):
            self._events.append(CallProblem("truncated", self._span_at, self._span.begin, "the thought does not end"))
        return self._take_events()

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _add_text(self, text: str) -> None:
        self._events.append(Text(text))

    # ---- reading ----

    def _advance(self, *, final: bool) -> list[Event]:
        source = TextSource("".join((self._text, *self._pieces)), final, self._tools)
        at, more = 0, True
        while more:
            at, more = self._read_span(source, at) if self._span else self._read_to_marker(source, at)
        self._text = source.text[at:]
        self._pieces.clear()
        self._base += at
        self._size = len(self._text)
        self._enough = self._size + self._size // 16 if self._size > SMALL else 0
        return [] if final else self._take_events()

    def _read_span(self, source: TextSource, at: int) -> tuple[int, bool]:
        span = self._span
        assert span
        begin, end = span.edges.find(source, at)
        text, tag = source.text[at:begin], source.text[begin:end]
        self._add_span_text(span, text, at)
        self._reopens = self._reopens and not text.strip()
        if not tag:
            return end, False
        if tag in span.calls:
            return self._read_call_in_span(source, span, begin, end)
        if tag == span.begin:
            self._inner += 0 if self._reopens else 1
            self._reopens = False
        elif not self._inner:
            self._span = None
        elif self._closes_again(source, span, end):
            self._inner -= 1
        elif source.final:
            self._span, self._inner = None, 0
        else:
            return begin, False
        if span.tags:
            self._add_span_text(span, tag, begin)
        return end, True

    def _read_call_in_span(self, source: TextSource, span: Span, begin: int, end: int) -> tuple[int, bool]:
        """The marker of a call ends a span, unless a tag closes the span later."""
        if self._base + begin >= self._closed_at:
            found = [at for tag in span.ends if (at := source.text.find(tag, end)) >= 0]
            if not found and not source.final:
                return begin, False
            if not found:
                self._span, self._inner = None, 0
                return begin, True
            self._closed_at = self._base + min(found)
        self._add_span_text(span, source.text[begin:end], begin)
        return end, True

    def _closes_again(self, source: TextSource, span: Span, at: int) -> bool:
        """Whether there is a later closing tag that belongs to no later opening tag. If so, the tag here closes a
        thought inside the thought."""
        level = 0
        while self._base + at > self._closed_at:
            begin, at = span.edges.find(source, at)
            if begin == at:
                return False
            level += 1 if source.text[begin:at] == span.begin else -1
            if level < 0:
                self._closed_at = self._base + begin
                break
        return True

    def _add_span_text(self, span: Span, text: str, at: int) -> None:
        if not span.thought:
            self._content.add_text(text, self._base + at)
        elif text:
            self._events.append(Thought(text))

    def _read_to_marker(self, source: TextSource, at: int) -> tuple[int, bool]:
        markers = (self._section or self._format).markers
        begin, end = markers.find(source, at)
        self._content.add_text(source.text[at:begin], self._base + at)
        if begin == end:
            return end, False
        try:
            return self._read_marker(source, begin, markers.list_choices(source, begin, end)), True
        except IncompleteText:
            return begin, False

    def _read_marker(self, source: TextSource, at: int, choices: list[Markup]) -> int:
        """Read what begins with the marker here. Returns where the text continues. Raises `IncompleteText` to wait."""
        failures: list[_Failure] = []
        entered = None
        if self._base + at >= self._failed_until:
            self._failures = 0
        for markup in choices:
            if isinstance(markup, Shape) and not self._is_worth_reading(markup):
                continue
            if isinstance(markup, Noise) and any(not failure.error.early for failure in failures):
                break  # a malformed call is text, with its tags
            try:
                entered = self._read_markup(source, at, markup)
                break
            except (MalformedText, IncompleteText) as error:
                if isinstance(error, IncompleteText) and not source.final:
                    raise
                if isinstance(markup, Shape) and not isinstance(error, NotACall):
                    reach = error.at if isinstance(error, MalformedText) else len(source.text)
                    failures.append(_Failure(reach, markup, error))
        furthest = max(failures, key=lambda failure: failure.reach, default=None)
        end = self._add_plain_text(source, at, furthest) if entered is None else entered
        if furthest:
            self._failed_until = max(self._failed_until, self._base + furthest.reach)
            self._failures += 1
        return end

    def _is_worth_reading(self, shape: Shape) -> bool:
        misplaced = shape.bare and self._format.anchored and self._content.has_text
        return self._failures <= PATIENCE and not misplaced

    def _read_markup(self, source: TextSource, at: int, markup: Markup) -> int:
        if isinstance(markup, Shape):
            return self._add_calls(source, at, markup.read(source, at))
        _, end = markup.spelling.read(source, at)
        tag = source.text[at:end]
        match markup:
            case Section():
                self._section = markup
                self._content.open_section(tag)
            case End():
                self._section = None
                self._content.close_section(tag, self._base + at)
            case Span():
                self._span, self._span_at = markup, self._base + at
                if markup.tags:
                    self._content.add_text(tag, self._base + at)
                else:
                    self._content.open_channel()
            case Noise():
                pass
        return end

    # ---- results ----

    def _add_calls(self, source: TextSource, at: int, found: ShapeMatch) -> int:
        problems = list(found.problems)
        calls: list[Call] = []
        for raw in found.calls:
            try:
                normalized = normalize_call(raw, self._tools, self._format)
            except CallRefused as refusal:
                problems.append(CallProblem(refusal.kind, raw.at, source.text[at : found.end][:MAX_RAW], str(refusal)))
                continue
            calls.append(Call(self._make_id(raw), normalized.name, normalized.arguments))
            if normalized.repaired:
                problems.append(
                    CallProblem("repaired", raw.at, source.text[at : found.end][:MAX_RAW], normalized.repaired)
                )
        if calls:
            self._content.add_call(self._base + at)
        else:
            self._content.add_text(source.text[at : found.end], self._base + at)
        self._events += calls
        for problem in problems:
            self._report(problem)
        return found.end

    def _make_id(self, raw: RawCall) -> str:
        """The call's own id, or a numbered one that no other call of this reply has."""
        identity = raw.id
        while not identity or identity in self._ids:
            identity = self._format.ids.format(n=self._number)
            self._number += 1
        self._ids.add(identity)
        return identity

    def _report(self, problem: CallProblem) -> None:
        self._problems += 1
        if self._problems <= MAX_PROBLEMS:
            self._events.append(msgspec.structs.replace(problem, at=self._base + problem.at))

    def _add_plain_text(self, source: TextSource, at: int, failure: "_Failure | None") -> int:
        """Add the text that begins here. Returns its end. A failure is reported where it first occurs."""
        end = at + 1
        if failure:
            if self._base + failure.reach > self._failed_until:
                self._report(make_problem(source, at, failure.error))
            # An object inside a malformed bare object is no call. After a marker, the next marker may be one.
            whole = failure.shape.bare or isinstance(failure.error, IncompleteText)
            end = max(end, failure.reach if whole else at + len(failure.shape.opener))
        self._content.add_text(source.text[at:end], self._base + at)
        return end


class _Failure(NamedTuple):
    """A shape that could not read a call, and how far it came."""

    reach: int
    shape: Shape
    error: MalformedText | IncompleteText
