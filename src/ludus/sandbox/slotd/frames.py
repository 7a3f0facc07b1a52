"""Messages between driver and slotd: a JSON object and some bytes. Both sides use this file.

    4 bytes: length of the JSON | 4 bytes: length of the bytes | JSON | bytes

Over stdio, messages follow one another; over HTTP, each is the body of a request or of its answer. Commands, input and
output travel as the bytes, so nothing in them is ever quoted, escaped or decoded on the way.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

VERSION = 1
MAX_BYTES = 1 << 30
"""Longer messages are taken for noise, such as a login banner on stdout."""
_LENGTHS = struct.Struct(">II")


class Message(NamedTuple):
    head: dict[str, Any]
    body: bytes = b""


class Garbled(Exception):
    """What came in is not a message."""


def pack(message: Message) -> bytes:
    head = json.dumps(message.head, separators=(",", ":")).encode()
    return b"".join((_LENGTHS.pack(len(head), len(message.body)), head, message.body))


class Unpacker:
    """Takes a stream in pieces and gives messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            head, body = _LENGTHS.unpack_from(self._buffer)
            if head + body > MAX_BYTES:
                raise Garbled(bytes(self._buffer[:200]).decode(errors="replace"))
            start, end = _LENGTHS.size + head, _LENGTHS.size + head + body
            if len(self._buffer) < end:
                return
            with memoryview(self._buffer) as view:
                text, rest = bytes(view[_LENGTHS.size : start]), bytes(view[start:end])
            del self._buffer[:end]
            yield Message(_object(text), rest)


def unpack(data: bytes) -> Message:
    """One whole message."""
    messages = list(Unpacker().feed(data))
    if len(messages) != 1:
        raise Garbled(f"{len(data)} bytes hold {len(messages)} messages")
    return messages[0]


def _object(text: bytes) -> dict[str, Any]:
    try:
        value: Any = json.loads(text)
    except ValueError as error:
        raise Garbled(str(error)) from error
    if type(value) is not dict:
        raise Garbled("not an object")
    return cast("dict[str, Any]", value)
