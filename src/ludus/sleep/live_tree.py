"""The files of a live skill: facts about them, a copy with changes, and the exchange of two of them in one step.

A live skill belongs to the user, and others write to it: editors, agents, version control. So nothing here follows a
link. A path is opened folder by folder, and everything below is reached through handles. A tree is read as facts (kind,
mode, hash), so two states can be compared without keeping them. What is no part of a package (`.git`, caches) is copied
along, so that it is still there when a folder has been replaced.
"""

import ctypes
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct

from ludus.encoding import canonical
from ludus.errors import ConfigError
from ludus.skill_folder import LEFT_OUT

ROOT = ""
"""The path of a tree itself. A live skill that is one document has nothing else."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CHUNK = 1 << 20
_EXCHANGE = 2
_OLD = ".old"


class TreeEntry(Struct, frozen=True, omit_defaults=True):
    """What is at one path of a tree."""

    kind: Literal["file", "folder", "link"]
    mode: int
    content: str = ""
    """The hash of a file, or the target of a link."""


Tree = Mapping[str, TreeEntry]
"""What is at each path, relative to the tree."""


class NewFile(NamedTuple):
    """What a file should be."""

    content: bytes
    mode: int | None = None
    """None: that of the file that it replaces; 0o644 or 0o755 if there is none."""
    executable: bool = False


def hash_tree(tree: Tree) -> str:
    return hashlib.sha256(canonical(dict(sorted(tree.items())))).hexdigest()[:32]


def select_package(tree: Tree) -> dict[str, TreeEntry]:
    """The files that belong to a package. Folders do not count: an empty one is no part of it."""
    return {path: entry for path, entry in tree.items() if entry.kind != "folder" and not is_left_out(path)}


def is_left_out(path: str) -> bool:
    """Whether a path is no part of a package, such as one below `.git`."""
    return any(part in LEFT_OUT for part in path.split("/"))


def list_changes(before: Tree, after: Tree) -> list[str]:
    """What differs between two states of a package, in words."""
    words: list[str] = []
    for path in sorted(before.keys() | after.keys()):
        one, other, name = before.get(path), after.get(path), path or "the document"
        if one is None or other is None:
            words.append(f"{name} was {'added' if one is None else 'removed'}")
        elif (one.kind, one.content) != (other.kind, other.content):
            words.append(f"{name} has other content")
        elif one.mode != other.mode:
            words.append(f"{name} has mode {other.mode:o}, not {one.mode:o}")
    return words


def describe_files(files: Mapping[str, NewFile], base: Tree) -> dict[str, TreeEntry]:
    """The facts about files as they will be in place of those of `base`."""
    return {
        path: TreeEntry("file", _choose_mode(file, base.get(path)), hashlib.sha256(file.content).hexdigest())
        for path, file in files.items()
    }


# ---- reading --------------------------------------------------------------------------------------------------------


@contextmanager
def open_parent(path: Path) -> Generator[int]:
    """A handle of the folder that a path is in. No folder on the way may be a link.

    Raises:
        ConfigError: it is not there, is a link, or may not be read.
    """
    handle = os.open("/", _FOLDER)
    try:
        for part in path.parent.parts[1:]:
            try:
                below = os.open(part, _FOLDER, dir_fd=handle)
            except OSError as error:
                why = "a link on the way is not followed" if error.errno in (errno.ELOOP, errno.ENOTDIR) else ""
                raise ConfigError(f"{path.parent} cannot be opened: {why or error.strerror}") from None
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def exists(parent: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def read_tree(parent: int, name: str) -> dict[str, TreeEntry]:
    """The facts about a file or a folder and all that is in it.

    Raises:
        ConfigError: something in it is neither a file, a folder nor a link.
        FileNotFoundError: it is not there.
    """
    found: dict[str, TreeEntry] = {}
    _read_entry(parent, name, ROOT, found)
    return found


def _read_entry(parent: int, name: str, path: str, found: dict[str, TreeEntry]) -> None:
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        found[path] = TreeEntry("link", 0o777, os.readlink(name, dir_fd=parent))
    elif stat.S_ISREG(status.st_mode):
        found[path] = TreeEntry("file", mode, _hash_file(parent, name))
    elif stat.S_ISDIR(status.st_mode):
        found[path] = TreeEntry("folder", mode)
        with _open_at(parent, name, _FOLDER) as handle:
            for each in sorted(os.listdir(handle)):  # noqa: PTH208  # by a handle
                _read_entry(handle, each, f"{path}/{each}" if path else each, found)
    else:
        raise ConfigError(f"{path or name} is a pipe, a socket or a device: move it out of the skill's folder first")


def _hash_file(parent: int, name: str) -> str:
    digest = hashlib.sha256()
    with _open_at(parent, name, _FILE) as handle:
        while piece := os.read(handle, _CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def read_package_files(parent: int, name: str) -> dict[str, NewFile]:
    """The files of a package with their modes, for a later `build_copy`. A document alone is at the path `ROOT`."""
    files: dict[str, NewFile] = {}
    for path, entry in select_package(read_tree(parent, name)).items():
        with _open_inside(parent, name, path) as (folder, last), _open_at(folder, last, _FILE) as handle:
            pieces: list[bytes] = []
            while piece := os.read(handle, _CHUNK):
                pieces.append(piece)
        files[path] = NewFile(b"".join(pieces), entry.mode)
    return files


@contextmanager
def _open_at(parent: int, name: str, flags: int, mode: int = 0o600) -> Generator[int]:
    handle = os.open(name, flags, mode, dir_fd=parent)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _open_inside(parent: int, name: str, path: str) -> Generator[tuple[int, str]]:
    """The folder of a path in a tree, and the last part of the path. No link is followed."""
    *folders, last = (name, *path.split("/")) if path else (name,)
    handle = os.dup(parent)
    try:
        for part in folders:
            below = os.open(part, _FOLDER, dir_fd=handle)
            os.close(handle)
            handle = below
        yield handle, last
    finally:
        os.close(handle)


# ---- copying --------------------------------------------------------------------------------------------------------


def copy_tree(source: int, name: str, target: int, new: str) -> None:
    """Copy a file or a folder byte for byte, with modes, times and links as they are, and wait for the disk."""
    status = os.stat(name, dir_fd=source, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), new, dir_fd=target)
    elif stat.S_ISREG(status.st_mode):
        with (
            _open_at(source, name, _FILE) as reader,
            _open_at(target, new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC) as writer,
        ):
            while piece := os.read(reader, _CHUNK):
                _write_whole(writer, piece)
            _keep_facts(writer, status)
            os.fsync(writer)
    elif stat.S_ISDIR(status.st_mode):
        os.mkdir(new, 0o700, dir_fd=target)
        with _open_at(source, name, _FOLDER) as reader, _open_at(target, new, _FOLDER) as writer:
            for each in sorted(os.listdir(reader)):  # noqa: PTH208  # by a handle
                copy_tree(reader, each, writer, each)
            _keep_facts(writer, status)
            os.fsync(writer)
    else:
        raise ConfigError(f"{name} is a pipe, a socket or a device: move it out of the skill's folder first")


def _keep_facts(handle: int, status: os.stat_result) -> None:
    """Give an open copy the owner, the mode and the times of the original."""
    now = os.fstat(handle)
    if (now.st_uid, now.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.fchown(handle, status.st_uid, status.st_gid)
        except PermissionError:
            raise ConfigError(
                f"the skill's files belong to user {status.st_uid}: adopt as this user, so that they keep their owner"
            ) from None
    os.fchmod(handle, stat.S_IMODE(status.st_mode))
    os.utime(handle, ns=(status.st_atime_ns, status.st_mtime_ns))


def _write_whole(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def write_files(folder: Path, name: str, files: Mapping[str, NewFile], base: Tree) -> None:
    """Write a file or a folder with exactly these files into an existing folder, in place of what was there."""
    with open_parent(folder.absolute() / name) as parent:
        remove_tree(parent, name)
        if ROOT not in files:
            os.mkdir(name, 0o755, dir_fd=parent)
        for path, file in files.items():
            _write_file(parent, name, path, NewFile(file.content, _choose_mode(file, base.get(path))), None)
        os.fsync(parent)


def build_copy(parent: int, live: str, new: str, files: Mapping[str, NewFile]) -> None:
    """Make `new` beside a live skill: a copy of it in which the package has exactly these files."""
    copy_tree(parent, live, parent, new)
    tree = read_tree(parent, new)
    for path in select_package(tree).keys() - files.keys():
        _remove_file(parent, new, path, tree)
    for path, file in files.items():
        entry = tree.get(path)
        is_same = entry and entry.content == hashlib.sha256(file.content).hexdigest()
        if not is_same or _choose_mode(file, entry) != (entry and entry.mode):
            _write_file(parent, new, path, file, entry)
    os.fsync(parent)


def _choose_mode(file: NewFile, entry: TreeEntry | None) -> int:
    if file.mode is not None:
        return file.mode
    if entry is None or entry.kind != "file":
        return 0o755 if file.executable else 0o644
    if file.executable == bool(entry.mode & stat.S_IXUSR):
        return entry.mode
    return entry.mode | 0o111 if file.executable else entry.mode & ~0o111


def _write_file(parent: int, name: str, path: str, file: NewFile, entry: TreeEntry | None) -> None:
    parts = path.split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        with _open_inside(parent, name, "/".join(parts[:depth])) as (folder, last), suppress(FileExistsError):
            os.mkdir(last, 0o755, dir_fd=folder)
            os.chmod(last, 0o755, dir_fd=folder)  # whatever the umask is
    with _open_inside(parent, name, path) as (folder, last):
        if entry is not None:
            os.unlink(last, dir_fd=folder)  # also a file that may not be written, or a link
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with _open_at(folder, last, flags) as handle:
            _write_whole(handle, file.content)
            os.fchmod(handle, _choose_mode(file, entry))
            os.fsync(handle)
        os.fsync(folder)


def _remove_file(parent: int, name: str, path: str, tree: Tree) -> None:
    """Remove a file, and the folders that are empty because of it."""
    with _open_inside(parent, name, path) as (folder, last):
        os.unlink(last, dir_fd=folder)
        os.fsync(folder)
    above = path.rpartition("/")[0]
    while above and above in tree:
        with _open_inside(parent, name, above) as (folder, last):
            try:
                os.rmdir(last, dir_fd=folder)
            except OSError:
                return
            os.fsync(folder)
        above = above.rpartition("/")[0]


def remove_tree(parent: int, name: str) -> None:
    """Remove a file or a folder. Links in it are removed, not followed."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        _open_up(parent, name)
        shutil.rmtree(name, dir_fd=parent)
    else:
        os.unlink(name, dir_fd=parent)
    os.fsync(parent)


def _open_up(parent: int, name: str) -> None:
    """Let the owner write in the folders of a tree, so that it can be removed."""
    with _open_at(parent, name, _FOLDER) as handle:
        os.fchmod(handle, stat.S_IMODE(os.fstat(handle).st_mode) | stat.S_IRWXU)
        for each in os.listdir(handle):  # noqa: PTH208  # by a handle
            if stat.S_ISDIR(os.stat(each, dir_fd=handle, follow_symlinks=False).st_mode):
                _open_up(handle, each)


# ---- the exchange ---------------------------------------------------------------------------------------------------


def exchange(parent: int, live: str, other: str) -> None:
    """Let two neighbours change their names. Where the system can do it in one step, a name is never missing.

    Elsewhere it takes three renames. A process that is killed between them leaves a state that `complete_exchange`
    brings to an end.
    """
    if not _exchange_at_once(parent, live, other):
        os.rename(live, f"{other}{_OLD}", src_dir_fd=parent, dst_dir_fd=parent)
        os.rename(other, live, src_dir_fd=parent, dst_dir_fd=parent)
        os.rename(f"{other}{_OLD}", other, src_dir_fd=parent, dst_dir_fd=parent)
    os.fsync(parent)


def complete_exchange(parent: int, live: str, other: str) -> None:
    """Bring an exchange in several renames to an end: back if the live name is missing, else forward."""
    if not exists(parent, f"{other}{_OLD}"):
        return
    end = other if exists(parent, live) else live
    os.rename(f"{other}{_OLD}", end, src_dir_fd=parent, dst_dir_fd=parent)
    os.fsync(parent)


def _exchange_at_once(parent: int, one: str, other: str) -> bool:
    """Whether the kernel has exchanged the names."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(parent, os.fsencode(one), parent, os.fsencode(other), ctypes.c_uint(_EXCHANGE)) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):  # an old kernel, or a file system that cannot
        return False
    raise OSError(code, os.strerror(code), one)
