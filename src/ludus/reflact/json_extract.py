"""Extract one JSON value from a model's reply. Pure.

Models wrap their JSON in a fence, in prose, or both, add trailing commas, and put fences inside its strings. The text
is read from left to right, and a value is taken whole where it starts, so that text inside its strings is never
mistaken for another value. There must be exactly one value, bare or in a fence. Only trailing commas and raw line
breaks in strings are corrected. Otherwise a `ValueError` describes the problem in words that can be sent back to the
model.
"""

import contextlib
import json
import re
from typing import Any

import msgspec

_FENCE = re.compile(r"```(?:json|JSON)\s*")
_DECODER = json.JSONDecoder(strict=False)
_ATTEMPTS = 50
"""The largest number of brackets without a value. More would take quadratic time."""


def extract_json(text: str) -> Any:
    """The one object, or fenced list, in the text.

    Raises:
        ValueError: there is none, there are several, it is invalid, or it contains text that cannot be stored.
    """
    try:
        value = _extract_one(text)
        msgspec.json.encode(value)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("its JSON contains half of a surrogate pair; write each character as it is") from None
    return value


def _extract_one(text: str) -> Any:
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
    """All values, those in a fence, and the problem of the first invalid one."""
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
        value, at, problem = _decode_at(text, start)
        if problem is None:
            found.append(value)
            if fence:
                fenced.append(value)
        else:
            failed += 1
            broken = broken or problem
    return found, fenced, broken


def _decode_at(text: str, start: int) -> tuple[Any, int, str | None]:
    """The value that starts here, its end, and its problem: None if it is valid, "" for braces in prose."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except ValueError as error:
        reason = str(error)
    else:
        return value, end, None
    looks_like_json = re.match(r"[{\[]\s*[\"{}\]\[]", text[start : start + 200]) is not None
    end = _find_closing(text, start)
    if end < 0:
        return None, (len(text) if looks_like_json else start + 1), "its JSON is not closed" if looks_like_json else ""
    try:
        return _DECODER.decode(_drop_trailing_commas(text[start:end])), end, None
    except ValueError:
        return None, end, f"its JSON is broken: {reason}" if looks_like_json else ""


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_TRAILING = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL)


def _find_closing(text: str, start: int) -> int:
    """The end of the bracket that opens at `start`; -1 if it is not closed."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        if token[0] in ("{", "["):
            depth += 1
        elif token[0] in ("}", "]"):
            depth -= 1
            if depth == 0:
                return token.end()
    return -1


def _drop_trailing_commas(text: str) -> str:
    return _TRAILING.sub(lambda match: match[1] or "", text)
