"""Reads values from a text at a position: JSON, Python literals, and the braces of Gemma.

Every reader returns a value and its end, or raises `MalformedText` or `IncompleteText`. No reader looks for a closing
tag to find the end of a value, so a tag inside a string ends nothing. JSON is read by the standard library's decoder;
raw newlines in strings are allowed. Python literals have their own reader, because `ast` warns, recurses and cannot say
whether a text is wrong or unfinished.

Nesting is limited to `MAX_DEPTH`, so that no input can exhaust the stack. Every reader takes time in proportion to the
text that it reads.
"""

import json
import math
import re
from collections.abc import Callable
from typing import Any, ClassVar, cast

MAX_DEPTH = 100


class MalformedText(Exception):
    """The text at `at` is not what was expected, whatever follows."""

    early = False
    """Whether it happened in the opening tags, before any argument."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at = at


class IncompleteText(Exception):
    """The text ends too early to decide what it is."""

    early = False

    def __init__(self, why: str = "the text ends inside a call") -> None:
        super().__init__(why)


# ---- JSON ---------------------------------------------------------------------------------------------------------

_DECODER = json.JSONDecoder(strict=False)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[][{}]', re.DOTALL)
_UNFINISHED = re.compile(r"-|\.|[eE][+-]?|t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?|-?I\w{0,7}|N\w?|")


def read_json(text: str, at: int) -> tuple[Any, int]:
    """The JSON value at `at` and its end."""
    size = 1024
    while True:
        # On an error the decoder counts lines from the beginning of its input: keep the input short.
        piece = text[at : at + size]
        try:
            value, end = _decode(piece)
            return value, at + end
        except MalformedText as error:
            raise MalformedText(at + error.at, str(error)) from None
        except IncompleteText:
            if at + size >= len(text):
                raise
            size *= 8


def _decode(piece: str) -> tuple[Any, int]:
    limit = _find_too_deep(piece)
    piece = piece[:limit]
    try:
        return _DECODER.raw_decode(piece)
    except json.JSONDecodeError as error:
        rest = piece[error.pos :].strip()
        is_unfinished = error.msg.startswith("Unterminated") or ("uXXXX" in error.msg and len(rest) < 8)
        if not is_unfinished and not _UNFINISHED.fullmatch(rest):
            raise MalformedText(error.pos, f"bad JSON: {error.msg}") from None
        if limit is None:
            raise IncompleteText from None
        raise MalformedText(limit, f"bad JSON: nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise MalformedText(0, f"bad JSON: {error}") from None


def _find_too_deep(piece: str) -> int | None:
    """The position where the nesting passes the limit; None if it does not."""
    if piece.count("{") + piece.count("[") <= MAX_DEPTH:
        return None
    depth = 0
    for found in _BRACKETS.finditer(piece):
        char = found.group()
        depth += (char in "[{") - (char in "]}")
        if depth > MAX_DEPTH:
            return found.start()
    return None


def loads(text: str) -> Any:
    """Decode a whole text as JSON; ValueError if it is not. NaN and numbers that overflow to infinity are refused."""
    try:
        value, end = read_json(text, 0)
    except (MalformedText, IncompleteText) as error:
        raise ValueError(str(error)) from None
    if text[end:].strip():
        raise ValueError("bad JSON: text after the value")
    if type(value) in (float, list, dict):
        _ENCODER.encode(value)
    return value


def dumps(value: Any) -> str:
    """Encode as arguments are recorded: Python's separators, letters not escaped. ValueError for NaN and infinity."""
    text = _ENCODER.encode(value)
    # Half a surrogate pair is legal only as a JSON escape.
    return text if text.isascii() or _can_encode(text) else json.dumps(value, allow_nan=False)


def _can_encode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# ---- literals -----------------------------------------------------------------------------------------------------

_SKIP = re.compile(r"\s*+")
_PAIRS = {"[": "]", "(": ")", "{": "}"}


def skip_space(text: str, at: int) -> int:
    found = _SKIP.match(text, at)
    return found.end() if found else at


class Literals:
    """Reads lists and dictionaries. Subclasses read scalars and keys."""

    def read_value(self, text: str, at: int, depth: int = 0) -> tuple[Any, int]:
        if depth > MAX_DEPTH:
            raise MalformedText(at, f"nested deeper than {MAX_DEPTH}")
        at = skip_space(text, at)
        if at == len(text):
            raise IncompleteText
        if text[at] in _PAIRS:
            return self._read_container(text, at, depth)
        return self.read_scalar(text, at, depth)

    def read_scalar(self, text: str, at: int, depth: int) -> tuple[Any, int]:
        raise NotImplementedError

    def read_key(self, text: str, at: int, depth: int) -> tuple[Any, int]:
        return self.read_value(text, at, depth)

    def loads(self, text: str) -> Any:
        """Read a whole text as one value; ValueError if it is not."""
        try:
            value, end = self.read_value(text + " ", 0)  # a value at the end of the text might continue
        except (MalformedText, IncompleteText) as error:
            raise ValueError(str(error)) from None
        if text[end:].strip():
            raise ValueError("text after the value")
        return value

    def _read_container(self, text: str, at: int, depth: int) -> tuple[Any, int]:
        opened, closing = text[at], _PAIRS[text[at]]
        items: list[Any] = []
        pairs: dict[str, Any] = {}
        at = skip_space(text, at + 1)
        while not text.startswith(closing, at):
            if opened == "{":
                item, at = self.read_key(text, at, depth + 1)
                at = skip_space(text, at)
            else:
                item, at = self.read_value(text, at, depth + 1)
            if opened == "{" and text.startswith(":", at):
                pairs[item if isinstance(item, str) else dumps(item)], at = self.read_value(text, at + 1, depth + 1)
            else:
                items.append(item)
            at = skip_separator(text, at, closing)
        if opened == "{":
            return pairs if pairs or not items else items, at + 1
        return items[0] if opened == "(" and len(items) == 1 and text[at - 1] != "," else items, at + 1


def skip_separator(text: str, at: int, closing: str) -> int:
    """The position after a comma, or of the closing bracket."""
    at = skip_space(text, at)
    if text.startswith(",", at):
        return skip_space(text, at + 1)
    if at == len(text):
        raise IncompleteText
    if not text.startswith(closing, at):
        raise MalformedText(at, f"expected ',' or {closing!r}")
    return at


class PythonLiterals(Literals):
    """Python literals, and JSON's `true`, `false` and `null`. Strings may have newlines, numbers leading zeros."""

    WORDS: ClassVar = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
    _WORD = re.compile(r"[^\W\d]\w*+")
    _NUMBER = re.compile(r"[+-]?(?:0[xX][\da-fA-F_]*+|(?:\d[\d_]*+(?:\.[\d_]*+)?|\.\d[\d_]*+)(?:[eE][+-]?\d*+)?)")
    _QUOTE = re.compile(r"""([rRbBuUfF]{0,2})('''|\"{3}|'|")""")
    _PREFIX = re.compile("[rRbBuUfF]{1,2}")
    _SIGN = re.compile(r"[+-]?\.?")
    _BODY: ClassVar = {
        quote: re.compile(rf"((?:[^\\{quote[0]}]++|\\.|{quote[0]}(?!{quote[1:]}))*+){quote}", re.DOTALL)
        for quote in ('"""', "'''", '"', "'")
    }
    _ESCAPE = re.compile(r"\\(\n|[0-7]{1,3}|x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8}|.)", re.DOTALL)
    _ESCAPED: ClassVar = {
        "\n": "", "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a",
        "\\": "\\", "'": "'", '"': '"',
    }  # fmt: skip

    def read_scalar(self, text: str, at: int, depth: int) -> tuple[Any, int]:
        if found := self._QUOTE.match(text, at):
            value, end = self._read_string(text, found, depth)
            if end == len(text):  # an empty string may be the beginning of three quotes
                raise IncompleteText
            return value, end
        found = self._NUMBER.match(text, at) or self._WORD.match(text, at)
        if self._SIGN.fullmatch(text, at) or (found and found.end() == len(text)):
            raise IncompleteText
        if found is None:
            raise MalformedText(at, f"unexpected {text[at]!r}")
        if found.group() in self.WORDS:
            return self.WORDS[found.group()], found.end()
        return self._read_number(found), found.end()

    @staticmethod
    def _read_number(found: re.Match[str]) -> int | float:
        digits = found.group().replace("_", "")
        try:
            if digits.lower().lstrip("+-").startswith("0x"):
                return int(digits, 16)
            number = float(digits) if re.search(r"[.eE]", digits) else int(digits)
            if math.isfinite(number):
                return number
        except (ValueError, OverflowError):
            pass
        raise MalformedText(found.start(), f"unexpected {found.group()[:40]!r}")

    def _read_string(self, text: str, found: re.Match[str], depth: int) -> tuple[str, int]:
        """A string, and the strings that follow it directly."""
        parts: list[str] = []
        while True:
            raw, quote = found.groups()
            body, at = self.read_body(text, found.end(), quote, depth)
            parts.append(body if raw.lower() in {"r", "br", "rb"} else self._ESCAPE.sub(self._unescape, body))
            begin = skip_space(text, at)
            after = self._QUOTE.match(text, begin)
            if after is None:
                if self._PREFIX.fullmatch(text, begin):  # another string may begin with these letters
                    raise IncompleteText
                return "".join(parts), at
            found = after

    def read_body(self, text: str, at: int, quote: str, depth: int) -> tuple[str, int]:
        """The text of a string, and the position after its closing quote."""
        found = self._BODY[quote].match(text, at)
        if found is None:
            raise IncompleteText
        return found.group(1), found.end()

    def _unescape(self, found: re.Match[str]) -> str:
        code = found.group(1)
        if code in self._ESCAPED:
            return self._ESCAPED[code]
        if code[0] in "xuU" and len(code) > 1:
            number = int(code[1:], 16)
            return chr(number) if number < 0x110000 else found.group()
        return chr(int(code, 8)) if code.isdigit() and code.isascii() else found.group()


class LooseLiterals(PythonLiterals):
    """Python from templates that put quotes around a string without escaping it. A quote ends a string only where an
    argument or an item can end. For a region whose end is known."""

    _ENDS = re.compile(r"\s*+(?:,\s*+[^\W\d]\w*+\s*+=|\)\s*+(?:[],;\n]|\Z))")
    _INNER_ENDS = re.compile(r"\s*+[],:})]")

    def read_body(self, text: str, at: int, quote: str, depth: int) -> tuple[str, int]:
        ends = self._INNER_ENDS if depth else self._ENDS
        close = text.find(quote, at)
        while close >= 0:
            if ends.match(text, close + len(quote)):
                return text[at:close], close + len(quote)
            close = text.find(quote, close + 1)
        raise IncompleteText


class GemmaLiterals(Literals):
    """`{key:value,…}` with strings between two equal marks. Keys are bare, and nothing is escaped."""

    _BARE = re.compile(r"[^,\]}]*+")
    _KEY = re.compile(r"[^:,{}\[\]]*+")

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def read_scalar(self, text: str, at: int, depth: int) -> tuple[Any, int]:
        return self._read_token(text, at, self._BARE, self._read_plain)

    def read_key(self, text: str, at: int, depth: int) -> tuple[Any, int]:
        return self._read_token(text, at, self._KEY, str)

    def _read_token(self, text: str, at: int, bare: re.Pattern[str], plain: Callable[[str], Any]) -> tuple[Any, int]:
        if text.startswith(self.mark, at):
            begin = at + len(self.mark)
            end = text.find(self.mark, begin)
            if end < 0:
                raise IncompleteText
            return text[begin:end], end + len(self.mark)
        found = bare.match(text, at)
        if found is None or found.end() == len(text):
            raise IncompleteText
        if not found.group():
            raise MalformedText(at, f"unexpected {text[at]!r}")
        return plain(found.group().strip()), found.end()

    @staticmethod
    def _read_plain(text: str) -> Any:
        try:
            return loads(text)
        except ValueError:
            return PythonLiterals.WORDS.get(text, text)

    def write(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.mark}{value}{self.mark}"
        if isinstance(value, dict):
            pairs = cast(dict[str, Any], value).items()
            return f"{{{','.join(f'{key}:{self.write(item)}' for key, item in pairs)}}}"
        if isinstance(value, list):
            return f"[{','.join(map(self.write, cast(list[Any], value)))}]"
        return dumps(value)


PYTHON = PythonLiterals()
LOOSE = LooseLiterals()
