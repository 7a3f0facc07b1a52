"""The three shapes of a tool call in text.

    JsonCalls   a JSON object that names the tool, alone or in a list, between markers or bare
    Spelled     the name in the markup, the arguments in one of four notations
    Pythonic    calls as Python writes them: [get_weather(city='Paris'), now()]

A shape is declared by the spelling of its format's own template, and reads and writes it. `read` gives what stands at
a position as `Found`, or raises: `Other` (nothing that looks like a call), `Bad` (a malformed one) or `Cut` (the text
ends inside). Inside a list one bad call does not take the others with it; what was bad is reported beside them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

from msgspec import Struct

from ludus.parsers.markup_reader import Other, Source, Spelling
from ludus.parsers.notations import Notation
from ludus.parsers.offered_tools import mapping
from ludus.parsers.values import LOOSE, PYTHON, Bad, Cut, Python, dumps, json_value, loads, separated, skip
from ludus.types import Call, JsonObject

MAX_RAW = 2000
PATIENCE = 16
"""How often text that failed to be a call is read again from a later beginning. It bounds the time hostile text takes
to a multiple of its length; a model's own slips never come near it."""


Kind = Literal["malformed", "truncated", "unknown_tool", "repaired", "stray"]


class Problem(Struct, frozen=True):
    """Something in the text that looked like a call and was not taken for one, or not as it stands."""

    kind: Kind
    at: int
    """Offset in the text."""
    raw: str
    """The text from there to where reading stopped; at most `MAX_RAW` characters."""
    why: str


class Raw(NamedTuple):
    """A call as it was written."""

    at: int
    name: str
    arguments: Any
    id: str = ""


class Found(NamedTuple):
    """What a shape read, and where the text goes on."""

    end: int
    calls: list[Raw]
    problems: list[Problem]


def problem_of(source: Source, at: int, error: Bad | Cut) -> Problem:
    kind = "malformed" if isinstance(error, Bad) else "truncated"
    end = error.at + 1 if isinstance(error, Bad) else len(source.text)
    return Problem(kind, at, source.text[at : min(end, at + MAX_RAW)], str(error))


def _opened(before: Spelling, source: Source, at: int) -> tuple[dict[str, str], int]:
    try:
        return before.read(source, at)
    except (Bad, Cut) as error:
        error.early = True
        raise


def _unclosed(at: int) -> Problem:
    return Problem("truncated", at, "", "the list of calls is not closed")


def _bounds(*edges: Spelling) -> re.Pattern[str]:
    """What a broken list of calls cannot reach beyond: the tag that closes it, and the marker of the next one."""
    return re.compile("|".join(re.escape(edge.opener) for edge in edges if edge.opener))


# ---- calls as JSON objects ----------------------------------------------------------------------------------------

_NAMES = ("name", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args")
_PLAUSIBLE = re.compile(r'\{\s*"(?:name|tool_name|function|type|id|tool_call_id|arguments|parameters|args)"\s*:')
_MAYBE_PLAUSIBLE = re.compile(r'\{\s*(?:"\w{0,12}(?:"\s*)?)?\Z')
_SEPARATORS = re.compile(r"[\s,;]*+")
FENCE = "```json"
"""A marker that ordinary text uses too."""


@dataclass(frozen=True)
class JsonCalls:
    spelled: str
    """With `{call}` for one call, or `[{calls}]` for a list. Either is read in both."""
    keys: tuple[str, str] = ("name", "arguments")
    id_key: str = ""
    keyed: bool = False
    """The name is the only key, the arguments its value."""
    strict: bool = False
    """An object without arguments is no call."""
    between: str = ""

    @cached_property
    def _markup(self) -> tuple[Spelling, Spelling]:
        before, _, after = re.split(r"(\[\s*\{calls\}\s*\]|\{call\})", self.spelled)
        return Spelling(before), Spelling(after)

    @cached_property
    def _bounds(self) -> re.Pattern[str]:
        return _bounds(*self._markup)

    @cached_property
    def bare(self) -> bool:
        return not self._markup[0].opener

    @cached_property
    def opener(self) -> str:
        return self._markup[0].opener or self.spelled[0]

    def read(self, source: Source, at: int) -> Found:
        _, begin = _opened(self._markup[0], source, at)
        begin = source.space(begin)
        listed = source.char(begin) == "["
        first = source.space(begin + 1) if listed else begin
        if self.bare or self.opener == FENCE:
            self._check_plausible(source, first)
        found = self._items(source, first, listed)
        end = found.end
        if listed and source.char(end) == "]":
            end += 1
        return found._replace(end=self._markup[1].close(source, end))

    def _check_plausible(self, source: Source, at: int) -> None:
        if not _PLAUSIBLE.match(source.text, at):
            if not source.final and (at == len(source.text) or _MAYBE_PLAUSIBLE.match(source.text, at)):
                raise Cut
            raise Other(at, "no call")

    def _items(self, source: Source, at: int, listed: bool) -> Found:
        """The objects from here on, up to something that is none."""
        calls: list[Raw] = []
        problems: list[Problem] = []
        wrong: Bad | Cut = Bad(at, "expected a JSON object")
        over = -1
        while source.char(at) == "{":
            try:
                value, end = json_value(source.text, at)
                read = self._calls(value, at, end, explicit=self.strict or bool(problems))
                # After a bad call a nested object may pass for one: only a tool that exists is believed.
                calls += [
                    c for c in read if not problems or not source.tools or source.tools.resolve(c.name) in source.tools
                ]
                at = end
            except (Bad, Cut) as error:
                if not listed or self.bare or (isinstance(error, Cut) and not source.final):
                    raise
                wrong = error
                problems.append(problem_of(source, at, error))
                at, over = self._recover(source, at, over, error, len(problems))
            if self.bare and not listed:
                break
            following = _SEPARATORS.match(source.text, at)
            if following and (listed or source.char(following.end()) == "{"):
                at = following.end()
        if not calls:
            raise wrong
        if listed and not source.char(at) and not problems:
            problems.append(_unclosed(at))
        return Found(at, calls, problems)

    def _recover(self, source: Source, at: int, over: int, error: Bad | Cut, misses: int) -> tuple[int, int]:
        """Where the next object may begin after a bad one, or else where this list is over; and that again."""
        if isinstance(error, Cut):
            return len(source.text), over
        begin = at + 1 if misses <= PATIENCE else max(error.at, at + 1)
        if over < begin:
            found = self._bounds.search(source.text, begin)
            if not found and not source.final:
                raise Cut
            over = found.start() if found else len(source.text)
        following = _PLAUSIBLE.search(source.text, begin, over)
        return following.start() if following else over, over

    def _calls(self, value: Any, at: int, end: int, *, explicit: bool) -> list[Raw]:
        fields = cast(JsonObject, value)
        if self.keyed:
            if not all(isinstance(arguments, dict) for arguments in fields.values()):
                raise Bad(end - 1, "arguments that are no object")
            return [Raw(at, name, arguments) for name, arguments in fields.items()]
        if isinstance(inner := fields.get("function"), dict):
            fields = {**fields, **cast(JsonObject, inner)}
        name, key = fields.get(self.keys[0]), self.keys[1]
        if not isinstance(name, str):
            name = next((fields[word] for word in _NAMES if isinstance(fields.get(word), str)), "")
        if key not in fields:
            key = next((word for word in _ARGUMENTS if word in fields), "")
        if not name or (explicit and not key):
            raise Bad(end - 1, "an object without a name" if not name else "an object without arguments")
        identity = fields.get(self.id_key or "id")
        return [Raw(at, name, fields.get(key), identity if isinstance(identity, str) else "")]

    def write(self, calls: Sequence[Call]) -> str:
        if "{calls}" in self.spelled:
            return self.spelled.replace("{calls}", (self.between or ", ").join(map(self._object, calls)))
        return self.between.join(
            self.spelled.replace("{to}", call.name).replace("{call}", self._object(call)) for call in calls
        )

    def _object(self, call: Call) -> str:
        if self.keyed:
            return f"{{{dumps(call.name)}: {call.arguments}}}"
        identity = f'"{self.id_key}": {dumps(call.id)}, ' if self.id_key else ""
        return f'{{{identity}"{self.keys[0]}": {dumps(call.name)}, "{self.keys[1]}": {call.arguments}}}'


# ---- the name in the markup ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spelled:
    call: str
    """With `{name}` and `{arguments}`."""
    notation: Notation
    id: str = ""
    """How the call's own id is made from the fields, where the format has one."""
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

    def read(self, source: Source, at: int) -> Found:
        before, after = self._markup
        fields, begin = _opened(before, source, at)
        name = fields.get("name", "").strip()
        arguments, end = self.notation.read(source, source.space(begin), name, after.opener)
        if not self.notation.closed:
            end = source.expect(after.opener, source.space(end)) - len(after.opener)
        identity = self._id.write(**fields) if self.id else fields.get("id", "")
        return Found(after.close(source, end), [Raw(at, name, arguments, identity)], [])

    def write(self, calls: Sequence[Call]) -> str:
        return self.between.join(self._write(call, number) for number, call in enumerate(calls))

    def _write(self, call: Call, number: int) -> str:
        arguments = loads(call.arguments)
        index = re.search(r":(\d+)$", call.id)
        return Spelling(self.call).write(
            name=call.name,
            arguments=self.notation.write(dict(mapping(arguments))),
            index=(index[1] if index else str(number)) if self.id else str(number + 1),
        )


# ---- calls as Python ----------------------------------------------------------------------------------------------

_NAME = re.compile(r"[^\W\d][\w.-]{0,255}")
_KEY = re.compile(r"[^\W\d]\w{0,255}")
_NEXT = re.compile(r"\)[^\S\n]*+[,;\n]\s*+(?=[^\W\d][\w.-]{0,255}\()")


@dataclass(frozen=True)
class Pythonic:
    spelled: str
    """With `{calls}`, in brackets or not."""
    between: str = ", "

    @cached_property
    def _markup(self) -> tuple[Spelling, Spelling]:
        before, _, after = re.split(r"(\[\{calls\}\]|\{calls\})", self.spelled)
        return Spelling(before), Spelling(after)

    @cached_property
    def _bounds(self) -> re.Pattern[str]:
        return _bounds(*self._markup)

    @cached_property
    def bare(self) -> bool:
        return not self._markup[0].opener

    @cached_property
    def opener(self) -> str:
        return self._markup[0].opener or self.spelled[0]

    def read(self, source: Source, at: int) -> Found:
        before, after = self._markup
        begin = source.space(_opened(before, source, at)[1])
        listed = source.char(begin) == "["
        first = source.space(begin + 1) if listed else begin
        if self.bare:
            self._check_plausible(source, first)
        found = self._items(source, first)
        if not listed:
            return found._replace(end=after.close(source, found.end))
        end = skip(source.text, found.end)
        if source.char(end) == "]":
            end += 1
        elif self.bare:
            raise Bad(end, "expected ']'") if source.char(end) else Cut
        elif not source.char(end) and not found.problems:
            found.problems.append(_unclosed(end))
        return found._replace(end=after.close(source, end))

    def _check_plausible(self, source: Source, at: int) -> None:
        if not _NAME.match(source.char(at)):
            raise Other(at, "no call")
        try:
            source.expect("(", _word(source.text, at, _NAME)[1])
        except Bad as error:
            raise Other(error.at, "no call") from None

    def _items(self, source: Source, at: int) -> Found:
        calls: list[Raw] = []
        problems: list[Problem] = []
        wrong: Bad | Cut = Bad(at, "expected a call")
        region = ""
        while _NAME.match(source.char(at)):
            try:
                call, at = self._call(source.text, at, PYTHON)
                calls.append(call)
            except (Bad, Cut) as error:
                if self.bare or (isinstance(error, Cut) and not source.final):
                    raise
                wrong = error
                region = region if at < len(region) else self._region(source, at)
                call, end = self._unescaped(region, at) if len(problems) < PATIENCE else (None, at)
                if call:
                    calls.append(call)
                else:
                    problems.append(problem_of(source, at, error))
                    following = _NEXT.search(region, error.at) if isinstance(error, Bad) else None
                    end = following.end() if following else len(region)
                at = end
            following = _SEPARATORS.match(source.text, at)
            at = following.end() if following else at
        if not calls:
            raise wrong
        return Found(at, calls, problems)

    def _region(self, source: Source, at: int) -> str:
        """The text up to where the calls are over, at the latest."""
        over = self._bounds.search(source.text, at + 1)
        if not over and not source.final:
            raise Cut
        return source.text[: over.start()] if over else source.text

    def _unescaped(self, region: str, at: int) -> tuple[Raw | None, int]:
        try:
            return self._call(region, at, LOOSE)
        except (Bad, Cut):
            return None, at

    def _call(self, text: str, at: int, literals: Python) -> tuple[Raw, int]:
        name, begin = _word(text, at, _NAME)
        begin = skip(text, begin)
        if not text.startswith("(", begin):
            raise Cut if begin == len(text) else Bad(begin, "expected '('")
        arguments: JsonObject = {}
        end = skip(text, begin + 1)
        while not text.startswith(")", end):
            key, end = _word(text, end, _KEY)
            end = skip(text, end)
            if not text.startswith("=", end):
                raise Cut if end == len(text) else Bad(end, "expected '='")
            arguments[key], end = literals.value(text, end + 1)
            end = separated(text, end, ")")
        return Raw(at, name, arguments), end + 1

    def write(self, calls: Sequence[Call]) -> str:
        return self.spelled.replace("{calls}", self.between.join(map(self._write, calls)))

    def _write(self, call: Call) -> str:
        arguments = mapping(loads(call.arguments))
        return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _word(text: str, at: int, pattern: re.Pattern[str]) -> tuple[str, int]:
    found = pattern.match(text, at)
    if at == len(text) or (found and found.end() == len(text)):
        raise Cut
    if not found:
        raise Bad(at, "expected a name")
    return found.group(), found.end()


Shape = JsonCalls | Spelled | Pythonic
"""`opener` is what every such text begins with; a `bare` shape has no marker, and ordinary text may begin like it."""
