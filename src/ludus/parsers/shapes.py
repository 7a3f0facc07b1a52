"""The three shapes of a tool call in text.

    JsonCalls     a JSON object that names the tool, alone or in a list, between markers or bare
    NamedCalls    the name in the markup, the arguments in one of four notations
    PythonCalls   calls as in Python: [get_weather(city='Paris'), now()]

A shape is declared in the spelling of its format's own template, and reads and writes it. `read` returns what is at a
position as a `ShapeMatch`, or raises `NotACall` (nothing that looks like a call), `MalformedText` (a malformed call)
or `IncompleteText` (the text ends inside a call). In a list, one malformed call does not spoil the others: it is
reported beside them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

from msgspec import Struct

from ludus.parsers.markup_reader import NotACall, Spelling, TextSource
from ludus.parsers.notations import Notation
from ludus.parsers.offered_tools import as_mapping
from ludus.parsers.values import (
    LOOSE,
    PYTHON,
    IncompleteText,
    MalformedText,
    PythonLiterals,
    dumps,
    loads,
    read_json,
    skip_separator,
    skip_space,
)
from ludus.types import Call, JsonObject

MAX_RAW = 2000
PATIENCE = 16
"""How often text that is no call is read again from a later position. This limits the time for hostile text to a
multiple of its length. The mistakes of a model stay far below it."""


Kind = Literal["malformed", "truncated", "unknown_tool", "repaired", "stray"]


class CallProblem(Struct, frozen=True):
    """Text that looks like a call and was not read as one, or not as it was written."""

    kind: Kind
    at: int
    """The position in the text."""
    raw: str
    """The text from there to where reading stopped, at most `MAX_RAW` characters."""
    why: str


class RawCall(NamedTuple):
    """A call as it was written."""

    at: int
    name: str
    arguments: Any
    id: str = ""


class ShapeMatch(NamedTuple):
    """What a shape read, and where the text continues."""

    end: int
    calls: list[RawCall]
    problems: list[CallProblem]


def make_problem(source: TextSource, at: int, error: MalformedText | IncompleteText) -> CallProblem:
    kind = "malformed" if isinstance(error, MalformedText) else "truncated"
    end = error.at + 1 if isinstance(error, MalformedText) else len(source.text)
    return CallProblem(kind, at, source.text[at : min(end, at + MAX_RAW)], str(error))


def _read_opening(before: Spelling, source: TextSource, at: int) -> tuple[dict[str, str], int]:
    try:
        return before.read(source, at)
    except (MalformedText, IncompleteText) as error:
        error.early = True
        raise


def _make_unclosed_problem(at: int) -> CallProblem:
    return CallProblem("truncated", at, "", "the list of calls is not closed")


def _compile_bounds(*edges: Spelling) -> re.Pattern[str]:
    """The limits of a malformed list of calls: the tag that closes it, and the marker of the next list."""
    return re.compile("|".join(re.escape(edge.opener) for edge in edges if edge.opener))


# ---- calls as JSON objects ----------------------------------------------------------------------------------------

_NAMES = ("name", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args")
_PLAUSIBLE = re.compile(r'\{\s*"(?:name|tool_name|function|type|id|tool_call_id|arguments|parameters|args)"\s*:')
_MAYBE_PLAUSIBLE = re.compile(r'\{\s*(?:"\w{0,12}(?:"\s*)?)?\Z')
_SEPARATORS = re.compile(r"[\s,;]*+")
FENCE = "```json"
"""A marker that is also common in ordinary text."""


@dataclass(frozen=True)
class JsonCalls:
    template: str
    """The spelling, with `{call}` for one call or `[{calls}]` for a list. Both forms are read in either case."""
    keys: tuple[str, str] = ("name", "arguments")
    id_key: str = ""
    keyed: bool = False
    """The name is the only key, and the arguments are its value."""
    strict: bool = False
    """An object without arguments is not a call."""
    between: str = ""

    @cached_property
    def _markup(self) -> tuple[Spelling, Spelling]:
        before, _, after = re.split(r"(\[\s*\{calls\}\s*\]|\{call\})", self.template)
        return Spelling(before), Spelling(after)

    @cached_property
    def _bounds(self) -> re.Pattern[str]:
        return _compile_bounds(*self._markup)

    @cached_property
    def bare(self) -> bool:
        return not self._markup[0].opener

    @cached_property
    def opener(self) -> str:
        return self._markup[0].opener or self.template[0]

    def read(self, source: TextSource, at: int) -> ShapeMatch:
        _, begin = _read_opening(self._markup[0], source, at)
        begin = source.skip_space(begin)
        listed = source.get_char(begin) == "["
        first = source.skip_space(begin + 1) if listed else begin
        if self.bare or self.opener == FENCE:
            self._check_plausible(source, first)
        found = self._read_items(source, first, listed)
        end = found.end
        if listed and source.get_char(end) == "]":
            end += 1
        return found._replace(end=self._markup[1].close(source, end))

    def _check_plausible(self, source: TextSource, at: int) -> None:
        if not _PLAUSIBLE.match(source.text, at):
            if not source.final and (at == len(source.text) or _MAYBE_PLAUSIBLE.match(source.text, at)):
                raise IncompleteText
            raise NotACall(at, "no call")

    def _read_items(self, source: TextSource, at: int, listed: bool) -> ShapeMatch:
        """The objects from here on, up to something else."""
        calls: list[RawCall] = []
        problems: list[CallProblem] = []
        wrong: MalformedText | IncompleteText = MalformedText(at, "expected a JSON object")
        over = -1
        while source.get_char(at) == "{":
            try:
                value, end = read_json(source.text, at)
                read = self._make_calls(value, at, end, explicit=self.strict or bool(problems))
                # After a malformed call a nested object may look like one: only calls of known tools count.
                calls += [
                    c for c in read if not problems or not source.tools or source.tools.resolve(c.name) in source.tools
                ]
                at = end
            except (MalformedText, IncompleteText) as error:
                if not listed or self.bare or (isinstance(error, IncompleteText) and not source.final):
                    raise
                wrong = error
                problems.append(make_problem(source, at, error))
                at, over = self._recover(source, at, over, error, len(problems))
            if self.bare and not listed:
                break
            following = _SEPARATORS.match(source.text, at)
            if following and (listed or source.get_char(following.end()) == "{"):
                at = following.end()
        if not calls:
            raise wrong
        if listed and not source.get_char(at) and not problems:
            problems.append(_make_unclosed_problem(at))
        return ShapeMatch(at, calls, problems)

    def _recover(
        self, source: TextSource, at: int, over: int, error: MalformedText | IncompleteText, misses: int
    ) -> tuple[int, int]:
        """Where the next object may begin after a malformed one (or the end of the list), and the end of the list."""
        if isinstance(error, IncompleteText):
            return len(source.text), over
        begin = at + 1 if misses <= PATIENCE else max(error.at, at + 1)
        if over < begin:
            found = self._bounds.search(source.text, begin)
            if not found and not source.final:
                raise IncompleteText
            over = found.start() if found else len(source.text)
        following = _PLAUSIBLE.search(source.text, begin, over)
        return following.start() if following else over, over

    def _make_calls(self, value: Any, at: int, end: int, *, explicit: bool) -> list[RawCall]:
        fields = cast(JsonObject, value)
        if self.keyed:
            if not all(isinstance(arguments, dict) for arguments in fields.values()):
                raise MalformedText(end - 1, "arguments that are not an object")
            return [RawCall(at, name, arguments) for name, arguments in fields.items()]
        if isinstance(inner := fields.get("function"), dict):
            fields = {**fields, **cast(JsonObject, inner)}
        name, key = fields.get(self.keys[0]), self.keys[1]
        if not isinstance(name, str):
            name = next((fields[word] for word in _NAMES if isinstance(fields.get(word), str)), "")
        if key not in fields:
            key = next((word for word in _ARGUMENTS if word in fields), "")
        if not name or (explicit and not key):
            error = NotACall if self.opener == FENCE else MalformedText  # such a block is ordinary JSON
            raise error(end - 1, "an object without a name" if not name else "an object without arguments")
        identity = fields.get(self.id_key or "id")
        return [RawCall(at, name, fields.get(key), identity if isinstance(identity, str) else "")]

    def write(self, calls: Sequence[Call]) -> str:
        if "{calls}" in self.template:
            return self.template.replace("{calls}", (self.between or ", ").join(map(self._write_object, calls)))
        return self.between.join(
            self.template.replace("{to}", call.name).replace("{call}", self._write_object(call)) for call in calls
        )

    def _write_object(self, call: Call) -> str:
        if self.keyed:
            return f"{{{dumps(call.name)}: {call.arguments}}}"
        identity = f'"{self.id_key}": {dumps(call.id)}, ' if self.id_key else ""
        return f'{{{identity}"{self.keys[0]}": {dumps(call.name)}, "{self.keys[1]}": {call.arguments}}}'


# ---- the name in the markup ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NamedCalls:
    call: str
    """The spelling, with `{name}` and `{arguments}`."""
    notation: Notation
    id: str = ""
    """The spelling of the call's own id, if the format has one."""
    between: str = ""
    bare = False

    @cached_property
    def _markup(self) -> tuple[Spelling, Spelling]:
        before, after = self.call.split("{arguments}")
        return Spelling(before), Spelling(after)

    @cached_property
    def _id(self) -> Spelling:
        return Spelling(self.id)

    @cached_property
    def opener(self) -> str:
        return self._markup[0].opener

    def read(self, source: TextSource, at: int) -> ShapeMatch:
        before, after = self._markup
        fields, begin = _read_opening(before, source, at)
        name = fields.get("name", "").strip()
        arguments, end = self.notation.read(source, source.skip_space(begin), name, after.opener)
        if not self.notation.closed:
            end = source.expect(after.opener, source.skip_space(end)) - len(after.opener)
        identity = self._id.write(**fields) if self.id else fields.get("id", "")
        return ShapeMatch(after.close(source, end), [RawCall(at, name, arguments, identity)], [])

    def write(self, calls: Sequence[Call]) -> str:
        return self.between.join(self._write(call, number) for number, call in enumerate(calls))

    def _write(self, call: Call, number: int) -> str:
        arguments = loads(call.arguments)
        index = re.search(r":(\d+)$", call.id)
        return Spelling(self.call).write(
            name=call.name,
            arguments=self.notation.write(dict(as_mapping(arguments))),
            index=(index[1] if index else str(number)) if self.id else str(number + 1),
        )


# ---- calls as Python ----------------------------------------------------------------------------------------------

_NAME = re.compile(r"[^\W\d][\w.-]{0,255}")
_KEY = re.compile(r"[^\W\d]\w{0,255}")
_NEXT = re.compile(r"\)[^\S\n]*+[,;\n]\s*+(?=[^\W\d][\w.-]{0,255}\()")


@dataclass(frozen=True)
class PythonCalls:
    template: str
    """The spelling, with `{calls}`, in brackets or not."""
    between: str = ", "

    @cached_property
    def _markup(self) -> tuple[Spelling, Spelling]:
        before, _, after = re.split(r"(\[\{calls\}\]|\{calls\})", self.template)
        return Spelling(before), Spelling(after)

    @cached_property
    def _bounds(self) -> re.Pattern[str]:
        return _compile_bounds(*self._markup)

    @cached_property
    def bare(self) -> bool:
        return not self._markup[0].opener

    @cached_property
    def opener(self) -> str:
        return self._markup[0].opener or self.template[0]

    def read(self, source: TextSource, at: int) -> ShapeMatch:
        before, after = self._markup
        begin = source.skip_space(_read_opening(before, source, at)[1])
        listed = source.get_char(begin) == "["
        first = source.skip_space(begin + 1) if listed else begin
        if self.bare:
            self._check_plausible(source, first)
        found = self._read_items(source, first)
        if not listed:
            return found._replace(end=after.close(source, found.end))
        end = skip_space(source.text, found.end)
        if source.get_char(end) == "]":
            end += 1
        elif self.bare:
            raise MalformedText(end, "expected ']'") if source.get_char(end) else IncompleteText
        elif not source.get_char(end) and not found.problems:
            found.problems.append(_make_unclosed_problem(end))
        return found._replace(end=after.close(source, end))

    def _check_plausible(self, source: TextSource, at: int) -> None:
        if not _NAME.match(source.get_char(at)):
            raise NotACall(at, "no call")
        try:
            source.expect("(", _read_word(source.text, at, _NAME)[1])
        except MalformedText as error:
            raise NotACall(error.at, "no call") from None

    def _read_items(self, source: TextSource, at: int) -> ShapeMatch:
        calls: list[RawCall] = []
        problems: list[CallProblem] = []
        wrong: MalformedText | IncompleteText = MalformedText(at, "expected a call")
        region = ""
        while _NAME.match(source.get_char(at)):
            try:
                call, at = self._read_call(source.text, at, PYTHON)
                calls.append(call)
            except (MalformedText, IncompleteText) as error:
                if self.bare or (isinstance(error, IncompleteText) and not source.final):
                    raise
                wrong = error
                region = region if at < len(region) else self._find_region(source, at)
                call, end = self._read_unescaped(region, at) if len(problems) < PATIENCE else (None, at)
                if call:
                    calls.append(call)
                else:
                    problems.append(make_problem(source, at, error))
                    following = _NEXT.search(region, error.at) if isinstance(error, MalformedText) else None
                    end = following.end() if following else len(region)
                at = end
            following = _SEPARATORS.match(source.text, at)
            at = following.end() if following else at
        if not calls:
            raise wrong
        return ShapeMatch(at, calls, problems)

    def _find_region(self, source: TextSource, at: int) -> str:
        """The text up to the last possible end of the calls."""
        over = self._bounds.search(source.text, at + 1)
        if not over and not source.final:
            raise IncompleteText
        return source.text[: over.start()] if over else source.text

    def _read_unescaped(self, region: str, at: int) -> tuple[RawCall | None, int]:
        try:
            return self._read_call(region, at, LOOSE)
        except (MalformedText, IncompleteText):
            return None, at

    def _read_call(self, text: str, at: int, literals: PythonLiterals) -> tuple[RawCall, int]:
        name, begin = _read_word(text, at, _NAME)
        begin = skip_space(text, begin)
        if not text.startswith("(", begin):
            raise IncompleteText if begin == len(text) else MalformedText(begin, "expected '('")
        arguments: JsonObject = {}
        end = skip_space(text, begin + 1)
        while not text.startswith(")", end):
            key, end = _read_word(text, end, _KEY)
            end = skip_space(text, end)
            if not text.startswith("=", end):
                raise IncompleteText if end == len(text) else MalformedText(end, "expected '='")
            arguments[key], end = literals.read_value(text, end + 1)
            end = skip_separator(text, end, ")")
        return RawCall(at, name, arguments), end + 1

    def write(self, calls: Sequence[Call]) -> str:
        return self.template.replace("{calls}", self.between.join(map(self._write, calls)))

    def _write(self, call: Call) -> str:
        arguments = as_mapping(loads(call.arguments))
        return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _read_word(text: str, at: int, pattern: re.Pattern[str]) -> tuple[str, int]:
    found = pattern.match(text, at)
    if at == len(text) or (found and found.end() == len(text)):
        raise IncompleteText
    if not found:
        raise MalformedText(at, "expected a name")
    return found.group(), found.end()


Shape = JsonCalls | NamedCalls | PythonCalls
"""`opener` is the literal with which every such text begins. A `bare` shape has no marker."""
