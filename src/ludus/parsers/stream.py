"""A reply, taken apart as it comes: what is said, what is thought, what is called.

`Stream` looks for the next marker of its format, lets the shapes there read, and goes on behind what they read. Text
that turned out to be no call is text. It keeps no more of the text than it cannot decide on yet. A whole text is a
stream that is fed once, so any way of cutting it into pieces gives the same result.

Guarantees: nothing in the input makes it raise; the time is in proportion to the length, whatever the text; content
is passed on as soon as it is certain to be content, a call only when it is complete. Not guaranteed: that a call fits
its tool. That is the loop's business, which tells the model.
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
"""An unfinished call up to this length is looked at again with every piece of text; a longer one only when it has
grown by a sixteenth, so that looking again costs no more than a constant for each character."""


MAX_PROBLEMS = 100
"""As many are told of one reply; a text of nothing but markers has no more to teach."""


class Text(Struct, frozen=True):
    """A piece of content."""

    text: str


class Thought(Struct, frozen=True):
    """A piece of what the format's own thinking channel held."""

    text: str


Event = Text | Thought | Call | CallProblem


class ParsedReply(Struct, frozen=True):
    """A reply: what it says, what it calls, and what in it went wrong."""

    content: str = ""
    calls: tuple[Call, ...] = ()
    problems: tuple[CallProblem, ...] = ()
    reasoning: str = ""
    """From the format's own thinking channel. A `<think>` block stays in the content, where the model put it."""

    @classmethod
    def from_events(cls, events: Sequence[Event]) -> "ParsedReply":
        said: list[str] = []
        thought: list[str] = []
        calls: list[Call] = []
        problems: list[CallProblem] = []
        for event in events:
            match event:
                case Text():
                    said.append(event.text)
                case Call():
                    calls.append(event)
                case CallProblem():
                    problems.append(event)
                case Thought():
                    thought.append(event.text)
        return cls("".join(said), tuple(calls), tuple(problems), "".join(thought).strip())


class ReplyStream:
    """One reply of a model. Feed it pieces of text, then finish it; both give the events that have become certain."""

    def __init__(
        self, format: Format, tools: Sequence[ToolSpec] = (), *, thinking: bool = False, first: int = 0
    ) -> None:
        """`thinking`: the prompt has opened a think block. `first`: the number of the first call, where ids are
        numbered; counting on through a conversation keeps them apart."""
        self._format = format
        self._tools = OfferedTools(tools)
        self._content = ContentCollector(format, self._add_text)
        self._span: Span | None = format.spans[0] if thinking and format.spans else None
        self._span_at = 0
        self._reopens = thinking
        """The prompt has opened a block, and the model may open it once more."""
        self._inner = 0
        """How many blocks have been opened inside of this one and not been closed."""
        self._closed_at = 0
        """Where a closing tag is known to follow all of these."""
        self._section: Section | None = None
        self._number = first
        self._ids: set[str] = set()
        self._problems = 0
        self._events: list[Event] = []
        self._text = ""
        self._base = 0
        """Where `_text` begins in the reply."""
        self._pieces: list[str] = []
        self._size = 0
        self._enough = 0
        """How long the undecided text must be to be looked at again."""
        self._failed_until = 0
        """How far text was read that was no call; where reading starts again before it, patience runs out."""
        self._failures = 0

    def feed(self, piece: str) -> list[Event]:
        self._pieces.append(piece)
        self._size += len(piece)
        return self._advance(final=False) if self._size >= self._enough else []

    def finish(self, piece: str = "") -> list[Event]:
        """The end of the reply, perhaps after a last piece: what was undecided is decided."""
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

    # ---- reading on ----

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
        said, tag = source.text[at:begin], source.text[begin:end]
        self._add_span_text(span, said, at)
        self._reopens = self._reopens and not said.strip()
        if not tag:
            return end, False
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

    def _closes_again(self, source: TextSource, span: Span, at: int) -> bool:
        """Whether a closing tag follows that none of the opening ones between here and there asks for: the one here is
        then of a thought within the thought."""
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
        """Read what begins with the marker here; gives where the text goes on. Raises Cut to wait for more."""
        failures: list[_Failure] = []
        entered = None
        if self._base + at >= self._failed_until:
            self._failures = 0
        for markup in choices:
            if isinstance(markup, Shape) and not self._is_worth_reading(markup):
                continue
            if isinstance(markup, Noise) and any(not failure.error.early for failure in failures):
                break  # a broken call is text, tags and all
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
            case Noise():
                pass
        return end

    # ---- what was read ----

    def _add_calls(self, source: TextSource, at: int, found: ShapeMatch) -> int:
        problems = list(found.problems)
        calls: list[Call] = []
        for raw in found.calls:
            try:
                settled = normalize_call(raw, self._tools, self._format)
            except CallRefused as refusal:
                problems.append(CallProblem(refusal.kind, raw.at, source.text[at : found.end][:MAX_RAW], str(refusal)))
                continue
            calls.append(Call(self._make_id(raw), settled.name, settled.arguments))
            if settled.repaired:
                problems.append(
                    CallProblem("repaired", raw.at, source.text[at : found.end][:MAX_RAW], settled.repaired)
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
        """The call's own id, or a number that no other call of this reply has."""
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
        """What begins here is text; gives how far, at least. Trouble is reported where it is met first."""
        end = at + 1
        if failure:
            if self._base + failure.reach > self._failed_until:
                self._report(make_problem(source, at, failure.error))
            # A nested object of a broken bare one is no call; behind a marker, the next marker may well be.
            whole = failure.shape.bare or isinstance(failure.error, IncompleteText)
            end = max(end, failure.reach if whole else at + len(failure.shape.opener))
        self._content.add_text(source.text[at:end], self._base + at)
        return end


class _Failure(NamedTuple):
    """A shape that could not read what its opener promised, and how far it came."""

    reach: int
    shape: Shape
    error: MalformedText | IncompleteText
