"""Frames between driver and slotd: a JSON object and some bytes. Both sides use this module.

    4 bytes: length of the JSON | 4 bytes: length of the bytes | JSON | bytes

Over stdio, frames follow one another. Over HTTP, each is the body of a request or a response. Commands, input and
output are sent as the bytes, so nothing in them is quoted, escaped or decoded.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

VERSION = 1
MAX_BYTES = 1 << 30
"""A longer frame is taken for noise, such as a login banner on stdout."""
_LENGTHS = struct.Struct(">II")


class Frame(NamedTuple):
    """One request or reply."""

    head: dict[str, Any]
    body: bytes = b""


class FrameError(Exception):
    """The data received is not a frame."""


def pack(frame: Frame) -> bytes:
    head = json.dumps(frame.head, separators=(",", ":")).encode()
    return b"".join((_LENGTHS.pack(len(head), len(frame.body)), head, frame.body))


class Unpacker:
    """Reads frames from a stream that arrives in pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take the next piece of the stream and yield the frames that are now complete."""
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            head, body = _LENGTHS.unpack_from(self._buffer)
            if head + body > MAX_BYTES:
                raise FrameError(bytes(self._buffer[:200]).decode(errors="replace"))
            start, end = _LENGTHS.size + head, _LENGTHS.size + head + body
            if len(self._buffer) < end:
                return
            with memoryview(self._buffer) as view:
                text, rest = bytes(view[_LENGTHS.size : start]), bytes(view[start:end])
            del self._buffer[:end]
            yield Frame(_parse_object(text), rest)


def unpack(data: bytes) -> Frame:
    """Read exactly one frame."""
    found = list(Unpacker().feed(data))
    if len(found) != 1:
        raise FrameError(f"{len(data)} bytes hold {len(found)} frames")
    return found[0]


def _parse_object(text: bytes) -> dict[str, Any]:
    try:
        value: Any = json.loads(text)
    except ValueError as error:
        raise FrameError(str(error)) from error
    if type(value) is not dict:
        raise FrameError("not an object")
    return cast("dict[str, Any]", value)
