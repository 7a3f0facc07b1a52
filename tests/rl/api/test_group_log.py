"""The log: complete records only, room for batches on a full disk, one server per directory."""

import errno
import os
import resource
import struct
import subprocess
from pathlib import Path

import msgspec
import pytest
from tests.api_kit import ENV, TRAINER

from ludus.errors import StoreError
from ludus.rl.api import group_log
from ludus.rl.api.group_log import DamagedGroup, DiskFull, GroupLog, write_all
from ludus.rl.api.log_records import read_records
from ludus.rl.api.state import (
    ApiState,
    BatchDelivered,
    EnvRegistered,
    EnvRegistration,
    Event,
    GroupsPosted,
    PostedGroup,
    Registration,
    TrainerRegistered,
    TrainerStarted,
)


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
    file.write_bytes(file.read_bytes()[:-110] + bytes(110))
    told: list[str] = []
    log, state = open_log(tmp_path, told)
    assert read_all(log, state) == [b"whole"]
    assert "lost groups: 1" in told[0]
    log.close()


def test_a_changed_body_is_not_read_as_if_it_were_right(tmp_path):
    log, state = open_log(tmp_path)
    append(log, state, b"x" * 60)
    file = tmp_path / "segment-00000000.log"
    with file.open("r+b") as changed:
        changed.seek(file.read_bytes().index(b"x" * 60) + 50)
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


def test_a_segment_for_which_no_file_may_be_open_is_begun_later(tmp_path):
    log, state = open_log(tmp_path)
    append(log, state, b"x" * 20_000)
    assert log.wants_segment
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        log.start_segment(state.to_record())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert log.segments == 1
    append(log, state, b"y" * 20_000)
    log.start_segment(state.to_record())
    assert log.segments == 2 and read_all(log, state) == [b"x" * 20_000, b"y" * 20_000]
    log.close()


def test_the_name_of_a_segment_is_on_disk_before_older_ones_are_removed(tmp_path, monkeypatch):
    flushed: list[set[str]] = []
    monkeypatch.setattr(
        group_log, "flush_names", lambda folder: flushed.append({each.name for each in folder.glob("segment-*")})
    )
    log, state = open_log(tmp_path)
    log.start_segment(state.to_record())
    log.remove_unused(set())
    assert flushed == [{"segment-00000000.log"}, {"segment-00000000.log", "segment-00000001.log"}]
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


# ---- damage -------------------------------------------------------------------------------------------------------


def write_history(folder: Path) -> tuple[bytes, ApiState]:
    """A log with every kind of number in it. Returns its bytes and the state."""
    log, state = open_log(folder, segment_bytes=1 << 20)

    def record(event: Event, *bodies: bytes) -> None:
        state.apply(event, log.append(event, bodies))

    record(TrainerRegistered(Registration(**TRAINER)))
    record(TrainerStarted())
    for env_id in range(2):
        record(EnvRegistered(EnvRegistration(**ENV), env_id))
    for number in range(6):
        bodies = [b"%d" % number * 40, b"%d" % (number + 100) * 20]
        groups = [PostedGroup(2, number % 2, 0, len(body), group_log.crc32(body)) for body in bodies]
        record(GroupsPosted(groups, f"key-{number}", state.next_id), *bodies)
        if number % 2:
            record(BatchDelivered([2 * number - 2, 2 * number], "me" if number == 3 else "", state.next_batch))
    log.close()
    return (folder / "segment-00000000.log").read_bytes(), state


def recover(folder: Path, data: bytes) -> tuple[ApiState, list[str], list[bytes]]:
    """The state of a log with these bytes, what was told, and the bodies that can be read."""
    folder.mkdir()
    (folder / "segment-00000000.log").write_bytes(data)
    told: list[str] = []
    log, state = open_log(folder, told, segment_bytes=1 << 20)
    bodies = read_all(log, state)
    log.close()
    again: list[str] = []
    log, same = open_log(folder, again, segment_bytes=1 << 20)
    log.close()
    assert (again, same.losses) == ([], state.losses), "it is told once, and counted for good"
    return state, told, bodies


def summarize(state: ApiState) -> tuple[object, ...]:
    envs = [(env.name, env.connected) for env in state.envs]
    return state.step, state.next_id, state.next_batch, state.delivered, list(state.keys), envs, list(state.leases)


def test_a_flipped_bit_costs_at_most_the_group_that_it_is_in(tmp_path):
    data, before = write_history(tmp_path / "first")
    waiting = {group.id for group in before.backlog}
    told_of = {"lost groups: 1": 0, "lost groups: 0": 0}
    for place in range(0, len(data), 17):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        state, told, bodies = recover(tmp_path / str(place), bytes(changed))
        left = {group.id for group in state.backlog}
        assert summarize(state) == summarize(before) and len(bodies) == len(left)
        assert left <= waiting and len(waiting - left) == state.losses.groups <= 1
        assert (state.losses.records, state.losses.batches) == (0, 0)
        for words in told:
            told_of[words[words.index("lost groups") :][:14]] += 1
    assert all(count > 5 for count in told_of.values()), told_of


@pytest.mark.parametrize("number", range(4, 11))  # of the last post and the last batch nothing tells the number
def test_a_record_that_is_lost_with_its_copy_leaves_the_others_as_they_were(tmp_path, number):
    data, before = write_history(tmp_path / "first")
    (tmp_path / "file").write_bytes(data)
    with (tmp_path / "file").open("rb") as file:
        records = list(read_records(file.fileno(), len(data)))
    lost = records[number + 1]
    data = data[: lost.start] + bytes(lost.end - lost.start) + data[lost.end :]
    state, told, bodies = recover(tmp_path / "second", data)
    assert state.losses.records == 1 and "1 are lost" in told[0]
    event = msgspec.msgpack.decode(lost.data)
    posted = event["type"] == "posted"
    assert (state.losses.groups, state.losses.batches) == ((2, 0) if posted else (0, 1)), "gaps in the numbers"
    assert (state.step, state.next_id, state.next_batch) == (before.step, before.next_id, before.next_batch)
    assert [env.name for env in state.envs] == [env.name for env in before.envs]
    assert len(bodies) == len(state.backlog)


def test_an_environment_whose_registration_is_lost_keeps_the_ids_of_the_others(tmp_path):
    state = ApiState()
    state.apply(EnvRegistered(EnvRegistration(**ENV), 2))
    assert [(env.name, env.connected) for env in state.envs] == [("lost", False), ("lost", False), ("e_0", True)]
    state.apply(EnvRegistered(EnvRegistration(**ENV), 0))  # a reset is lost
    assert [env.name for env in state.envs] == ["e_0"]


def write_earlier_log(folder: Path, bodies: list[bytes]) -> bytes:
    """A log as versions without copies wrote it."""
    encode = msgspec.msgpack.encode
    data = encode(ApiState().to_record())
    parts = [struct.pack("<4sIII", b"LST1", len(data), 0, group_log.crc32(data)), data]
    for body in bodies:
        data = encode(GroupsPosted([PostedGroup(2, None, 0, len(body), group_log.crc32(body))]))
        parts += [struct.pack("<4sIII", b"LEV1", len(data), len(body), group_log.crc32(data)), data, body]
    folder.mkdir()
    (folder / "segment-00000000.log").write_bytes(b"".join(parts))
    return b"".join(parts)


def test_a_log_of_an_earlier_version_is_read_and_continued(tmp_path):
    bodies = [b"%d" % number * 50 for number in range(5)]
    data = write_earlier_log(tmp_path / "log", bodies)
    log, state = open_log(tmp_path / "log")
    assert read_all(log, state) == bodies
    append(log, state, b"new")
    log.close()
    log, state = open_log(tmp_path / "log")
    assert read_all(log, state) == [*bodies, b"new"]
    log.close()
    third = data.index(b"2" * 50) - 30  # in its event
    changed = data[:third] + bytes([data[third] ^ 4]) + data[third + 1 :]
    state, told, found = recover(tmp_path / "damaged", changed)
    assert found == [*bodies[:2], *bodies[3:]] and state.losses.records == 1 and "1 are lost" in told[0]
    state, told, found = recover(tmp_path / "torn", data[:-10])
    assert found == bodies[:4] and state.losses.records == 0 and "incomplete record" in told[0]


def test_a_body_that_looks_like_a_record_is_none(tmp_path):
    log, state = open_log(tmp_path)
    append(log, state, b"LEV2" * 30, b"LEC2LEV1" * 20)
    append(log, state, b"next")
    log.close()
    file = tmp_path / "segment-00000000.log"
    data = bytearray(file.read_bytes())
    data[data.index(b"LEV2")] ^= 1  # the head of the record: all that follows is searched
    file.write_bytes(bytes(data))
    log, state = open_log(tmp_path)
    assert read_all(log, state) == [b"LEV2" * 30, b"LEC2LEV1" * 20, b"next"]
    log.close()
