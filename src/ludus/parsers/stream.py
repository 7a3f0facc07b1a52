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

from ludus.parsers.content import Speech
from ludus.parsers.formats import End, Format, Markup, Noise, Section, Span
from ludus.parsers.markup_reader import Other, Source
from ludus.parsers.normalize import Refused, settle
from ludus.parsers.offered_tools import Tools
from ludus.parsers.shapes import MAX_RAW, PATIENCE, Found, Problem, Raw, Shape, problem_of
from ludus.parsers.values import Bad, Cut
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


Event = Text | Thought | Call | Problem


class Parsed(Struct, frozen=True):
    """A reply: what it says, what it calls, and what in it went wrong."""

    content: str = ""
    calls: tuple[Call, ...] = ()
    problems: tuple[Problem, ...] = ()
    reasoning: str = ""
    """From the format's own thinking channel. A `<think>` block stays in the content, where the model put it."""

    @classmethod
    def of(cls, events: Sequence[Event]) -> "Parsed":
        said: list[str] = []
        thought: list[str] = []
        calls: list[Call] = []
        problems: list[Problem] = []
        for event in events:
            match event:
                case Text():
                    said.append(event.text)
                case Call():
                    calls.append(event)
                case Problem():
                    problems.append(event)
                case Thought():
                    thought.append(event.text)
        return cls("".join(said), tuple(calls), tuple(problems), "".join(thought).strip())


class Stream:
    """One reply of a model. Feed it pieces of text, then finish it; both give the events that have become certain."""

    def __init__(
        self, format: Format, tools: Sequence[ToolSpec] = (), *, thinking: bool = False, first: int = 0
    ) -> None:
        """`thinking`: the prompt has opened a think block. `first`: the number of the first call, where ids are
        numbered; counting on through a conversation keeps them apart."""
        self._format = format
        self._tools = Tools(tools)
        self._speech = Speech(format, self._say)
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
        self._events += self._speech.finish()
        if self._span and (self._span.tags or self._span.thought):
            self._events.append(Problem("truncated", self._span_at, self._span.begin, "the thought does not end"))
        return self._drained()

    def _drained(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _say(self, text: str) -> None:
        self._events.append(Text(text))

    # ---- reading on ----

    def _advance(self, *, final: bool) -> list[Event]:
        source = Source("".join((self._text, *self._pieces)), final, self._tools)
        at, more = 0, True
        while more:
            at, more = self._through_span(source, at) if self._span else self._to_marker(source, at)
        self._text = source.text[at:]
        self._pieces.clear()
        self._base += at
        self._size = len(self._text)
        self._enough = self._size + self._size // 16 if self._size > SMALL else 0
        return [] if final else self._drained()

    def _through_span(self, source: Source, at: int) -> tuple[int, bool]:
        span = self._span
        assert span
        begin, end = span.edges.find(source, at)
        said, tag = source.text[at:begin], source.text[begin:end]
        self._spoken(span, said, at)
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
            self._spoken(span, tag, begin)
        return end, True

    def _closes_again(self, source: Source, span: Span, at: int) -> bool:
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

    def _spoken(self, span: Span, text: str, at: int) -> None:
        if not span.thought:
            self._speech.text(text, self._base + at)
        elif text:
            self._events.append(Thought(text))

    def _to_marker(self, source: Source, at: int) -> tuple[int, bool]:
        markers = (self._section or self._format).markers
        begin, end = markers.find(source, at)
        self._speech.text(source.text[at:begin], self._base + at)
        if begin == end:
            return end, False
        try:
            return self._take(source, begin, markers.choices(source, begin, end)), True
        except Cut:
            return begin, False

    def _take(self, source: Source, at: int, choices: list[Markup]) -> int:
        """Read what begins with the marker here; gives where the text goes on. Raises Cut to wait for more."""
        failures: list[_Failure] = []
        entered = None
        if self._base + at >= self._failed_until:
            self._failures = 0
        for markup in choices:
            if isinstance(markup, Shape) and not self._worth_reading(markup):
                continue
            if isinstance(markup, Noise) and any(not failure.error.early for failure in failures):
                break  # a broken call is text, tags and all
            try:
                entered = self._enter(source, at, markup)
                break
            except (Bad, Cut) as error:
                if isinstance(error, Cut) and not source.final:
                    raise
                if isinstance(markup, Shape) and not isinstance(error, Other):
                    reach = error.at if isinstance(error, Bad) else len(source.text)
                    failures.append(_Failure(reach, markup, error))
        furthest = max(failures, key=lambda failure: failure.reach, default=None)
        end = self._no_call(source, at, furthest) if entered is None else entered
        if furthest:
            self._failed_until = max(self._failed_until, self._base + furthest.reach)
            self._failures += 1
        return end

    def _worth_reading(self, shape: Shape) -> bool:
        misplaced = shape.bare and self._format.anchored and self._speech.begun
        return self._failures <= PATIENCE and not misplaced

    def _enter(self, source: Source, at: int, markup: Markup) -> int:
        if isinstance(markup, Shape):
            return self._called(source, at, markup.read(source, at))
        _, end = markup.spelling.read(source, at)
        tag = source.text[at:end]
        match markup:
            case Section():
                self._section = markup
                self._speech.enclose(tag)
            case End():
                self._section = None
                self._speech.unclose(tag, self._base + at)
            case Span():
                self._span, self._span_at = markup, self._base + at
                if markup.tags:
                    self._speech.text(tag, self._base + at)
            case Noise():
                pass
        return end

    # ---- what was read ----

    def _called(self, source: Source, at: int, found: Found) -> int:
        problems = list(found.problems)
        calls: list[Call] = []
        for raw in found.calls:
            try:
                settled = settle(raw, self._tools, self._format)
            except Refused as refusal:
                problems.append(Problem(refusal.kind, raw.at, source.text[at : found.end][:MAX_RAW], str(refusal)))
                continue
            calls.append(Call(self._identity(raw), settled.name, settled.arguments))
            if settled.repaired:
                problems.append(Problem("repaired", raw.at, source.text[at : found.end][:MAX_RAW], settled.repaired))
        if calls:
            self._speech.call(self._base + at)
        else:
            self._speech.text(source.text[at : found.end], self._base + at)
        self._events += calls
        for problem in problems:
            self._report(problem)
        return found.end

    def _identity(self, raw: Raw) -> str:
        """The call's own id, or a number that no other call of this reply has."""
        identity = raw.id
        while not identity or identity in self._ids:
            identity = self._format.ids.format(n=self._number)
            self._number += 1
        self._ids.add(identity)
        return identity

    def _report(self, problem: Problem) -> None:
        self._problems += 1
        if self._problems <= MAX_PROBLEMS:
            self._events.append(msgspec.structs.replace(problem, at=self._base + problem.at))

    def _no_call(self, source: Source, at: int, failure: "_Failure | None") -> int:
        """What begins here is text; gives how far, at least. Trouble is reported where it is met first."""
        end = at + 1
        if failure:
            if self._base + failure.reach > self._failed_until:
                self._report(problem_of(source, at, failure.error))
            # A nested object of a broken bare one is no call; behind a marker, the next marker may well be.
            whole = failure.shape.bare or isinstance(failure.error, Cut)
            end = max(end, failure.reach if whole else at + len(failure.shape.opener))
        self._speech.text(source.text[at:end], self._base + at)
        return end


class _Failure(NamedTuple):
    """A shape that could not read what its opener promised, and how far it came."""

    reach: int
    shape: Shape
    error: Bad | Cut
