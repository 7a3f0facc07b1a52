"""Files that are replaced as a whole."""

from pathlib import Path

import pytest

from ludus.whole_files import write_whole


def test_a_file_is_replaced_as_a_whole_or_stays(tmp_path: Path):
    path = tmp_path / "facts"
    write_whole(path, [b"one, ", b"two"], 0o600)
    assert path.read_bytes() == b"one, two" and path.stat().st_mode & 0o777 == 0o600

    def fail():
        yield b"three"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_whole(path, fail())
    assert path.read_bytes() == b"one, two" and list(tmp_path.iterdir()) == [path]


def test_links_are_replaced_and_not_followed(tmp_path: Path):
    (tmp_path / "mine").write_text("mine")
    for name in ("facts", ".facts.tmp"):
        (tmp_path / name).symlink_to(tmp_path / "mine")
    write_whole(tmp_path / "facts", [b"one"])
    assert (tmp_path / "facts").read_text() == "one" and (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "facts").is_symlink()
