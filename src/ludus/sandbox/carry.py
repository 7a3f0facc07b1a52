"""What a fresh slot gets of an agent's files, for `verify`.

`/workspace` alone is carried over: no process, nothing in home, /tmp or shared memory. Python's byte code caches stay
behind, because a cached file can say something else than its source. Where the environment protects files, those of
the agent under such names are dropped, whether changed, added or replaced by a link or folder, and those of a fresh
set-up take their place.

A pattern is matched as in `fnmatch` (`*` matches `/` too) against the path below /workspace and against each folder
above it: `tests` and `tests/*` both protect everything in `tests`.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from ludus.sandbox import WORKSPACE, Sandbox
from ludus.sandbox.archive import Entry, archive, entries

T = TypeVar("T")

_MARGIN_BYTES = 64 * 2**20
"""What the archive of a full disk may take beside the files' content."""
_CACHE = "__pycache__"


async def collect(box: Sandbox) -> tuple[Entry, ...]:
    """The agent's files, out of a slot that was settled. Raises `TooLarge` for more than the slot's disk can hold: that
    takes a file with holes, or a great many links."""
    limit = box.spec.disk_mb * 2**20 + _MARGIN_BYTES
    packed = await box.pack(WORKSPACE, max_bytes=limit)
    return await _aside(len(packed), lambda: tuple(entries(packed, max_bytes=limit)))


async def hand_over(left: Iterable[Entry], box: Sandbox, protected: Sequence[str]) -> None:
    """Put an agent's files in the place of what `setup` made in a fresh slot, except where they are protected."""
    ours: list[Entry] = []
    if protected:
        ours = [e for e in entries(await box.pack(WORKSPACE)) if is_protected(e.path, protected)]
    files = merged(left, ours, protected)
    size = sum(len(e.data or b"") for e in files)
    await box.unpack(await _aside(size, lambda: archive(files)), WORKSPACE, replace=True)


async def _aside(size: int, work: Callable[[], T]) -> T:
    """Do it here if it is little, else in a thread: it would hold up every other rollout."""
    return work() if size < 2**20 else await asyncio.to_thread(work)


def merged(left: Iterable[Entry], ours: Iterable[Entry], protected: Sequence[str]) -> list[Entry]:
    """The agent's files without what is protected, and ours; parents come before what they hold."""
    found = {e.path: e for e in left if _CACHE not in e.path.split("/") and not is_protected(e.path, protected)}
    for item in ours:
        for above in _above(item.path):
            if above in found and not found[above].is_folder:
                del found[above]
        found[item.path] = item
    # A file below what is no folder cannot have been on a disk: it is somebody's idea of writing through a link.
    real = [e for e in found.values() if all(found[a].is_folder for a in _above(e.path) if a in found)]
    return sorted(real, key=lambda e: e.path)


def is_protected(path: str, protected: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in (path, *_above(path)) for pattern in protected)


def _above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
