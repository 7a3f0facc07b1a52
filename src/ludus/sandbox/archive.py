"""Folders on their way into and out of slots, as tar archives that nobody has to trust.

An archive that comes out of a slot was made where an agent has worked, so it is read as hostile: `entries` keeps plain
files, folders and symbolic links and drops everything else (devices, pipes, names that climb out); a hard link becomes
a file of its own. Nothing is ever compressed, so an archive is never larger inside than outside, except by hard links:
those count again towards the limit. `extract` never writes through a symbolic link: links are made last, and only those
that stay inside the folder, whatever else is or will be in it.

Modes are kept without set-user-id and the like; owners are not kept.
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

from msgspec import Struct

from ludus.sandbox import TRANSFER_BYTES

_LATEST = 2.0**40
"""Times are cut off there: past it the calls that set them fail."""
_OPAQUE = "SCHILY.xattr.user.overlay.opaque"


class TooLarge(OSError):
    """A file or folder passes the size limit of its transfer."""

    def __init__(self, path: str, max_bytes: int) -> None:
        super().__init__(errno.EFBIG, f"larger than the limit of {max_bytes} bytes", path)


class Entry(Struct, frozen=True):
    """One file, folder or link, by its path below the root: `a/b`, never `./a`, `/a` or `../a`."""

    path: str
    mode: int
    mtime: float = 0.0
    data: bytes | None = None
    """A file's content; None for folders and links."""
    link: str | None = None
    """Where a symbolic link points."""
    removed: bool = False
    """In a layer: nothing is here, whatever the layers below have."""
    opaque: bool = False
    """In a layer: this folder hides what the layers below have in it."""

    @property
    def is_folder(self) -> bool:
        return self.data is None and self.link is None and not self.removed


def entries(archive: bytes, *, max_bytes: int = TRANSFER_BYTES, layer: bool = False) -> Iterator[Entry]:
    """What an archive holds that may be kept; with `layer`, also what an overlay says about the layers below.

    Raises TooLarge, and ValueError if it is no archive.
    """
    left, end = max_bytes, -1
    files: dict[str, tarfile.TarInfo] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for member in tar:
                if member.size < 0 or member.offset <= end:  # a size below zero leads the reader round and round
                    raise ValueError("not a whole archive: it leads back into itself")
                end = member.offset
                path = _inside(member.name)
                if layer and path and member.ischr() and member.devmajor == member.devminor == 0:
                    yield Entry(path, 0, removed=True)
                if path is None or not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
                    continue
                mode, mtime = member.mode & 0o777, _time(member.mtime)
                if member.isdir():
                    opaque = layer and _OPAQUE in member.pax_headers
                    yield Entry(path, mode | 0o700, mtime, opaque=opaque)
                elif member.issym():
                    yield Entry(path, mode, mtime, link=member.linkname)
                elif member.islnk():
                    # Found here and not by `tar`, which would read to the end: of the files before it only.
                    if linked := files.get(_inside(member.linkname) or ""):
                        left -= linked.size
                        yield Entry(path, mode, mtime, _content(tar, linked, left, max_bytes))
                else:
                    files[path] = member
                    left -= member.size
                    yield Entry(path, mode, mtime, _content(tar, member, left, max_bytes))
    except (tarfile.TarError, OverflowError) as error:
        raise ValueError(f"not a whole archive: {error}") from error


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, left: int, max_bytes: int) -> bytes:
    if left < 0:
        raise TooLarge(member.name, max_bytes)
    file = tar.extractfile(member)
    return file.read() if file is not None else b""


def _time(seconds: float) -> float:
    """A time that can be set: anyone can give a file one that no call takes."""
    return min(_LATEST, max(-_LATEST, seconds)) if isfinite(seconds) else 0.0


def _inside(name: str) -> str | None:
    """A member's path below the root; None for the root itself and for what lies elsewhere."""
    path = posixpath.normpath(name)
    outside = path.startswith(("/", "../")) or path in (".", "..")
    return None if outside or ".." in name.split("/") or "\0" in name else path


def archive(items: Iterable[Entry]) -> bytes:
    """Entries as an archive. Folders come with their content, so that none has to be made up."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:", format=tarfile.GNU_FORMAT) as tar:
        for item in items:
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


def gather(source: Path, *, name: str | None = None, max_bytes: int = TRANSFER_BYTES) -> Iterator[Entry]:
    """A file of the host under `name`, or what a folder holds. Links are taken as links and never followed."""
    left = max_bytes
    for path, under in [(source, name or source.name)] if not source.is_dir() else _below(source):
        status = path.lstat()
        mode = status.st_mode & 0o777
        if path.is_symlink():
            yield Entry(under, mode, status.st_mtime, link=os.readlink(path))  # noqa: PTH115 - bytes survive as they are
        elif path.is_dir():
            yield Entry(under, mode | 0o700, status.st_mtime)
        elif path.is_file():
            left -= status.st_size
            if left < 0:
                raise TooLarge(str(path), max_bytes)
            yield Entry(under, mode, status.st_mtime, path.read_bytes())


def _below(folder: Path) -> Iterator[tuple[Path, str]]:
    for root, folders, files in os.walk(folder):
        folders.sort()
        here = Path(root)
        for name in sorted([*folders, *files]):
            yield here / name, (here / name).relative_to(folder).as_posix()


def extract(items: Iterable[Entry], folder: Path, *, all_links: bool = False) -> None:
    """Lay entries down below `folder`, which is made. Raises OSError, also when something there is in the way.

    `all_links` keeps links that point out of it, for a folder that only slots will look into.
    """
    folder.mkdir(parents=True, exist_ok=True)
    links: list[tuple[Path, str]] = []
    folders: list[tuple[Path, Entry]] = []
    for item in items:
        path = folder / item.path
        if item.link is not None:
            if all_links or _stays(item.path, item.link):
                links.append((path, item.link))
            continue
        _real_folders(folder, item.path if item.is_folder else posixpath.dirname(item.path))
        if item.opaque:
            os.setxattr(path, "user.overlay.opaque", b"y")
        if item.removed:
            os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))
        if item.data is not None:
            _lay(path, item)
        elif item.is_folder:
            folders.append((path, item))
    for path, target in links:
        _real_folders(folder, posixpath.dirname(path.relative_to(folder).as_posix()))
        if path.is_symlink():
            path.unlink()
        path.symlink_to(target)
    for path, item in reversed(folders):  # last: laying down what a folder holds changes its time
        path.chmod(item.mode)
        os.utime(path, (item.mtime, item.mtime))


def _stays(path: str, target: str) -> bool:
    """Whether a link at `path` can only lead to somewhere below the root, whatever other links are there.

    So it may climb before it descends, and not after: read as text `a/b/..` stays inside, but `a/b` may be a link too.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = len(parts) - len(list(dropwhile(lambda part: part == "..", parts)))
    return not target.startswith("/") and climbs <= path.count("/") and ".." not in parts[climbs:]


def _real_folders(root: Path, path: str) -> None:
    """Make a folder and those above it; a link in its place is refused, wherever it points."""
    here = root
    for part in path.split("/") if path else []:
        here /= part
        if here.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "a symbolic link is in the way", str(here))
        here.mkdir(exist_ok=True)


def _lay(path: Path, item: Entry) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(item.data or b"")
        file.flush()
        os.fchmod(file.fileno(), item.mode)
        os.utime(file.fileno(), (item.mtime, item.mtime))
