"""The records of a segment as bytes: written with a copy of the event, read past damage.

    record = head + event + the bodies of the event's groups + head of the copy + the event again
    head   = magic, length of the event, length of the bodies, checksum of the event, checksum of the head

An event is a hundred bytes and its bodies are a hundred thousand, so the copy costs nothing, and a flipped bit loses no
event: if the head or the event is damaged, the copy behind the bodies tells both. If the copy is damaged, too, reading
goes on at the next head with a right checksum. What lies between is a `Damage`. A record that ends beyond the file was
never complete: its process was killed while it wrote.

No body can be taken for a record. A body is JSON, which has no zero bytes, and a head has some: no length is as large
as four other bytes.

Records of earlier versions (`LEV1`, `LST1`) have no copy and no checksum of the head. They are read, not written.
"""

import os
import re
import struct
from collections.abc import Iterator, Sequence
from zlib import crc32

from msgspec import Struct

EVENT = b"LEV2"
STATE = b"LST2"
_COPIES = {b"LEC2": EVENT, b"LSC2": STATE}
_COPY_OF = {kind: copy for copy, kind in _COPIES.items()}
_EARLIER = {b"LEV1": EVENT, b"LST1": STATE}
_MAGIC = re.compile(b"|".join((EVENT, STATE, *_COPIES, *_EARLIER)))

_FIELDS = struct.Struct("<4sIII")
"""Magic, length of the event, length of the bodies, checksum of the event. Earlier versions wrote no more."""
_HEAD = struct.Struct("<4sIIII")
_CHUNK = 1024 * 1024


class LogRecord(Struct, frozen=True):
    """A record that was read."""

    kind: bytes
    """`EVENT` or `STATE`."""
    data: bytes
    start: int
    bodies: int
    """Where the bodies begin."""
    end: int
    repaired: bool = False
    """Its event was read from the copy."""


class Damage(Struct, frozen=True):
    """Bytes that cannot be read."""

    start: int
    end: int
    torn: bool = False
    """It is the last record, and it was never complete."""


def build_record(kind: bytes, data: bytes, bodies: Sequence[bytes] = ()) -> list[bytes]:
    """The parts of a record. The bodies follow the first two."""
    lengths = len(data), sum(map(len, bodies)), crc32(data)
    return [_build_head(kind, *lengths), data, *bodies, _build_head(_COPY_OF[kind], *lengths), data]


def measure_head(data: bytes) -> int:
    """How many bytes of a record are before its bodies."""
    return _HEAD.size + len(data)


def _build_head(magic: bytes, length: int, bodies: int, checksum: int) -> bytes:
    fields = _FIELDS.pack(magic, length, bodies, checksum)
    return fields + struct.pack("<I", crc32(fields))


def read_records(file: int, size: int) -> Iterator[LogRecord | Damage]:
    """The records of a segment in order, and the damage between them."""
    offset = 0
    while offset < size:
        found = _read_record(file, offset, size)
        if found is None or (isinstance(found, Damage) and found.torn):
            after = None if found is not None else _find_record(file, offset, size)
            if after is None:
                yield found or Damage(offset, size, torn=_seems_torn(file, offset, size))
                return
            if after.start > offset:
                yield Damage(offset, after.start)
            found = after
        yield found
        offset = found.end


class _Head(Struct, frozen=True):
    magic: bytes
    length: int
    bodies: int
    checksum: int
    size: int
    """Of the head itself."""


def _read_head(file: int, offset: int) -> _Head | None:
    """The head at this place; None if there is none, or if it is damaged."""
    raw = os.pread(file, _HEAD.size, offset)
    if raw[:4] in _EARLIER and len(raw) >= _FIELDS.size:
        return _Head(*_FIELDS.unpack(raw[: _FIELDS.size]), size=_FIELDS.size)
    if len(raw) < _HEAD.size or not _MAGIC.match(raw):
        return None
    *fields, checksum = _HEAD.unpack(raw)
    return _Head(*fields, size=_HEAD.size) if crc32(raw[: _FIELDS.size]) == checksum else None


def _read_event(file: int, offset: int, head: _Head) -> bytes | None:
    data = os.pread(file, head.length, offset)
    return data if len(data) == head.length and crc32(data) == head.checksum else None


def _read_record(file: int, offset: int, size: int) -> LogRecord | Damage | None:
    """The record that begins here; None if no head can be read."""
    if size - offset < _HEAD.size:
        return Damage(offset, size, torn=True)
    head = _read_head(file, offset)
    if head is None or head.magic in _COPIES:
        return None
    start = offset + head.size
    bodies = start + head.length
    if head.magic in _EARLIER:
        end = bodies + head.bodies
        data = _read_event(file, start, head) if end <= size else None
        return None if data is None else LogRecord(_EARLIER[head.magic], data, offset, bodies, end)
    copy = bodies + head.bodies
    end = copy + head.size + head.length
    if end > size:
        return Damage(offset, size, torn=True)
    data = _read_event(file, start, head)
    if data is not None:
        return LogRecord(head.magic, data, offset, bodies, end)
    data = _read_event(file, copy + head.size, head)
    return Damage(offset, end) if data is None else LogRecord(head.magic, data, offset, bodies, end, repaired=True)


def _find_record(file: int, offset: int, size: int) -> LogRecord | None:
    """The first record at or after this place that can be read: by its head, or by its copy."""
    for place in _find_magics(file, offset + 1, size):
        found = _read_record(file, place, size) or _read_copy(file, place, offset)
        if isinstance(found, LogRecord):
            return found
    return None


def _read_copy(file: int, place: int, lowest: int) -> LogRecord | None:
    """The record whose copy is here. It begins at `lowest` or later."""
    head = _read_head(file, place)
    if head is None or head.magic not in _COPIES:
        return None
    bodies = place - head.bodies
    start = bodies - head.length - head.size
    data = _read_event(file, place + head.size, head)
    if data is None or start < lowest:
        return None
    return LogRecord(_COPIES[head.magic], data, start, bodies, place + head.size + head.length, repaired=True)


def _find_magics(file: int, offset: int, size: int) -> Iterator[int]:
    """The places from here on that look like the beginning of a head."""
    while offset < size:
        chunk = os.pread(file, _CHUNK + 3, offset)
        yield from (offset + match.start() for match in _MAGIC.finditer(chunk))
        offset += _CHUNK


def _seems_torn(file: int, offset: int, size: int) -> bool:
    """Whether what remains is the beginning of a record of an earlier version, whose head has no checksum."""
    head = _read_head(file, offset)
    return head is not None and head.magic in _EARLIER and offset + head.size + head.length + head.bodies > size
