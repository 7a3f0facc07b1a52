"""Events and groups on disk: an append-only log in segments.

    DIR/segment-00000007.log     record, record, record, …
    record = head (magic, lengths, checksum) + event (msgpack) + the bodies of the event's groups

The first record of a segment is the whole state, so recovery reads the newest segment only, and older segments are
needed only for the bodies of groups that still wait. A segment without such groups is removed.

A record is complete or it does not count. After a kill, an incomplete one at the end is cut off: its post was never
answered. A segment appears under its name when its first record is complete. If the disk is full, the record is taken
back and the caller gets an error; a small reserve is released for events without bodies, so that batches can still be
given out, which makes room.

A write reaches the operating system before the post is answered: a killed process loses nothing. What the operating
system has not written yet is lost when the machine stops, unless it is flushed before the answer (`prepare_sync`).
"""

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import msgspec

from ludus.errors import StoreError
from ludus.rl.api.api_state import ApiState, Event, GroupsPosted, Place, StateRecord
from ludus.rl.api.batching import QueuedGroup

SEGMENT_BYTES = 256 * 1024 * 1024
RESERVE_BYTES = 1024 * 1024
MOST_PARTS = 512
"""How many parts are written by one system call; more are joined first."""

_HEAD = struct.Struct("<4sIII")
"""Magic, length of the event, length of the bodies, checksum of the event."""
_EVENT = b"LEV1"
_STATE = b"LST1"
_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(Event).decode
_decode_state = msgspec.msgpack.Decoder(StateRecord).decode

Tell = Callable[[str], None]


class DiskFull(StoreError):
    """The log cannot grow. Nothing was accepted."""


class DamagedGroup(StoreError):
    """The body of a group on disk is not what was written."""

    def __init__(self, group: QueuedGroup) -> None:
        super().__init__(f"segment {group.segment}, offset {group.offset}: the group is damaged")
        self.group = group


class GroupLog:
    """The log of one server. `open` recovers the state."""

    def __init__(self, folder: Path, lock: int, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._lock = lock
        self._segment_bytes = segment_bytes
        self._files: dict[int, int] = {}
        """The open file of each segment."""
        self._current = -1
        self._end = 0
        self._roll_at = 0

    @classmethod
    def open(
        cls, folder: Path, now: float, tell: Tell, *, segment_bytes: int = SEGMENT_BYTES
    ) -> "tuple[GroupLog, ApiState]":
        """Open the log of a directory, and recover the state.

        Raises:
            StoreError: another server uses the directory, it cannot be written, or it has no readable state.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise StoreError(f"{folder} is used by another server: stop it, or name another --data") from None
        log = cls(folder, lock, segment_bytes=segment_bytes)
        try:
            return log, log._recover(now, tell)
        except BaseException:
            log.close()
            raise

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()
        os.close(self._lock)

    # ---- writing --------------------------------------------------------------------------------------------------

    def append(self, event: Event, bodies: Sequence[bytes] = ()) -> Place:
        """Write an event and its bodies. Returns where the bodies are.

        Raises:
            DiskFull: nothing was written.
        """
        data = _encode(event)
        head = _HEAD.pack(_EVENT, len(data), sum(map(len, bodies)), crc32(data))
        place = Place(self._current, self._end + _HEAD.size + len(data))
        try:
            self._write([head, data, *bodies])
        except DiskFull:
            if bodies or not self._release_reserve():
                raise
            self._write([head, data])
        return place

    def _write(self, parts: list[bytes]) -> None:
        """Write to the end of the current segment: all, or nothing."""
        file = self._files[self._current]
        try:
            write_all(file, parts)
        except OSError as error:
            os.ftruncate(file, self._end)
            os.lseek(file, self._end, os.SEEK_SET)
            raise DiskFull(f"{self._folder}: {error.strerror or error}: the group was not accepted") from error
        self._end += sum(map(len, parts))

    @property
    def wants_segment(self) -> bool:
        return self._end >= self._roll_at

    def start_segment(self, state: StateRecord) -> None:
        """Start a segment with this state. If the disk is full, the current one is continued."""
        data = _encode(state)
        number = self._current + 1
        new = self._folder / f"segment-{number:08}.new"
        file = os.open(new, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
        parts = [_HEAD.pack(_STATE, len(data), 0, crc32(data)), data]
        try:
            write_all(file, parts)
        except OSError as error:
            os.close(file)
            new.unlink(missing_ok=True)
            if self._current < 0:
                raise StoreError(f"{self._folder}: {error.strerror or error}") from None
            self._roll_at = self._end + self._segment_bytes // 8
            return
        if self._current >= 0:
            os.fdatasync(self._files[self._current])
        os.fdatasync(file)
        new.rename(self._name(number))
        self._files[number] = file
        self._current, self._end = number, sum(map(len, parts))
        self._roll_at = max(self._segment_bytes, 2 * self._end)
        self._make_reserve()

    def prepare_sync(self) -> Callable[[], None]:
        """A function that flushes what was written so far to the disk. It may be called in a thread."""
        file = os.dup(self._files[self._current])  # the segment may be closed before the thread runs

        def sync() -> None:
            try:
                os.fdatasync(file)
            finally:
                os.close(file)

        return sync

    # ---- reading --------------------------------------------------------------------------------------------------

    def read(self, group: QueuedGroup) -> bytes:
        """The body of a group.

        Raises:
            DamagedGroup: it is not what was written.
        """
        body = os.pread(self._files[group.segment], group.length, group.offset) if group.segment in self._files else b""
        if len(body) != group.length or crc32(body) != group.crc:
            raise DamagedGroup(group)
        return body

    def remove_unused(self, used: set[int]) -> None:
        """Remove the segments that are not in use, except the current one."""
        for number in [number for number in self._files if number != self._current and number not in used]:
            os.close(self._files.pop(number))
            self._name(number).unlink(missing_ok=True)

    @property
    def current(self) -> int:
        """The number of the segment that is written."""
        return self._current

    @property
    def segments(self) -> int:
        return len(self._files)

    # ---- recovery -------------------------------------------------------------------------------------------------

    def _recover(self, now: float, tell: Tell) -> ApiState:
        for left in self._folder.glob("segment-*.new"):
            left.unlink()
        numbers = sorted(int(path.stem.partition("-")[2]) for path in self._folder.glob("segment-*.log"))
        for number in numbers:
            self._files[number] = os.open(self._name(number), os.O_RDWR)
        if not numbers:
            state = ApiState()
            self.start_segment(state.to_record())
            return state
        self._current = numbers[-1]
        self._roll_at = self._segment_bytes
        state = self._replay(now, tell)
        self._make_reserve()
        return state

    def _replay(self, now: float, tell: Tell) -> ApiState:
        file = self._files[self._current]
        size = os.fstat(file).st_size
        records = _read_records(file, size)
        head = next(records, None)
        if head is None or head[0] != _STATE:
            raise StoreError(f"{self._name(self._current)} is damaged: its first record is not readable")
        state = ApiState.from_record(_decode_state(head[1]), now)
        self._end = head[3]
        for magic, data, bodies, end in records:
            if magic != _EVENT:
                break
            event = _decode_event(data)
            if isinstance(event, GroupsPosted) and not self._has_bodies(event, bodies):
                break
            state.apply(event, Place(self._current, bodies), now)
            self._end = end
        if self._end < size:
            tell(f"{self._name(self._current)}: cut off an incomplete record of {size - self._end:,} bytes at the end")
            os.ftruncate(file, self._end)
        os.lseek(file, self._end, os.SEEK_SET)
        return state

    def _has_bodies(self, event: GroupsPosted, offset: int) -> bool:
        for group in event.groups:
            body = os.pread(self._files[self._current], group.length, offset)
            if len(body) != group.length or crc32(body) != group.crc:
                return False
            offset += group.length
        return True

    # ---- the reserve ----------------------------------------------------------------------------------------------

    def _make_reserve(self) -> None:
        path = self._folder / "reserve"
        if path.exists():
            return
        with suppress(OSError):
            file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                os.posix_fallocate(file, 0, RESERVE_BYTES)
            except OSError:
                path.unlink()
            finally:
                os.close(file)

    def _release_reserve(self) -> bool:
        path = self._folder / "reserve"
        if not path.exists():
            return False
        path.unlink()
        return True

    def _name(self, number: int) -> Path:
        return self._folder / f"segment-{number:08}.log"


def write_all(file: int, parts: Sequence[bytes]) -> None:
    """Write all parts.

    Raises:
        OSError: the disk is full or broken; a part may have been written.
    """
    if len(parts) > MOST_PARTS:
        parts = [b"".join(parts)]
    written = os.writev(file, parts)
    total = sum(map(len, parts))
    while written < total:
        rest = memoryview(b"".join(parts))[written:]
        more = os.write(file, rest)
        if more == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written += more


def _read_records(file: int, size: int) -> Iterator[tuple[bytes, bytes, int, int]]:
    """The complete records of a segment: magic, event, where the bodies begin, where the record ends."""
    offset = 0
    while offset + _HEAD.size <= size:
        magic, length, bodies, checksum = _HEAD.unpack(os.pread(file, _HEAD.size, offset))
        start = offset + _HEAD.size
        end = start + length + bodies
        if magic not in (_EVENT, _STATE) or end > size:
            return
        data = os.pread(file, length, start)
        if crc32(data) != checksum:
            return
        yield magic, data, start + length, end
        offset = end
