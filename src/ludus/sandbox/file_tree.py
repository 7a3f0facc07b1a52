"""An agent's files by content, so that a store keeps each content once.

`split_files` makes a *tree* of collected files: a list of names, modes and links in which a file's content is its hash.
The tree itself is one more content; its hash stands for all of the files. `join_files` puts them together again. Names
are bytes in the tree: an agent may choose names that are not Unicode.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from typing import NamedTuple

import msgspec
from msgspec import Struct

from ludus.sandbox.archive import ArchiveEntry

ENTRY_BYTES = 100
"""What an entry takes besides its name and content, at most."""


class FileTree(NamedTuple):
    """Collected files: the hash of their tree, and every content by its hash, the tree's included."""

    tree: str
    contents: Mapping[str, bytes]


class CollectedFiles(NamedTuple):
    """What an agent left in /workspace."""

    entries: tuple[ArchiveEntry, ...]
    layered: bool = False
    """Whether they are only the changes to a base, as slots with layers collect them. Only such slots can take them."""


class Protection(Struct, frozen=True):
    """Which of an agent's files are not copied to a fresh slot."""

    patterns: tuple[str, ...] = ()
    """As in `fnmatch`, for a path and for each of its parent folders."""
    dropped: frozenset[str] = frozenset()
    """Further paths."""
    kept: frozenset[str] = frozenset()
    """Paths that are copied, whatever the patterns say."""
    folders: frozenset[str] = frozenset()
    """Folders in whose place, and in that of their parents, no link is copied."""
    suspect: tuple[str, ...] = ()
    """What is copied although it may change the verdict, in words. A score that pays is recorded with it."""

    def covers(self, path: str) -> bool:
        """Whether a file with this path is not copied."""
        if path in self.kept:
            return False
        matches = _compile_patterns(self.patterns)
        return path in self.dropped or any(matches(name) for name in (path, *list_parents(path)))

    def is_below(self, path: str) -> bool:
        """Whether protected files are below a path. A link there would put other files in their place."""
        guarded = (*self.patterns, *(f"{folder}/*" for folder in self.folders))
        above = {parent for pattern in guarded for parent in list_parents(pattern)} - {"*"}
        return any(fnmatchcase(path, parent) for parent in above)


@lru_cache(maxsize=64)
def _compile_patterns(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """One expression for all patterns: an agent may leave very many files."""
    return re.compile("|".join(map(translate, patterns)) or r"(?!)").match


def list_parents(path: str) -> Iterator[str]:
    """The folders above a path, the nearest first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


@dataclass(frozen=True)
class KeptSizes:
    """How many bytes of files a store keeps, at most: of one rollout, and of a run. 0: none."""

    rollout: int = 8 * 2**20
    run: int = 2048 * 2**20


class _TreeEntry(Struct, frozen=True, array_like=True, omit_defaults=True):
    path: bytes
    mode: int
    mtime: float = 0.0
    content: str = ""
    link: bytes | None = None
    removed: bool = False
    opaque: bool = False
    special: str = ""


class _Tree(Struct, frozen=True, array_like=True):
    layered: bool
    entries: list[_TreeEntry]


_TREE = msgspec.msgpack.Decoder(_Tree)


def measure_files(files: CollectedFiles) -> int:
    """The number of bytes that the files take in a store, at most."""
    return sum(len(e.data or b"") + len(e.path) + ENTRY_BYTES for e in files.entries)


def split_files(files: CollectedFiles, mask: Callable[[bytes], bytes] = bytes) -> FileTree:
    """The files by content. `mask` is applied to every content before it is hashed."""
    contents: dict[str, bytes] = {}

    def add(data: bytes) -> str:
        masked = mask(data)
        name = hashlib.sha256(masked).hexdigest()
        contents[name] = masked
        return name

    entries = [
        _TreeEntry(
            os.fsencode(e.path),
            e.mode,
            e.mtime,
            "" if e.data is None else add(e.data),
            None if e.link is None else os.fsencode(e.link),
            e.removed,
            e.opaque,
            e.special,
        )
        for e in files.entries
    ]
    return FileTree(add(msgspec.msgpack.encode(_Tree(files.layered, entries))), contents)


def join_files(tree: bytes, read: Callable[[str], bytes]) -> CollectedFiles:
    """The files of a tree. `read` returns a content by its hash.

    Raises:
        ValueError: this is not a tree.
    """
    found = _TREE.decode(tree)
    return CollectedFiles(tuple(_make_entries(found.entries, read)), found.layered)


def _make_entries(entries: Iterable[_TreeEntry], read: Callable[[str], bytes]) -> Iterable[ArchiveEntry]:
    for e in entries:
        yield ArchiveEntry(
            os.fsdecode(e.path),
            e.mode,
            e.mtime,
            read(e.content) if e.content else None,
            None if e.link is None else os.fsdecode(e.link),
            e.removed,
            e.opaque,
            e.special,
        )
