"""One JSON value out of what a model wrote. Pure.

Models wrap their JSON in a fence, in prose, or both, leave a comma too many, and put fences inside its strings. The
text is read from left to right, a value is taken whole wherever one starts (so what is inside its strings is never
mistaken for another one), and there must be exactly one: bare, or in a fence among other things. Nothing is guessed
beyond trailing commas and raw line breaks in strings; a `ValueError` says what is wrong in words that can be sent back
to the model.
"""

import contextlib
import json
import re
from typing import Any

_FENCE = re.compile(r"```(?:json|JSON)\s*")
_DECODER = json.JSONDecoder(strict=False)
_ATTEMPTS = 50
"""How many brackets that start nothing are looked at: a text full of them is not worth quadratic time."""


def extract_json(text: str) -> Any:
    """The one object, or fenced list, in the text.

    Raises:
        ValueError: there is none, it is broken, or there are several.
    """
    try:
        return _one(text)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def _one(text: str) -> Any:
    with contextlib.suppress(ValueError):
        whole = _DECODER.decode(text.strip())
        if isinstance(whole, dict | list):
            return whole  # pyright: ignore[reportUnknownVariableType]
    found, fenced, broken = _scan(text)
    if len(fenced) == 1:
        return fenced[0]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"it holds {len(found)} JSON objects, and one was asked for")
    raise ValueError(broken or "it holds no JSON object")


def _scan(text: str) -> tuple[list[Any], list[Any], str]:
    """All values, those in a fence, and what is wrong with one that is broken."""
    found: list[Any] = []
    fenced: list[Any] = []
    broken = ""
    at = failed = 0
    while at < len(text) and failed < _ATTEMPTS:
        fence = _FENCE.match(text, at)
        start = fence.end() if fence else at
        if not text.startswith(("{", "[") if fence else "{", start):
            at = max(start, at + 1)
            continue
        value, at, problem = _value_at(text, start)
        if problem is None:
            found.append(value)
            if fence:
                fenced.append(value)
        else:
            failed += 1
            broken = broken or problem
    return found, fenced, broken


def _value_at(text: str, start: int) -> tuple[Any, int, str | None]:
    """The value that starts here, where it ends, and what is wrong with it: "" for braces in prose."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except ValueError as error:
        reason = str(error)
    else:
        return value, end, None
    looks_like_json = re.match(r"[{\[]\s*[\"{}\]\[]", text[start : start + 200]) is not None
    end = _closing(text, start)
    if end < 0:
        return None, (len(text) if looks_like_json else start + 1), "its JSON is not closed" if looks_like_json else ""
    try:
        return _DECODER.decode(_without_trailing_commas(text[start:end])), end, None
    except ValueError:
        return None, end, f"its JSON is broken: {reason}" if looks_like_json else ""


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_TRAILING = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL)


def _closing(text: str, start: int) -> int:
    """The end of what the bracket at `start` opens; -1 if nothing closes it."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        if token[0] in ("{", "["):
            depth += 1
        elif token[0] in ("}", "]"):
            depth -= 1
            if depth == 0:
                return token.end()
    return -1


def _without_trailing_commas(text: str) -> str:
    return _TRAILING.sub(lambda match: match[1] or "", text)
