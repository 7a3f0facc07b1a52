"""Files that are read or replaced as a whole, and locks that end with their process.

A process may be killed anywhere. Whoever reads a file that is written here finds the old one or the new one, also after
the machine has lost power. A lock is an open file or folder, so a process that is gone holds none.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterable
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO


class NotRegular(OSError):
    """A path leads to a folder, a pipe or a device, and not to a regular file."""


def open_regular(path: str | Path, folder: int | None = None) -> BinaryIO:
    """A regular file, opened to read. Whoever reads a pipe or a device may wait for ever. With `folder` (a descriptor),
    a link is refused, too.

    Raises:
        NotRegular: it is something else.
        OSError: it cannot be opened.
    """
    follow = 0 if folder is None else os.O_NOFOLLOW
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | follow, dir_fd=folder)  # a pipe must not block
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise NotRegular(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise NotRegular(errno.EINVAL, "It is a pipe or a device, and not a regular file", str(path))


def read_whole(path: Path) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: it cannot be read, or it is no regular file.
    """
    with open_regular(path) as file:
        return file.read()


def read_whole_text(path: Path) -> str:
    """The text of a regular file in UTF-8.

    Raises:
        OSError: it cannot be read, or it is no regular file.
        UnicodeDecodeError: it is not UTF-8.
    """
    with TextIOWrapper(open_regular(path), encoding="utf-8") as file:
        return file.read()


def write_whole(path: Path, chunks: Iterable[bytes], mode: int = 0o666) -> None:
    """Replace a file, and wait for the disk. Its folder has to be there. One process at a time may write it.

    `mode` is that of the new file, less the umask. A link in its place is replaced, not followed.
    """
    temporary = path.with_name(f".{path.name}.tmp")  # one writer: what a killed process left is written anew
    temporary.unlink(missing_ok=True)
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(handle, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush_names(path.parent)


def flush_names(folder: Path) -> None:
    """Wait until the names of a folder's files are on the disk: those of new files are not when their content is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def take_lock(handle: int) -> bool:
    """Lock an open file or folder until the handle is closed. False: another process has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
