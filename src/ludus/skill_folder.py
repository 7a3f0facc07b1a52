"""A skill package as a folder: reading one, and writing one.

    skill/SKILL.md              the document, with front matter
    skill/references/units.md   a text that the document names
    skill/scripts/convert.py    a program that the agent runs

A folder is material of others. Reading it follows no link and opens only regular files, through handles of the folders
above them, so that nothing outside of the folder is read. What cannot be kept as it is, is refused with its path and
the reason: links, pipes and devices, names that other systems cannot hold, files above the size limits, files that
change while they are read, a document that is not UTF-8. Files that are not text are kept byte for byte.

Folders of version control and caches (`.git`, `__pycache__`, …) are no part of a package: they are left out. So are
empty folders. Of the mode only the owner's right to execute is kept.
"""

import os
import secrets
import shutil
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ludus.errors import ConfigError
from ludus.skill import (
    DOCUMENT,
    FILE_BYTES,
    PACKAGE_BYTES,
    PACKAGE_FILES,
    Skill,
    SkillFile,
    find_path_fault,
    make_file,
    parse_file,
    render_file,
)
from ludus.whole_files import read_whole_text

LEFT_OUT = frozenset({".git", ".hg", ".svn", "__pycache__", ".DS_Store", ".pytest_cache", ".ruff_cache", ".venv"})
"""Names of files and folders that are no part of a package."""
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""How everything below the folder is opened. Without waiting: a pipe has no other end."""
_BOM = b"\xef\xbb\xbf"


# ---- reading --------------------------------------------------------------------------------------------------------


def read_skill(path: Path) -> Skill:
    """The skill at a path: a document, or the package in a folder.

    Raises:
        ConfigError: it is not there, or it cannot be kept as it is. The message names the file and the reason.
    """
    if path.is_dir():
        return read_package(path)
    try:
        return parse_file(read_whole_text(path))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"{path} is not UTF-8 text: a skill is a Markdown file in UTF-8, or a folder with one"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def read_package(folder: Path) -> Skill:
    """The package in a folder. Equal folders give equal packages, whatever their order, times and owners.

    Raises:
        ConfigError: something in it cannot be kept as it is. The message names the file and the reason.
    """
    reader = _Reader(folder)
    with _open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, None, str(folder)) as handle:
        found = reader.read_folder(handle, "")
    document = found.pop(DOCUMENT, None)
    if document is None:
        raise ConfigError(f"{folder} is no skill: it has no {DOCUMENT}")
    text = _read_document(document, folder)
    files = tuple(found[path] for path in sorted(found))
    try:
        skill = Skill(text, files)
    except ValueError as error:
        raise ConfigError(f"{folder}: {error}") from None
    front = skill.front  # raises if it is not in the Agent Skills form
    return skill.change_text(parse_file(text).text) if front else skill


def _read_document(document: SkillFile, folder: Path) -> str:
    place = folder / DOCUMENT
    if document.data:
        raise ConfigError(f"{place} is not UTF-8 text: save it as UTF-8")
    if document.text.startswith(_BOM.decode()):
        raise ConfigError(f"{place} begins with a byte order mark, behind which agents find no front matter: remove it")
    return document.text


class _Reader:
    """Reads one folder, and counts what it has read."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._bytes = 0
        self._files = 0

    def read_folder(self, handle: int, above: str) -> dict[str, SkillFile]:
        """The files below an open folder, by path. `above`: the folder's path in the package, with a `/` after it."""
        found: dict[str, SkillFile] = {}
        for name in sorted(self._list_names(handle, above)):
            path = f"{above}{name}"
            if name in LEFT_OUT:
                continue
            if path != DOCUMENT and (fault := find_path_fault(path)):
                raise ConfigError(f"{self._root}: {path!r}: {fault}")
            kind = self._find_kind(handle, name, path)
            if stat.S_ISDIR(kind):
                with _open(name, _FLAGS | os.O_DIRECTORY, handle, self._say(path)) as below:
                    found |= self.read_folder(below, f"{path}/")
            else:
                found[path] = self._read_file(handle, name, path)
        return found

    def _say(self, path: str) -> str:
        return str(self._root / path)

    def _list_names(self, handle: int, above: str) -> list[str]:
        try:
            return os.listdir(handle)
        except OSError as error:
            raise ConfigError(f"{self._say(above)} cannot be read: {error.strerror}") from None

    def _find_kind(self, handle: int, name: str, path: str) -> int:
        """The mode of an entry that is a folder or a regular file."""
        try:
            mode = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
        except OSError as error:
            raise ConfigError(f"{self._say(path)} cannot be read: {error.strerror}") from None
        if stat.S_ISLNK(mode):
            raise ConfigError(f"{self._say(path)} is a link: a package holds files, so put a copy in its place")
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise ConfigError(f"{self._say(path)} is a pipe, a socket or a device: a package holds files")
        return mode

    def _read_file(self, folder: int, name: str, path: str) -> SkillFile:
        self._files += 1
        if self._files > PACKAGE_FILES + 1:
            raise ConfigError(f"{self._root} has more than {PACKAGE_FILES:,} files: a package is smaller")
        with _open(name, _FLAGS, folder, self._say(path)) as handle:
            before = os.fstat(handle)
            if not stat.S_ISREG(before.st_mode):
                raise ConfigError(f"{self._say(path)} was replaced while it was read: read the folder again")
            try:
                content = _read_bytes(handle)
            except OSError as error:
                raise ConfigError(f"{self._say(path)} cannot be read: {error.strerror}") from None
            after = os.fstat(handle)
        if len(content) > FILE_BYTES:
            raise ConfigError(f"{self._say(path)} has more than {FILE_BYTES:,} bytes: a file of a package is smaller")
        if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size) or len(content) != after.st_size:
            raise ConfigError(f"{self._say(path)} changed while it was read: read the folder again")
        self._bytes += len(content)
        if self._bytes > PACKAGE_BYTES:
            raise ConfigError(f"the files in {self._root} have more than {PACKAGE_BYTES:,} bytes together")
        return make_file(path, content, executable=bool(before.st_mode & stat.S_IXUSR))


def _read_bytes(handle: int) -> bytes:
    """The content of an open file, up to one byte more than a file may have."""
    pieces: list[bytes] = []
    left = FILE_BYTES + 1
    while left and (piece := os.read(handle, left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


@contextmanager
def _open(name: str | Path, flags: int, folder: int | None, place: str) -> Generator[int]:
    try:
        handle = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise ConfigError(f"{place} cannot be read: {error.strerror}") from None
    try:
        yield handle
    finally:
        os.close(handle)


# ---- writing --------------------------------------------------------------------------------------------------------


def render_package(
    skill: Skill, name: str, description: str, stamp: Mapping[str, str] = {}
) -> dict[str, tuple[bytes, bool]]:
    """The files of a skill's folder: path → content, and whether it may be executed. See `render_file`."""
    document = render_file(skill, name, description, stamp).encode()
    return {DOCUMENT: (document, False), **{file.path: (file.content, file.executable) for file in skill.files}}


def write_package(files: Mapping[str, tuple[bytes, bool]], folder: Path) -> None:
    """Write a folder with exactly these files. What was there before is replaced, when all of them are written.

    Raises:
        OSError: the disk is full, or the folder may not be written.
        ValueError: a path leads out of the folder.
    """
    for path in files:
        if path != DOCUMENT and (fault := find_path_fault(path)):
            raise ValueError(f"{path!r}: {fault}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = folder.parent / f".{folder.name}.{secrets.token_hex(4)}"
    try:
        for path, (content, executable) in files.items():
            target = new / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            if executable:
                target.chmod(0o755)
        _put_in_place(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _put_in_place(new: Path, folder: Path) -> None:
    old = new.with_name(f"{new.name}.old")
    if folder.is_symlink() or folder.exists():
        folder.rename(old)
    new.rename(folder)
    if old.is_symlink() or old.is_file():
        old.unlink()
    else:
        shutil.rmtree(old, ignore_errors=True)
