"""What a night keeps: private files, a lock, and names."""

from pathlib import Path

import pytest
from tests.sleep_kit import kill_at

from ludus.errors import ConfigError, StoreError
from ludus.sleep.night import (
    NIGHT,
    Night,
    SleepState,
    find_night,
    find_staged,
    list_nights,
    lock_nights,
    read_struct,
    write_private,
    write_struct,
)


def test_files_are_the_user_s_alone_and_whole_after_a_kill(tmp_path: Path):
    path = tmp_path / "nights" / "state.json"
    write_private(path, b"old")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    step = 1
    while kill_at(step, lambda: write_private(path, b"new")):
        assert path.read_bytes() in (b"old", b"new")
        write_private(path, b"old")
        step += 1
    assert path.read_bytes() == b"new" and step > 2


def test_a_link_in_the_way_is_not_written_through(tmp_path: Path):
    (tmp_path / "secret").write_text("keep")
    (tmp_path / ".state.json.new").symlink_to(tmp_path / "secret")
    write_private(tmp_path / "state.json", b"new")
    assert (tmp_path / "secret").read_text() == "keep"


def test_one_process_at_a_time(tmp_path: Path):
    with lock_nights(tmp_path) as first, lock_nights(tmp_path) as second:
        assert (first, second) == (True, False)
    with lock_nights(tmp_path) as again:
        assert again


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path):
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(StoreError, match=r"state\.json cannot be read"):
        read_struct(tmp_path / "state.json", SleepState)
    assert read_struct(tmp_path / "none.json", SleepState) is None


def write_night(folder: Path, name: str, status) -> None:
    write_struct(folder / name / NIGHT, Night(name=name, begun=0.0, status=status))


def test_nights_are_found_by_name_path_and_order(tmp_path: Path):
    for name in ("2026-11-18", "2026-11-18-2", "2026-11-18-10", "2026-11-17"):
        write_night(tmp_path, name, "staged")
    write_night(tmp_path, "2026-11-19", "nothing")
    assert [path.name for path, _ in list_nights(tmp_path)][1:4] == ["2026-11-18", "2026-11-18-2", "2026-11-18-10"]
    assert find_night(tmp_path, "latest").name == "2026-11-18-10"
    assert find_night(Path("elsewhere"), str(tmp_path / "2026-11-17")).name == "2026-11-17"
    with pytest.raises(ConfigError, match="there is no night 2025"):
        find_night(tmp_path, "2025")
    with pytest.raises(ConfigError, match="nothing to adopt"):
        find_staged(tmp_path / "2026-11-17")
