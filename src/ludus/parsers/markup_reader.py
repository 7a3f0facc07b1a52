"""Reads markup from a text that may still be growing.

Readers are plain functions of a text and a position. A reader returns, or raises `MalformedText` (the text is not what
was expected, whatever follows) or `IncompleteText` (the text ends too early to decide). A reader is never resumed: when
more text has come, it runs again from its start. So its result must not change as the text grows. This is the one rule
for everything that takes a `TextSource`.

A `Spelling` is a piece of markup as the model's own template writes it, with `{fields}` in it. The same string is used
to read and to write, so a format reads what it writes. Only white space may differ.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct

from ludus.parsers.offered_tools import OfferedTools
from ludus.parsers.values import IncompleteText, MalformedText

MAX_FIELD = 256
"""The longest name or key. It limits how much text a false start can delay."""

_FIELD = re.compile(r"\{(\w+)\}")
# Some models write the newline of their template as two characters, or the letters of a byte-level token.
_SPACE = re.compile(r"(?:\s|\\n|[ĠĊ])*+")


class NotACall(MalformedText):
    """Not the beginning of a call: plain text, not to be reported."""


class TextSource(Struct, frozen=True):
    """A text, whether it is complete, and the offered tools."""

    text: str
    final: bool
    tools: OfferedTools

    def skip_space(self, at: int) -> int:
        """The position after the white space at `at`."""
        found = _SPACE.match(self.text, at)
        return found.end() if found else at

    def get_char(self, at: int) -> str:
        """The character at `at`; empty at the end of a complete text."""
        if at >= len(self.text) and not self.final:
            raise IncompleteText
        return self.text[at : at + 1]

    def expect(self, literal: str, at: int) -> int:
        """The position after `literal`, which must be at `at`."""
        if self.text.startswith(literal, at):
            return at + len(literal)
        if self.is_undecided(literal, at):
            raise IncompleteText
        raise MalformedText(at, f"expected {literal!r}")

    def skip_optional(self, literal: str, at: int) -> int:
        """The position after `literal`, if it is at `at`. At the end of a complete text, its beginning is enough."""
        if self.text.startswith(literal, at):
            return at + len(literal)
        if not self.is_undecided(literal, at):
            return at
        if not self.final:
            raise IncompleteText
        return len(self.text)

    def is_undecided(self, literal: str, at: int) -> bool:
        """Whether the text ends inside what may become `literal`."""
        rest = self.text[at : at + len(literal)]
        return at + len(rest) == len(self.text) and (literal.startswith(rest) or rest == "\\")


class Field(NamedTuple):
    name: str
    pattern: re.Pattern[str]
    quoted: bool = False
    """It is between double quotes, and quotes inside it are written as entities."""

    def read(self, source: TextSource, at: int) -> tuple[str, int]:
        found = self.pattern.match(source.text, at)
        end = found.end() if found else at
        if end == len(source.text) and end - at < MAX_FIELD:
            raise IncompleteText
        if not found:
            raise MalformedText(at, f"expected a {self.name}")
        return unescape(found.group()) if self.quoted else found.group(), end


SPACE = None
"""A part of a spelling: any amount of white space."""


@dataclass(frozen=True)
class Spelling:
    text: str

    @cached_property
    def parts(self) -> tuple[str | Field | None, ...]:
        # White space may differ where the template has some, between two tags, and around a field that is not quoted.
        # Not at the end: there, how much of it is read would depend on how much text has come.
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
        """The literal with which every text in this spelling begins."""
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
        """The position after the part of the markup that is here. A model may forget closing tags."""
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
    """A field with the white space around it. What follows in the spelling decides which characters it may have."""
    if after.startswith('"'):
        return [Field(name, re.compile(rf'[^"\n]{{1,{MAX_FIELD}}}'), quoted=True)]
    end = re.escape(after[0]) if after and not after.isspace() else ""
    kind = {
        "index": r"\d",
        "name": rf"[^\s<>{{}}\[\]\\\"'{end}]",
    }.get("name" if name in {"to", "tag", "id"} else name, rf"[^\n<{end}]")
    return [SPACE, Field(name, re.compile(rf"{kind}{{1,{MAX_FIELD}}}")), SPACE]
