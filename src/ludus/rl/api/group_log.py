"""Events and groups on disk: an append-only log in segments.

    DIR/segment-00000007.log     record, record, record, …
    record = event (msgpack) + the bodies of the event's groups, with checksums and a copy of the event (`log_records`)

The first record of a segment is the whole state, so recovery reads the newest segment only, and older segments are
needed only for the bodies of groups that still wait. A segment without such groups is removed.

A record is complete or it does not count. After a kill, an incomplete one at the end is cut off: its post was never
answered. What the disk has changed is told and counted (`state.Losses`): a damaged event is read from its copy, a
damaged body costs its group, and if both copies of an event are damaged, that record is left out and the next ones
count. After damage a new segment is begun, so that it is told once.

A segment appears under its name when its first record is complete, and the name is on the disk before older segments
are removed or posts in it are answered. If the disk is full, the record is taken back and the caller gets an error; a
small reserve is released for events without bodies, so that batches can still be given out, which makes room.

A write reaches the operating system before the post is answered: a killed process loses nothing. What the operating
system has not written yet is lost when the machine stops, unless it is flushed before the answer (`prepare_sync`).
"""

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import msgspec

from ludus.errors import StoreError
from ludus.rl.api.batching import QueuedGroup
from ludus.rl.api.log_records import EVENT, STATE, Damage, LogRecord, build_record, measure_head, read_records
from ludus.rl.api.state import DAMAGED, ApiState, Event, GroupsDropped, GroupsPosted, Losses, Place, StateRecord
from ludus.whole_files import flush_names

SEGMENT_BYTES = 256 * 1024 * 1024
RESERVE_BYTES = 1024 * 1024
MOST_PARTS = 512
"""How many parts are written by one system call; more are joined first."""

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
        parts = build_record(EVENT, data, bodies)
        place = Place(self._current, self._end + measure_head(data))
        try:
            self._write(parts)
        except DiskFull:
            if bodies or not self._release_reserve():
                raise
            self._write(parts)
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
        """Start a segment with this state. If the disk is full, or no more files may be open, the current one is
        continued: what was recorded in it stays answered."""
        number = self._current + 1
        new = self._folder / f"segment-{number:08}.new"
        parts = build_record(STATE, _encode(state))
        try:
            file = _create_file(new, parts)
        except OSError as error:
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
        flush_names(self._folder)
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
        file, name = self._files[self._current], self._name(self._current)
        size = os.fstat(file).st_size
        state: ApiState | None = None
        found = Losses()
        changed: set[int] = set()
        """Groups whose bodies are damaged."""
        self._end = size
        for each in read_records(file, size):
            if isinstance(each, Damage):
                self._note_damage(each, found)
            elif each.kind == STATE:
                state = ApiState.from_record(_decode_state(each.data), now)
                found.repaired += each.repaired
            elif state is not None:
                changed |= self._apply(each, state, now)
                found.repaired += each.repaired
        if state is None:
            raise StoreError(f"{name} is damaged: its first record is not readable")
        if self._end < size:
            tell(f"{name}: cut off an incomplete record of {size - self._end:,} bytes at the end")
            os.ftruncate(file, self._end)
        os.lseek(file, self._end, os.SEEK_SET)
        self._settle_damage(state, found, changed, tell)
        return state

    def _note_damage(self, damage: Damage, found: Losses) -> None:
        if damage.torn:
            self._end = damage.start
        else:
            found.records += 1

    def _apply(self, record: LogRecord, state: ApiState, now: float) -> set[int]:
        """Apply an event. Returns the ids of its groups whose bodies are damaged."""
        event = _decode_event(record.data)
        state.apply(event, Place(self._current, record.bodies), now)
        if not isinstance(event, GroupsPosted):
            return set()
        first, offset, changed = state.next_id - len(event.groups), record.bodies, set[int]()
        for number, group in enumerate(event.groups):
            body = os.pread(self._files[self._current], group.length, offset)
            if len(body) != group.length or crc32(body) != group.crc:
                changed.add(first + number)
            offset += group.length
        return changed

    def _settle_damage(self, state: ApiState, found: Losses, changed: set[int], tell: Tell) -> None:
        """Count and tell what was found, and begin a new segment, so that it is not found again."""
        waiting = [id for id in sorted(changed) if id in state.backlog]
        state.apply(GroupsDropped(waiting, DAMAGED))
        state.losses.records += found.records
        state.losses.repaired += found.repaired
        if not (found.records or found.repaired or waiting):
            return
        tell(f"{self._name(self._current)}: the disk has changed what was written. {state.losses.describe()}")
        self.start_segment(state.to_record())

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


def _create_file(path: Path, parts: Sequence[bytes]) -> int:
    """A new file with this content, open to be continued.

    Raises:
        OSError: a part may have been written.
    """
    file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
    try:
        write_all(file, parts)
    except OSError:
        os.close(file)
        raise
    return file


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
