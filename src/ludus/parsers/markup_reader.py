"""Reading markup out of a text that may still be growing.

Readers are plain functions of a text and a position. They end in one of three ways: they return, they raise `Bad`
(this is not what was expected, whatever follows) or they raise `Cut` (the text ends too early to tell). A reader is
never resumed: when more text has come it is simply run again from where it began. What it says must therefore not
change as the text grows, and that is the one rule for everything that takes a `Source`.

A `Spelling` is how a model's own template writes a piece of markup, with `{fields}` in it. The same string reads and
writes, so a format cannot learn to read what it does not write. Reading is lenient about whitespace only.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct

from ludus.parsers.offered_tools import OfferedTools
from ludus.parsers.values import IncompleteText, MalformedText

MAX_FIELD = 256
"""The longest name or key. It bounds how much text a false start can hold back."""

_FIELD = re.compile(r"\{(\w+)\}")
# Some models write the newline of their template as two characters, or a byte-level token as it is.
_SPACE = re.compile(r"(?:\s|\\n|[ĠĊ])*+")


class NotACall(MalformedText):
    """Not even the beginning of a call: nothing to report, only text."""


class TextSource(Struct, frozen=True):
    """A text, whether it is all of it, and the tools that were offered."""

    text: str
    final: bool
    tools: OfferedTools

    def skip_space(self, at: int) -> int:
        """The end of the whitespace at `at`."""
        found = _SPACE.match(self.text, at)
        return found.end() if found else at

    def get_char(self, at: int) -> str:
        """The character at `at`; empty at the end of the whole text."""
        if at >= len(self.text) and not self.final:
            raise IncompleteText
        return self.text[at : at + 1]

    def expect(self, literal: str, at: int) -> int:
        """The position after `literal`, which must be here."""
        if self.text.startswith(literal, at):
            return at + len(literal)
        if self.is_undecided(literal, at):
            raise IncompleteText
        raise MalformedText(at, f"expected {literal!r}")

    def skip_optional(self, literal: str, at: int) -> int:
        """The position after `literal` if it is here. At the end of the whole text half of it is enough."""
        if self.text.startswith(literal, at):
            return at + len(literal)
        if not self.is_undecided(literal, at):
            return at
        if not self.final:
            raise IncompleteText
        return len(self.text)

    def is_undecided(self, literal: str, at: int) -> bool:
        """Whether the text ends in the middle of what may become `literal`."""
        rest = self.text[at : at + len(literal)]
        return at + len(rest) == len(self.text) and (literal.startswith(rest) or rest == "\\")


class Field(NamedTuple):
    name: str
    pattern: re.Pattern[str]
    quoted: bool = False
    """It stands between double quotes, and those inside it are written as entities."""

    def read(self, source: TextSource, at: int) -> tuple[str, int]:
        found = self.pattern.match(source.text, at)
        end = found.end() if found else at
        if end == len(source.text) and end - at < MAX_FIELD:
            raise IncompleteText
        if not found:
            raise MalformedText(at, f"expected a {self.name}")
        return unescape(found.group()) if self.quoted else found.group(), end


SPACE = None
"""A part of a spelling: whitespace, as much as there is."""


@dataclass(frozen=True)
class Spelling:
    text: str

    @cached_property
    def parts(self) -> tuple[str | Field | None, ...]:
        # Whitespace is free where the template has some, between two tags, and around a field that is not quoted; not
        # at the end, because how much of it there is would depend on how much text has come.
        pieces = [p for p in re.split(r"(\{\w+\}|\s+|(?<=[>`])(?=<))", self.text.strip()) if p]
        parts: list[str | Field | None] = []
        for number, piece in enumerate(pieces):
            after = pieces[number + 1] if number + 1 < len(pieces) else ""
            if piece.isspace():
                parts.append(SPACE)
            elif field := _FIELD.fullmatch(piece):
                parts += _make_field(field[1], after)
            else:
                tags = number > 0 and pieces[number - 1].endswith((">", "`")) and piece.startswith("<")
                parts += [SPACE, piece] if tags else [piece]
        return tuple(parts)

    @cached_property
    def opener(self) -> str:
        """What every text in this spelling begins with."""
        return next((part for part in self.parts if isinstance(part, str)), "")

    def read(self, source: TextSource, at: int) -> tuple[dict[str, str], int]:
        """The fields and the position after the markup."""
        fields: dict[str, str] = {}
        for part in self.parts:
            if isinstance(part, str):
                at = source.expect(part, at)
            elif isinstance(part, Field):
                fields[part.name], at = part.read(source, at)
            else:
                at = source.skip_space(at)
        return fields, at

    def close(self, source: TextSource, at: int) -> int:
        """The position after as much of the markup as is here: closing tags that a model may forget."""
        for part in self.parts:
            if isinstance(part, str):
                begin = source.skip_space(at)
                end = source.skip_optional(part, begin)
                if end == begin:
                    return at
                at = end
        return at

    def write(self, **fields: str) -> str:
        quoted = {part.name for part in self.parts if isinstance(part, Field) and part.quoted}
        return _FIELD.sub(lambda f: escape(fields[f[1]]) if f[1] in quoted else fields[f[1]], self.text)


def escape(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")


def unescape(text: str) -> str:
    if "&" in text:
        for entity, char in (("quot", '"'), ("apos", "'"), ("lt", "<"), ("gt", ">"), ("amp", "&")):
            text = text.replace(f"&{entity};", char)
    return text


def _make_field(name: str, after: str) -> list[str | Field | None]:
    """A field and the whitespace that may surround it, by what follows it in the spelling."""
    if after.startswith('"'):
        return [Field(name, re.compile(rf'[^"\n]{{1,{MAX_FIELD}}}'), quoted=True)]
    end = re.escape(after[0]) if after and not after.isspace() else ""
    kind = {
        "index": r"\d",
        "name": rf"[^\s<>{{}}\[\]\\\"'{end}]",
    }.get("name" if name in {"to", "tag", "id"} else name, rf"[^\n<{end}]")
    return [SPACE, Field(name, re.compile(rf"{kind}{{1,{MAX_FIELD}}}")), SPACE]
