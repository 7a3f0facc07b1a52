"""The passages of the initial skill: the parts of a document that can be left out one by one. Pure.

A passage is a list item with what belongs to it, a paragraph, a table, a block of code or a worked example. Front
matter, the regions that the trainer writes, what lies between `<!-- KEEP_START -->` and `<!-- KEEP_END -->`, and lines
that begin with a comment are no passages: they always stay. A heading stays as long as something below it does. The
references of a package (its other `.md` files) have passages as the document has.
"""

import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from ludus.skill import Skill, find_protected_spans

_HEADING = re.compile(r"(#{1,6})\s")
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])\s")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")

_EXAMPLE = "## Example"


class Passage(NamedTuple):
    """A passage of the initial skill."""

    id: str
    """`P1`, `P2`, … in the order of the document."""
    text: str
    path: str = ""
    """The reference that it is in; empty: the document."""


class _Piece(NamedTuple):
    """A part of a document. All pieces together are the document."""

    text: str
    passage: bool = False
    level: int = 0
    """That of a heading; 0 for anything else."""


def list_passages(skill: Skill) -> tuple[Passage, ...]:
    """The passages of a skill, in order: those of the document, then those of its references."""
    texts = [(piece.text.strip(), path) for path, text in _list_texts(skill) for piece in _split(text) if piece.passage]
    return tuple(Passage(f"P{number}", text, path) for number, (text, path) in enumerate(texts, 1))


def drop_passages(skill: Skill, absent: Collection[str]) -> Skill:
    """The skill without these passages, and without headings that nothing is left of."""
    if not absent:
        return skill
    number = 0
    for path, text in _list_texts(skill):
        left, number = _drop_from_text(text, absent, number)
        file = skill.get_file(path)
        skill = skill.change_text(left) if file is None else skill.put_file(replace(file, text=left))
    return skill


def _list_texts(skill: Skill) -> Iterator[tuple[str, str]]:
    """The document (its path is empty) and the references of a package. Scripts have no passages."""
    yield "", skill.text
    for file in skill.files:
        if file.path.endswith(".md") and not file.is_script and not file.data:
            yield file.path, file.text


def _drop_from_text(text: str, absent: Collection[str], number: int) -> tuple[str, int]:
    """A text without these passages, and the number of its last passage; `number` is that of the one before it."""
    pieces = _split(text)
    kept: list[bool] = []
    for piece in pieces:
        number += piece.passage
        kept.append(not (piece.passage and f"P{number}" in absent))
    for place in reversed(range(len(pieces))):
        if pieces[place].level and not _has_content(pieces, kept, place):
            kept[place] = False
    return "".join(piece.text for piece, keep in zip(pieces, kept, strict=True) if keep), number


def _has_content(pieces: tuple[_Piece, ...], kept: list[bool], place: int) -> bool:
    """Whether anything below a heading is kept, or there was nothing below it in the first place."""
    end = next((n for n in range(place + 1, len(pieces)) if 0 < pieces[n].level <= pieces[place].level), len(pieces))
    below = range(place + 1, end)
    return any(kept[n] for n in below) or not any(pieces[n].passage for n in below)


@lru_cache(maxsize=64)  # the same few documents are composed for every rollout
def _split(text: str) -> tuple[_Piece, ...]:
    pieces: list[_Piece] = []
    at = 0
    for start, end in find_protected_spans(text):
        pieces += _split_free(text[at:start])
        pieces.append(_Piece(text[start:end]))
        at = end
    return (*pieces, *_split_free(text[at:]))


def _split_free(text: str) -> Iterator[_Piece]:
    """The pieces of a text without protected parts. Blank lines belong to the piece before them."""
    block: list[str] = []
    blank, fence = False, ""
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if fence:
            fence = "" if found and found[1] == fence else fence
            block.append(line)
            continue
        if block and line.strip() and _begins(line, block, blank):
            yield _make_piece(block)
            block = []
        block.append(line)
        fence, blank = found[1] if found else "", not line.strip()
    if block:
        yield _make_piece(block)


def _begins(line: str, block: list[str], blank: bool) -> bool:
    """Whether a line begins a new piece after this block."""
    first = next((each for each in block if each.strip()), "")
    if not first:
        return False
    if first.rstrip() == _EXAMPLE:
        return bool(_HEADING.match(line))
    if _HEADING.match(line) or _HEADING.match(first) or line.startswith("<!--") or first.startswith("<!--"):
        return True
    if _ITEM.match(line) and len(line) - len(line.lstrip()) <= len(first) - len(first.lstrip()):
        return True
    return blank and not (_ITEM.match(first) and line[:1] in " \t")


def _make_piece(block: list[str]) -> _Piece:
    text = "".join(block)
    head = _HEADING.match(text.lstrip("\n"))
    if head and text.strip().partition("\n")[0].rstrip() != _EXAMPLE:
        return _Piece(text, level=len(head[1]))
    return _Piece(text, passage=bool(text.strip()) and not text.lstrip().startswith("<!--"))
