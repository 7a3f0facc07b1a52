"""Secrets that do not stand in a text as they are: in base64, or with signs between their letters that nobody sees.

A file that was printed in base64 is looked at as the text that it is; if a secret is in it, the whole value is one.
Signs of a terminal (colours) and letters without a width are left out before a text is searched. Texts are those of an
adversary: everything here takes time linear in the text, and nothing is decoded twice. Pure.
"""

import base64
import re
from collections.abc import Iterator

from ludus.secret_forms import PrivateSpan, find_keys, find_named, find_placed, is_stand_in

_CODED = re.compile(
    r"(?<![A-Za-z0-9+/=_-])(?:(?:[A-Za-z0-9+/]{48,128}(?:\r?\n|\\n))+[A-Za-z0-9+/]{2,128}|[A-Za-z0-9+/]{16,200000})"
    r"={0,2}(?![A-Za-z0-9+/_-])"
)
_MOST = 200_000
_LOGIN = re.compile(r"[\w.@+-]{1,60}:([^\s:/]{6,200})")
_BREAK = re.compile(r"\r?\n|\\n")

_UNSEEN = re.compile("(?:\x1b|\\\\u001b)\\[[0-9;]{0,12}[A-Za-z]|[\0\u00ad\u200b-\u200f\u2060\ufeff]")
"""Colours of a terminal, also in JSON text; letters without a width; the zeros of UTF-16."""


def find_coded(text: str) -> Iterator[PrivateSpan]:
    """Values in base64 in which a secret is."""
    for found in _CODED.finditer(text):
        last = max((each.start() for each in _BREAK.finditer(found[0])), default=0)
        ends = (found.end(), found.start() + last)  # a word in the next line may look like the last one
        if end := next((end for end in ends if _holds_secret(_decode(text[found.start() : end][:_MOST]))), 0):
            yield PrivateSpan(found.start(), end, "SECRET")


def _decode(value: str) -> str:
    """The text in a value; empty if it is none."""
    plain = _BREAK.sub("", value).rstrip("=")
    if len(plain) % 4 == 1:
        return ""
    try:
        text = base64.b64decode(plain + "=" * (-len(plain) % 4)).decode()
    except ValueError:
        return ""
    return text if all(letter.isprintable() or letter in "\n\r\t" for letter in text) else ""


def _holds_secret(text: str) -> bool:
    if (login := _LOGIN.fullmatch(text.strip())) and not is_stand_in(login[1]):
        return True
    return any(any(find(text)) for find in (find_keys, find_named, find_placed)) if text else False


def drop_unseen(text: str) -> tuple[str, list[int]]:
    """The text without what nobody sees, and where each of its letters stood (and the end). The list is empty if
    nothing was left out."""
    if not _UNSEEN.search(text):
        return text, []
    parts: list[str] = []
    places: list[int] = []
    end = 0
    for found in _UNSEEN.finditer(text):
        parts.append(text[end : found.start()])
        places += range(end, found.start())
        end = found.end()
    parts.append(text[end:])
    places += range(end, len(text) + 1)
    return "".join(parts), places
