"""The log: complete records only, room for batches on a full disk, one server per directory."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from ludus.errors import StoreError
from ludus.rl.api import group_log
from ludus.rl.api.api_state import ApiState, GroupsPosted, PostedGroup, TrainerStarted
from ludus.rl.api.group_log import DamagedGroup, DiskFull, GroupLog, write_all


def open_log(folder: Path, told: list[str] | None = None, segment_bytes: int = 10_000) -> tuple[GroupLog, ApiState]:
    return GroupLog.open(folder, 0.0, (told if told is not None else []).append, segment_bytes=segment_bytes)


def append(log: GroupLog, state: ApiState, *bodies: bytes) -> None:
    groups = [PostedGroup(2, None, 0, len(body), group_log.crc32(body)) for body in bodies]
    event = GroupsPosted(groups)
    state.apply(event, log.append(event, bodies))


def read_all(log: GroupLog, state: ApiState) -> list[bytes]:
    return [log.read(group) for group in state.backlog]


def test_what_was_appended_is_there_after_opening_again(tmp_path):
    log, state = open_log(tmp_path)
    append(log, state, b"one", b"two")
    append(log, state, b"three")
    log.append(TrainerStarted())
    log.close()
    log, state = open_log(tmp_path)
    assert read_all(log, state) == [b"one", b"two", b"three"]
    assert state.started
    append(log, state, b"four")
    log.close()
    log, state = open_log(tmp_path)
    assert read_all(log, state)[-1] == b"four"
    log.close()


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_record_is_cut_off_and_told(tmp_path, cut):
    log, state = open_log(tmp_path)
    append(log, state, b"whole")
    append(log, state, b"x" * 60)
    log.close()
    file = tmp_path / "segment-00000000.log"
    os.truncate(file, file.stat().st_size - cut)
    told: list[str] = []
    log, state = open_log(tmp_path, told)
    assert read_all(log, state) == [b"whole"]
    assert "incomplete record" in told[0]
    append(log, state, b"next")
    log.close()
    log, state = open_log(tmp_path, told)
    assert read_all(log, state) == [b"whole", b"next"]
    assert len(told) == 1
    log.close()


def test_bytes_that_the_disk_changed_at_the_end_do_not_count(tmp_path):
    """A power failure can leave the right length and wrong bytes."""
    log, state = open_log(tmp_path)
    append(log, state, b"whole")
    append(log, state, b"x" * 60)
    log.close()
    file = tmp_path / "segment-00000000.log"
    file.write_bytes(file.read_bytes()[:-30] + bytes(30))
    log, state = open_log(tmp_path)
    assert read_all(log, state) == [b"whole"]
    log.close()


def test_a_changed_body_is_not_read_as_if_it_were_right(tmp_path):
    log, state = open_log(tmp_path)
    append(log, state, b"x" * 60)
    file = tmp_path / "segment-00000000.log"
    with file.open("r+b") as changed:
        changed.seek(-10, os.SEEK_END)
        changed.write(b"y")
    with pytest.raises(DamagedGroup):
        read_all(log, state)
    log.close()


def test_a_segment_without_groups_in_use_is_removed(tmp_path):
    log, state = open_log(tmp_path)
    append(log, state, b"x" * 20_000)
    assert log.wants_segment
    log.start_segment(state.to_record())
    append(log, state, b"later")
    log.remove_unused({0})
    assert log.segments == 2
    log.close()
    log, state = open_log(tmp_path)
    assert read_all(log, state) == [b"x" * 20_000, b"later"]
    log.remove_unused(set())
    assert [path.name for path in tmp_path.glob("segment-*")] == ["segment-00000001.log"]
    log.close()


def test_a_segment_that_was_not_finished_is_ignored(tmp_path):
    log, state = open_log(tmp_path)
    append(log, state, b"one")
    log.close()
    (tmp_path / "segment-00000001.new").write_bytes(b"LST1 half")
    log, state = open_log(tmp_path)
    assert read_all(log, state) == [b"one"]
    assert not list(tmp_path.glob("*.new"))
    log.close()


def test_a_damaged_head_is_an_error_that_names_the_file(tmp_path):
    log, _ = open_log(tmp_path)
    log.close()
    (tmp_path / "segment-00000000.log").write_bytes(b"other")
    with pytest.raises(StoreError, match=r"segment-00000000\.log is damaged"):
        open_log(tmp_path)


def test_two_servers_cannot_use_one_directory(tmp_path):
    log, _ = open_log(tmp_path)
    with pytest.raises(StoreError, match="another server"):
        open_log(tmp_path)
    log.close()


def test_a_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        open_log(tmp_path / "file")


def test_a_flush_works_after_its_segment_was_closed(tmp_path):
    log, state = open_log(tmp_path)
    flush = log.prepare_sync()
    log.start_segment(state.to_record())
    log.remove_unused(set())
    flush()
    log.close()


# ---- a full disk --------------------------------------------------------------------------------------------------


def fill_after(monkeypatch: pytest.MonkeyPatch, free: int) -> list[int]:
    """From now on the disk takes only so many bytes, and so do single writes: the last one is short."""
    left = [free]

    def writev(file: int, parts: list[bytes]) -> int:
        data = b"".join(parts)[: left[0]]
        if not data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= len(data)
        return os.write(file, data)

    def write(file: int, data: bytes) -> int:
        return writev(file, [bytes(data)])

    real = group_log.os
    monkeypatch.setattr(group_log, "os", type("Os", (), {**vars(real), "writev": writev, "write": write}))
    return left


def test_a_record_that_does_not_fit_leaves_no_trace(tmp_path, monkeypatch):
    log, state = open_log(tmp_path)
    append(log, state, b"one")
    size = (tmp_path / "segment-00000000.log").stat().st_size
    with monkeypatch.context() as context:
        fill_after(context, 30)
        with pytest.raises(DiskFull, match="No space left"):
            append(log, state, b"x" * 100)
    assert (tmp_path / "segment-00000000.log").stat().st_size == size
    append(log, state, b"two")
    log.close()
    log, state = open_log(tmp_path)
    assert read_all(log, state) == [b"one", b"two"]
    log.close()


def test_the_reserve_lets_batches_be_recorded_on_a_full_disk(tmp_path, monkeypatch):
    log, _ = open_log(tmp_path)
    with monkeypatch.context() as context:
        left = fill_after(context, 0)
        real = log._release_reserve  # pyright: ignore[reportPrivateUsage]

        def release() -> bool:
            released = real()
            left[0] += group_log.RESERVE_BYTES if released else 0
            return released

        context.setattr(log, "_release_reserve", release)
        log.append(TrainerStarted())
        left[0] = 0
        with pytest.raises(DiskFull):
            log.append(TrainerStarted())
    log.close()
    log, state = open_log(tmp_path)
    assert state.started
    log.close()


def test_a_full_disk_does_not_stop_the_current_segment(tmp_path, monkeypatch):
    log, state = open_log(tmp_path)
    append(log, state, b"x" * 20_000)
    with monkeypatch.context() as context:
        fill_after(context, 0)
        log.start_segment(state.to_record())
    assert log.segments == 1
    append(log, state, b"one")
    assert not list(tmp_path.glob("*.new"))
    log.close()


def test_a_real_full_disk(tmp_path):
    """A file system of 3 MB, where this process may mount one."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", tmp_path], capture_output=True).returncode:
        pytest.skip("this needs the right to mount")
    try:
        log, state = open_log(tmp_path, segment_bytes=1 << 30)
        accepted = 0
        with pytest.raises(DiskFull):
            while True:
                append(log, state, b"x" * 100_000)
                accepted += 1
        assert accepted >= 15
        with pytest.raises(DiskFull):
            append(log, state, b"x" * 100_000)
        for _ in range(100):
            log.append(TrainerStarted())
        log.close()
        log, state = open_log(tmp_path)
        assert len(read_all(log, state)) == accepted
        assert state.started
        log.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_many_parts_are_written_whole(tmp_path):
    file = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    write_all(file, [b"ab"] * 3000)
    os.close(file)
    assert (tmp_path / "file").read_bytes() == b"ab" * 3000
