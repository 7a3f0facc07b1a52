"""Archives from a slot, which may be hostile, and folders of the host."""

import io
import os
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest

from ludus.sandbox.archive import (
    ArchiveEntry,
    ArchiveTooLarge,
    extract_entries,
    gather_entries,
    make_archive,
    read_entries,
)


def make_hostile(*members: tuple[str, bytes, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o6777
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content
                tar.addfile(info)
    return buffer.getvalue()


REG, SYM, LNK, DIR, FIFO, CHR = (
    tarfile.REGTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    b"5",
    tarfile.FIFOTYPE,
    tarfile.CHRTYPE,
)


@pytest.mark.parametrize(
    "archive",
    [
        make_hostile(("../out", REG, b"x")),
        make_hostile(("a/../../out", REG, b"x")),
        make_hostile(("/tmp/ludus-out", REG, b"x"), ("//out", REG, b"x")),
        make_hostile(("link", SYM, ".."), ("link/out", REG, b"x")),
        make_hostile(("link", SYM, "/"), ("link", DIR, ""), ("link/out", REG, b"x")),
        make_hostile(("d", DIR, ""), ("d/link", SYM, "../.."), ("d/link/out", REG, b"x")),
        make_hostile(("hard", LNK, "../secret"), ("hard", REG, b"x")),
        make_hostile(("hard", LNK, "/etc/passwd")),
        make_hostile(("pipe", FIFO, ""), ("device", CHR, "")),
        make_hostile(("here", SYM, "../secret"), ("here", REG, b"x")),
        make_hostile(("secret", SYM, "../secret"), ("copy", LNK, "secret")),
        make_hostile(("a", DIR, ""), ("a/b", DIR, ""), ("a/b/up", SYM, "../.."), ("out", SYM, "a/b/up/../secret")),
        make_hostile(
            ("a", DIR, ""), ("a/b", SYM, "."), ("a/c", SYM, "b/../../secret"), ("a/d", SYM, "./b/.././../secret")
        ),
    ],
)
def test_nothing_is_written_outside_the_folder(archive, tmp_path):
    (tmp_path / "secret").write_text("mine")
    target = tmp_path / "target"
    with suppress(OSError):
        extract_entries(read_entries(archive), target)
    assert sorted(p.name for p in tmp_path.iterdir()) in (["secret"], ["secret", "target"])
    assert (tmp_path / "secret").read_text() == "mine"
    for path in target.rglob("*"):
        assert path.is_dir() or path.is_file() or path.is_symlink()
        assert path.resolve().is_relative_to(tmp_path / "target")
        assert path.is_symlink() or not path.stat().st_mode & 0o6000
    assert not Path("/tmp/ludus-out").exists()


def test_links_that_stay_inside_survive_and_limits_count_what_hard_links_add(tmp_path):
    good = make_hostile(
        ("d", DIR, ""), ("d/f", REG, b"text"), ("d/l", SYM, "f"), ("d/up", SYM, "../d/f"), ("h", LNK, "d/f")
    )
    extract_entries(read_entries(good), tmp_path / "t")
    assert [(tmp_path / "t" / name).read_bytes() for name in ("d/f", "d/l", "d/up", "h")] == [b"text"] * 4
    many = make_hostile(("f", REG, bytes(1000)), *((f"h{i}", LNK, "f") for i in range(100)))
    with pytest.raises(ArchiveTooLarge):
        list(read_entries(many, max_bytes=50_000))
    with pytest.raises(ValueError, match="not a complete archive"):
        list(read_entries(b"no archive at all" * 100))


def test_no_link_leads_out_once_a_later_download_has_brought_another(tmp_path):
    (tmp_path / "secret").write_text("mine")
    target = tmp_path / "target"
    for archive in (
        make_hostile(("a", DIR, ""), ("a/b", DIR, ""), ("out", SYM, "a/b/up/../secret")),
        make_hostile(("a", DIR, ""), ("a/b", DIR, ""), ("a/b/up", SYM, "../..")),
    ):
        extract_entries(read_entries(archive), target)
    assert (target / "a/b/up").is_symlink()
    assert all(path.resolve().is_relative_to(target) for path in target.rglob("*"))


def patch_header(archive: bytes, field: slice, value: bytes, *, block: int = 0) -> bytes:
    """Replace the value of one field of a header, and the check sum with it."""
    header = bytearray(archive[block * 512 : block * 512 + 512])
    header[field] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return archive[: block * 512] + bytes(header) + archive[block * 512 + 512 :]


SIZE, TIME = slice(124, 136), slice(136, 148)


@pytest.mark.parametrize("size", [b"\xff" * 10 + b"\xfc\x00", b"\xff" * 11 + b"\x00", b"\x80" + b"\x7f" * 11])
@pytest.mark.parametrize("kind", [REG, b"x", b"L", b"S", b"7"])
def test_an_archive_with_false_sizes_is_refused_and_read_only_once(kind, size):
    """With a negative size, the reader of the standard library goes back and loops."""
    first = patch_header(make_hostile(("a", REG, b""), ("b", REG, b"x")), slice(156, 157), kind)
    lying = patch_header(first, SIZE, size)
    linked = make_hostile(("a", REG, b""), ("h", LNK, "a"))[:1024] + lying
    for archive in (lying, linked):
        with suppress(ValueError, ArchiveTooLarge):
            assert len(list(read_entries(archive))) <= 4


def test_times_that_no_clock_has_are_cut_off(tmp_path):
    whole = make_hostile(("a", REG, b"x"), ("b", REG, b"x"))
    for time_ in (b"\x80" + b"\x7f" * 11, b"\xff" + b"\x80" + b"\x00" * 10):
        extract_entries(read_entries(patch_header(whole, TIME, time_)), tmp_path / "t")
        assert (tmp_path / "t" / "a").read_bytes() == b"x"


def test_an_existing_link_on_the_host_is_not_written_through(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "d").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        extract_entries(read_entries(make_hostile(("d/f", REG, b"x"))), tmp_path / "target")
    (tmp_path / "target" / "f").symlink_to(tmp_path / "elsewhere" / "f")
    with pytest.raises(OSError):
        extract_entries(read_entries(make_hostile(("f", REG, b"x"))), tmp_path / "target")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_survives_the_way_through_an_archive(tmp_path):
    source = tmp_path / "source"
    (source / "folder").mkdir(parents=True)
    (source / "folder" / "program").write_bytes(b"#!/bin/sh")
    (source / "folder" / "program").chmod(0o755)
    (source / "link").symlink_to("folder/program")
    entries = list(gather_entries(source))
    assert [entry.path for entry in entries] == ["folder", "link", "folder/program"]
    copied = list(read_entries(make_archive(entries)))
    assert [(e.path, e.mode, e.data, e.link) for e in copied] == [
        (e.path, e.mode if e.link is None else copied[1].mode, e.data, e.link) for e in entries
    ]
    extract_entries(copied, tmp_path / "target")
    assert (tmp_path / "target" / "link").read_bytes() == b"#!/bin/sh"
    assert (tmp_path / "target" / "folder" / "program").stat().st_mode & 0o777 == 0o755


def test_a_file_of_the_host_gets_another_name_and_counts_towards_the_limit(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    (entry,) = gather_entries(tmp_path / "file", name="other")
    assert (entry.path, entry.data) == ("other", b"12345")
    with pytest.raises(ArchiveTooLarge, match="larger than the limit of 4 bytes"):
        list(gather_entries(tmp_path, max_bytes=4))


def test_a_layer_marks_what_is_removed_or_hidden(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        removed, opaque = tarfile.TarInfo("removed"), tarfile.TarInfo("opaque")
        removed.type, opaque.type = tarfile.CHRTYPE, tarfile.DIRTYPE
        opaque.pax_headers = {"SCHILY.xattr.user.overlay.opaque": "y"}
        tar.addfile(removed)
        tar.addfile(opaque)
    layer = list(read_entries(buffer.getvalue(), layer=True))
    assert [(e.path, e.removed, e.opaque, e.is_folder) for e in layer] == [
        ("removed", True, False, False),
        ("opaque", False, True, True),
    ]
    assert list(read_entries(buffer.getvalue())) == [ArchiveEntry("opaque", layer[1].mode)]
    if os.geteuid() == 0:
        extract_entries(layer, tmp_path / "layer")
        assert (tmp_path / "layer" / "removed").is_char_device()


def test_what_may_not_be_kept_is_named_on_request_and_never_written(tmp_path: Path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, target in (
            ("pipe", tarfile.FIFOTYPE, ""),
            ("disk", tarfile.BLKTYPE, ""),
            ("hard", tarfile.LNKTYPE, "/etc/passwd"),
            ("../up", tarfile.FIFOTYPE, ""),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)
    entries = list(read_entries(buffer.getvalue(), special=True))
    assert [(e.path, e.special.partition(" to ")[0]) for e in entries] == [
        ("pipe", "named pipe"),
        ("disk", "device"),
        ("hard", "hard link"),
    ]
    assert list(read_entries(buffer.getvalue())) == [] == list(read_entries(make_archive(entries)))
    extract_entries(entries, tmp_path / "folder")
    assert list((tmp_path / "folder").iterdir()) == []
