"""Files that are replaced as a whole, and locks that end with their process.

A process may be killed anywhere. Whoever reads a file that is written here finds the old one or the new one, also after
the machine has lost power. A lock is an open file or folder, so a process that is gone holds none.
"""

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path


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
