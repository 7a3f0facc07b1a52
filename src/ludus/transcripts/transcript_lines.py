"""Files of JSON that others wrote, read within limits.

A transcript may be written to at this moment, may have been cut by a crash, and may be made to do harm. A line that
cannot be read costs that line: it is counted by what is wrong with it, and the next one is read. Nothing that is nested
deeper than the limit is returned, so that what reads the values may recurse.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import msgspec

from ludus.encoding import replace_surrogates
from ludus.whole_files import NotRegular, open_regular

BOM = b"\xef\xbb\xbf"
UNREADABLE = "lines that are not JSON"
LONG = "lines that are too long"
DEEP = "values that are nested too deeply"
UNFINISHED = "unfinished last lines"
BAD_TEXT = "lines with broken UTF-8, read with replacements"
NULS = "lines with NUL bytes, read without them"


@dataclass(frozen=True)
class IntakeLimits:
    """What is read of transcripts at most. What is beyond a limit is left out and counted."""

    file_bytes: int = 500_000_000
    """The longest file of lines."""
    document_bytes: int = 100_000_000
    """The longest file that is one value of JSON, which is read as a whole."""
    line_bytes: int = 20_000_000
    depth: int = 100
    """The deepest nesting of JSON."""
    files: int = 100_000
    """The most files of one folder."""


def open_plain_file(path: str, folder: int | None = None) -> BinaryIO | None:
    """A file, opened to read; None if it is no plain file. With `folder` (a descriptor), a link is none either.

    Raises:
        OSError: it cannot be opened.
    """
    try:
        return open_regular(path, folder)
    except NotRegular:
        return None


def read_values(file: BinaryIO, limits: IntakeLimits, dropped: Counter[str]) -> Iterator[Any]:
    """The values of a file of lines, one after the other."""
    first = True
    while line := file.readline(limits.line_bytes + 1):
        whole = line.endswith(b"\n")
        if not whole and len(line) > limits.line_bytes:
            _skip_line(file, limits.line_bytes)
            dropped[LONG] += 1
            first = False
            continue
        text = line.removeprefix(BOM) if first else line
        first = False
        yield from _read_line(text, whole, limits, dropped)


def _skip_line(file: BinaryIO, step: int) -> None:
    while (rest := file.readline(step)) and not rest.endswith(b"\n"):
        pass


def _read_line(line: bytes, whole: bool, limits: IntakeLimits, dropped: Counter[str]) -> Iterator[Any]:
    """The value of a line; nothing if it is empty or cannot be read."""
    if b"\0" in line:  # a file system fills a file with them after a crash
        dropped[NULS] += 1
        line = line.replace(b"\0", b"")
    if not line.strip():
        return
    try:
        value = decode_foreign(line, dropped)
    except RecursionError:
        dropped[DEEP] += 1
        return
    except ValueError:
        dropped[UNREADABLE if whole else UNFINISHED] += 1
        return
    if is_too_deep(line, value, limits.depth):
        dropped[DEEP] += 1
        return
    yield value


def read_document(file: BinaryIO, limits: IntakeLimits, dropped: Counter[str]) -> Iterator[Any]:
    """The value of a file that is one value of JSON; nothing if it cannot be read."""
    body = file.read(limits.document_bytes + 1)
    if len(body) > limits.document_bytes:
        dropped["files that are too long"] += 1
        return
    yield from _read_line(body.removeprefix(BOM), True, limits, dropped)


def decode_foreign(text: bytes, dropped: Counter[str]) -> Any:
    """A value of JSON as Python or JavaScript may write it: `NaN`, halves of surrogate pairs, broken UTF-8.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    try:
        return msgspec.json.decode(text)
    except ValueError:
        pass
    try:
        decoded = text.decode()
    except UnicodeDecodeError:
        decoded = text.decode(errors="replace")
        value = replace_surrogates(json.loads(decoded))
        dropped[BAD_TEXT] += 1
        return value
    return replace_surrogates(json.loads(decoded))


def is_too_deep(text: bytes, value: Any, depth: int) -> bool:
    """Whether a value is nested deeper than `depth`."""
    if text.count(b"[") + text.count(b"{") <= depth:
        return False
    level: list[Any] = [value]
    for _ in range(depth):
        level = [inner for each in level for inner in _list_inner(each)]
        if not level:
            return False
    return any(isinstance(each, dict | list) for each in level)


def _list_inner(value: Any) -> list[Any]:
    if isinstance(value, dict):
        found = list(cast(dict[str, Any], value).values())
    elif isinstance(value, list):
        found = cast(list[Any], value)
    else:
        return []
    return [each for each in found if isinstance(each, dict | list)]
