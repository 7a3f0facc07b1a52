"""Records as bytes: read as they were written, from the copy, and past what cannot be read."""

import os
from pathlib import Path

import pytest

from ludus.rl.api.log_records import EVENT, STATE, Damage, LogRecord, build_record, measure_head, read_records

FIRST, SECOND, THIRD = (
    b"".join(build_record(*parts)) for parts in ((STATE, b"state"), (EVENT, b"event", [b"{}"]), (EVENT, b"last"))
)


def read(folder: Path, data: bytes) -> list[LogRecord | Damage]:
    (folder / "file").write_bytes(data)
    file = os.open(folder / "file", os.O_RDONLY)
    try:
        return list(read_records(file, len(data)))
    finally:
        os.close(file)


def test_records_are_read_in_order_with_the_place_of_their_bodies(tmp_path):
    first, second, third = read(tmp_path, FIRST + SECOND + THIRD)
    assert isinstance(second, LogRecord) and (first.end, second.end) == (second.start, third.start)
    assert (second.kind, second.data, second.repaired) == (EVENT, b"event", False)
    assert second.bodies == len(FIRST) + measure_head(b"event") == (FIRST + SECOND).index(b"{}")


@pytest.mark.parametrize("place", range(measure_head(b"event")))
def test_a_damaged_head_or_event_is_read_from_the_copy(tmp_path, place):
    changed = bytearray(SECOND)
    changed[place] ^= 0x40
    data = FIRST + bytes(changed) + THIRD
    whole, second, third = read(tmp_path, data)
    assert isinstance(second, LogRecord) and second.repaired and second.data == b"event"
    assert (second.start, data[second.bodies : second.bodies + 2], second.end) == (whole.end, b"{}", third.start)


def test_what_is_damaged_with_its_copy_lies_between_others(tmp_path):
    assert read(tmp_path, FIRST + b"?" * 99 + THIRD)[1] == Damage(len(FIRST), len(FIRST) + 99)
    assert read(tmp_path, FIRST + b"?" * 99)[1] == Damage(len(FIRST), len(FIRST) + 99)
    halves = bytearray(SECOND)
    halves[measure_head(b"event") - 1] ^= 1
    halves[-1] ^= 1
    assert read(tmp_path, FIRST + bytes(halves) + THIRD)[1] == Damage(len(FIRST), len(FIRST + SECOND))


@pytest.mark.parametrize("left", range(1, len(SECOND)))
def test_a_record_that_ends_beyond_the_file_is_torn(tmp_path, left):
    assert read(tmp_path, FIRST + SECOND[:left])[1:] == [Damage(len(FIRST), len(FIRST) + left, torn=True)]
