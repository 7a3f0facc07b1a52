"""Copies folders into and out of slots, as tar archives that need not be trusted.

An archive from a slot was made where an agent has worked, so it is read as hostile. `read_entries` keeps plain files,
folders and symbolic links, and drops everything else (devices, pipes, names that leave the root). On request it returns
what it drops as `special` entries, so that it can be reported. A hard link becomes a file of its own. Archives are
never compressed, so the content is never larger than the archive, except through hard links; each of those counts
towards the limit. `extract_entries` never writes through a symbolic link: links are made last, and only those that stay
inside the folder, whatever else is in it now or later.

Modes are kept, but without set-user-id and similar bits. Owners are not kept.
"""

import errno
import io
import os
import posixpath
import stat
import tarfile
from collections.abc import Iterable, Iterator
from itertools import dropwhile
from math import isfinite
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from ludus.sandbox import TRANSFER_BYTES

_LATEST = 2.0**40
"""Times are clamped to this value: the calls that set a time fail for later ones."""
_OPAQUE = "SCHILY.xattr.user.overlay.opaque"
_SPECIAL = {tarfile.FIFOTYPE: "named pipe", tarfile.CHRTYPE: "device", tarfile.BLKTYPE: "device"}


class ArchiveTooLarge(OSError):
    """A file or folder exceeds the size limit of its transfer."""

    def __init__(self, path: str, max_bytes: int) -> None:
        super().__init__(errno.EFBIG, f"larger than the limit of {max_bytes} bytes", path)


class ArchiveEntry(Struct, frozen=True, gc=False):  # no cycles, and a collection would halt every thread for many
    """One file, folder or link, by its path below the root: `a/b`, never `./a`, `/a` or `../a`."""

    path: str
    mode: int
    mtime: float = 0.0
    data: bytes | None = None
    """A file's content; None for folders and links."""
    link: str | None = None
    """Where a symbolic link points."""
    removed: bool = False
    """In a layer: the path was removed, whatever the layers below have."""
    opaque: bool = False
    """In a layer: this folder hides the content that it has in the layers below."""
    special: str = ""
    """What it is, if it is neither file, folder nor symbolic link: `named pipe`. Such an entry is never written."""

    @property
    def is_folder(self) -> bool:
        return self.data is None and self.link is None and not self.removed and not self.special


def read_entries(
    archive: bytes, *, max_bytes: int = TRANSFER_BYTES, layer: bool = False, special: bool = False
) -> Iterator[ArchiveEntry]:
    """Read the entries of an archive that may be kept. With `layer`, also those that mark removed and opaque paths.
    With `special`, also those that may not be kept but have a path below the root.

    Raises ArchiveTooLarge, and ValueError if `archive` is not an archive.
    """
    left, end = max_bytes, -1
    files: dict[str, _Content] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for member in tar:
                cast(Any, tar).members.clear()  # else they are kept to the end
                if member.size < 0 or member.offset <= end:  # a negative size makes the reader loop
                    raise ValueError("not a complete archive: it refers back to itself")
                end = member.offset
                path = _normalize_name(member.name)
                if layer and path and member.ischr() and member.devmajor == member.devminor == 0:
                    yield ArchiveEntry(path, 0, removed=True)
                    continue
                if path is None:
                    continue
                if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
                    if special:
                        yield ArchiveEntry(path, 0, special=_SPECIAL.get(member.type, "special file"))
                    continue
                mode, mtime = member.mode & 0o777, _clamp_time(member.mtime)
                if member.isdir():
                    opaque = layer and _OPAQUE in member.pax_headers
                    yield ArchiveEntry(path, mode | 0o700, mtime, opaque=opaque)
                elif member.issym():
                    yield ArchiveEntry(path, mode, mtime, link=member.linkname)
                elif member.islnk():
                    # Looked up here, among the files before it: `tar` would read the archive to its end.
                    if linked := files.get(_normalize_name(member.linkname) or ""):
                        left = _spend(left, linked[1], path, max_bytes)
                        yield ArchiveEntry(path, mode, mtime, _read_content(archive, tar, linked))
                    elif special:
                        yield ArchiveEntry(path, 0, special="hard link to something that is not a file of the folder")
                else:
                    content = files[path] = (member.offset_data, member.size, member if member.issparse() else None)
                    left = _spend(left, member.size, path, max_bytes)
                    yield ArchiveEntry(path, mode, mtime, _read_content(archive, tar, content))
    except (tarfile.TarError, OverflowError) as error:
        raise ValueError(f"not a complete archive: {error}") from error


_Content = tuple[int, int, tarfile.TarInfo | None]
"""Where a file's content is in its archive, how long it is, and the member if it has holes."""


def _spend(left: int, size: int, path: str, max_bytes: int) -> int:
    if size > left:
        raise ArchiveTooLarge(path, max_bytes)
    return left - size


def _read_content(archive: bytes, tar: tarfile.TarFile, content: _Content) -> bytes:
    offset, size, sparse_member = content
    if sparse_member is not None:
        file = tar.extractfile(sparse_member)
        return file.read() if file is not None else b""
    data = archive[offset : offset + size]
    if len(data) < size:
        raise tarfile.ReadError("unexpected end of data")
    return data


def _clamp_time(seconds: float) -> float:
    """Limit a time to what can be set on a file: an archive may hold any value."""
    return min(_LATEST, max(-_LATEST, seconds)) if isfinite(seconds) else 0.0


def _normalize_name(name: str) -> str | None:
    """Return a member's path below the root; None for the root itself and for paths outside it."""
    path = posixpath.normpath(name)
    outside = path.startswith(("/", "../")) or path in (".", "..")
    return None if outside or ".." in name.split("/") or "\0" in name else path


def make_archive(items: Iterable[ArchiveEntry]) -> bytes:
    """Make an archive of entries. It should contain every folder, since others get a default mode when unpacked."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:", format=tarfile.GNU_FORMAT) as tar:
        for item in items:
            if item.special:
                continue
            info = tarfile.TarInfo(item.path)
            info.mode, info.mtime = item.mode, item.mtime
            if item.data is not None:
                info.size = len(item.data)
                tar.addfile(info, io.BytesIO(item.data))
                continue
            info.type = tarfile.DIRTYPE if item.link is None else tarfile.SYMTYPE
            info.linkname = item.link or ""
            tar.addfile(info)
    return buffer.getvalue()


# ---- the host's own files -----------------------------------------------------------------------------------------


def gather_entries(source: Path, *, name: str | None = None, max_bytes: int = TRANSFER_BYTES) -> Iterator[ArchiveEntry]:
    """Read a file of the host as an entry called `name`, or the content of a folder. Links are kept, never followed."""
    left = max_bytes
    for path, under in [(source, name or source.name)] if not source.is_dir() else _walk_folder(source):
        status = path.lstat()
        mode = status.st_mode & 0o777
        if path.is_symlink():
            yield ArchiveEntry(under, mode, status.st_mtime, link=os.readlink(path))  # noqa: PTH115 - bytes survive as they are
        elif path.is_dir():
            yield ArchiveEntry(under, mode | 0o700, status.st_mtime)
        elif path.is_file():
            left -= status.st_size
            if left < 0:
                raise ArchiveTooLarge(str(path), max_bytes)
            yield ArchiveEntry(under, mode, status.st_mtime, path.read_bytes())


def _walk_folder(folder: Path) -> Iterator[tuple[Path, str]]:
    for root, folders, files in os.walk(folder):
        folders.sort()
        here = Path(root)
        for name in sorted([*folders, *files]):
            yield here / name, (here / name).relative_to(folder).as_posix()


def extract_entries(items: Iterable[ArchiveEntry], folder: Path, *, all_links: bool = False) -> None:
    """Write entries below `folder`, which is made. Raises OSError, also if an existing file is in the way.

    `all_links` also makes links that point out of the folder. Use it only for folders that nobody but slots reads.
    """
    folder.mkdir(parents=True, exist_ok=True)
    links: list[tuple[Path, str]] = []
    folders: list[tuple[Path, ArchiveEntry]] = []
    for item in items:
        path = folder / item.path
        if item.special:
            continue
        if item.link is not None:
            if all_links or _is_link_inside(item.path, item.link):
                links.append((path, item.link))
            continue
        _make_folders(folder, item.path if item.is_folder else posixpath.dirname(item.path))
        if item.opaque:
            os.setxattr(path, "user.overlay.opaque", b"y")
        if item.removed:
            os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))
        if item.data is not None:
            _write_file(path, item)
        elif item.is_folder:
            folders.append((path, item))
    for path, target in links:
        _make_folders(folder, posixpath.dirname(path.relative_to(folder).as_posix()))
        if path.is_symlink():
            path.unlink()
        path.symlink_to(target)
    for path, item in reversed(folders):  # last: writing the content of a folder changes its time
        path.chmod(item.mode)
        os.utime(path, (item.mtime, item.mtime))


def _is_link_inside(path: str, target: str) -> bool:
    """Whether a link at `path` can only lead to a path below the root, whatever other links exist.

    `..` is allowed only at the start of the target: as text `a/b/..` stays inside, but `a/b` may be a link.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = len(parts) - len(list(dropwhile(lambda part: part == "..", parts)))
    return not target.startswith("/") and climbs <= path.count("/") and ".." not in parts[climbs:]


def _make_folders(root: Path, path: str) -> None:
    """Make a folder and its parents. A link in the place of one is refused, wherever it points."""
    here = root
    for part in path.split("/") if path else []:
        here /= part
        if here.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "a symbolic link is in the way", str(here))
        here.mkdir(exist_ok=True)


def _write_file(path: Path, item: ArchiveEntry) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(item.data or b"")
        file.flush()
        os.fchmod(file.fileno(), item.mode)
        os.utime(file.fileno(), (item.mtime, item.mtime))
