"""What a fresh slot gets of an agent's files, for `verify`.

`/workspace` alone is carried over: no process, nothing in home, /tmp or shared memory. Python's byte code caches stay
behind, because a cached file can say something else than its source. Where the environment protects files, those of
the agent under such names are dropped, whether changed, added or replaced by a link or folder, and those of a fresh
set-up take their place. Where slots see their base through an overlay, only what differs from it is carried, so a base
may be of any size.

What the agent left may be more than a slot can hold, when a file has holes or many names, or lie deeper than a path can
be long. The first raises `TooLarge`, which is the agent's doing and no failure; the second is left behind.

A pattern is matched as in `fnmatch` (`*` matches `/` too) against the path below /workspace and against each folder
above it: `tests` and `tests/*` both protect everything in `tests`.
"""

import asyncio
import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from ludus.errors import SandboxError
from ludus.sandbox import TRANSFER_BYTES, WORKSPACE, Sandbox
from ludus.sandbox.archive import Entry, TooLarge, archive, entries
from ludus.sandbox.shell_sandbox import ShellSandbox

T = TypeVar("T")

_MARGIN_BYTES = 64 * 2**20
"""What the archive of a full disk may take beside the files' content: half a kilobyte for each of 130,000."""
_LISTING_BYTES = 48 * 2**20
_LISTING_SECONDS = 120.0
_PATH_BYTES = 4000
"""Names longer than that, from /workspace on, cannot be given to the kernel in one piece."""
_CACHE = "__pycache__"
_LISTED = "/tmp/.ludus-listed"
_UNLOCK = f'chmod u+rwx {WORKSPACE} || chmod u+rwx "$HOME"'
"""A `local` slot has no /workspace; its home is there."""


async def collect(box: Sandbox) -> tuple[Entry, ...]:
    """The agent's files, out of a slot that was settled; of a slot with layers, what it changed.

    Raises `TooLarge` for more than the slot's disk can hold: that takes a file with holes, or a great many links.
    """
    try:
        return await _collected(box)
    except PermissionError:  # the agent has locked /workspace itself; what it locked inside is left behind
        await box.exec(_UNLOCK)
        return await _collected(box)


async def _collected(box: Sandbox) -> tuple[Entry, ...]:
    limit = box.spec.disk_mb * 2**20 + _MARGIN_BYTES
    if layered := _layered(box):
        limit += 2 * _MARGIN_BYTES  # it says more about each file
        packed = await layered.changes(max_bytes=limit)
    elif box.spec.base:  # copied into the slot, and not part of what its disk was meant for
        limit += TRANSFER_BYTES
        try:
            packed = await box.pack(WORKSPACE, max_bytes=limit)
        except TooLarge as error:
            raise SandboxError(f"sandbox.base cannot be carried to a fresh slot: {error}", retryable=False) from error
    else:
        packed = await box.pack(WORKSPACE, max_bytes=limit)
    return await _aside(len(packed), lambda: tuple(entries(packed, max_bytes=limit, layer=layered is not None)))


async def hand_over(left: Iterable[Entry], box: Sandbox, protected: Sequence[str]) -> None:
    """Put an agent's files in the place of what `setup` made in a fresh slot, except where they are protected."""
    if layered := _layered(box):
        files = await _make_room(kept(left, protected), layered, protected)
    else:
        ours = list[Entry]()
        if protected:
            ours = [e for e in entries(await box.pack(WORKSPACE)) if is_protected(e.path, protected)]
        files = merged(left, ours, protected)
    size = sum(len(e.data or b"") for e in files)
    try:
        await box.unpack(await _aside(size, lambda: archive(files)), WORKSPACE, replace=not layered)
    except OSError as error:
        if error.errno == errno.ENOSPC and size > box.spec.disk_mb * 2**20:
            raise TooLarge(WORKSPACE, box.spec.disk_mb * 2**20) from error
        raise


async def _aside(size: int, work: Callable[[], T]) -> T:
    """Do it here if it is little, else in a thread: it would hold up every other rollout."""
    return work() if size < 2**20 else await asyncio.to_thread(work)


def kept(left: Iterable[Entry], protected: Sequence[str]) -> dict[str, Entry]:
    """The agent's files by path, without what is protected, byte code caches and what no path reaches."""
    return {
        e.path: e
        for e in left
        if _CACHE not in e.path.split("/")
        and not is_protected(e.path, protected)
        and len(e.path.encode(errors="surrogateescape")) <= _PATH_BYTES
    }


def merged(left: Iterable[Entry], ours: Iterable[Entry], protected: Sequence[str]) -> list[Entry]:
    """The agent's files without what is protected, and ours; parents come before what they hold."""
    found = kept(left, protected)
    for item in ours:
        for above in _above(item.path):
            if above in found and not found[above].is_folder:
                del found[above]
        found[item.path] = item
    return _real(found)


def _real(found: Mapping[str, Entry]) -> list[Entry]:
    """In order. A file below what is no folder cannot have been on a disk: it is an idea of writing through a link."""
    real = [e for e in found.values() if all(found[a].is_folder for a in _above(e.path) if a in found)]
    return sorted(real, key=lambda e: e.path)


def is_protected(path: str, protected: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in (path, *_above(path)) for pattern in protected)


def _above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


# ---- slots with layers --------------------------------------------------------------------------------------------


def _layered(box: Sandbox) -> ShellSandbox | None:
    return box if isinstance(box, ShellSandbox) and box.layers_at else None


async def _make_room(left: Mapping[str, Entry], box: ShellSandbox, protected: Sequence[str]) -> list[Entry]:
    """Remove from a fresh slot what the agent's has no more; what is left to be laid down."""
    folders = await _listed(box, f"find {box.layers_at} -mindepth 1 -type d -print0", strip=f"{box.layers_at}/")
    others = await _listed(box, f"find {box.layers_at} -mindepth 1 ! -type d -print0", strip=f"{box.layers_at}/")
    roots = in_the_way(left, folders, others)
    search = "xargs -0 -r sh -c 'find \"$@\" -depth -print0 2>/dev/null; true' sh"
    found = await _listed(box, search, stdin=_joined(roots), strip="./")
    spared = {name for path in found if is_protected(path, protected) for name in (path, *_above(path))}
    await _listed(box, "xargs -0 -r rm -fd --", stdin=_joined(path for path in found if path not in spared))
    return _real({p: e for p, e in left.items() if not e.removed and (e.is_folder or p not in spared)})


def in_the_way(left: Mapping[str, Entry], folders: Sequence[str], others: Sequence[str]) -> list[str]:
    """What must go from a fresh slot before an agent's changes are laid down, given what `setup` has changed there."""
    agents = [e.path for e in left.values() if e.removed or e.opaque or not e.is_folder]
    ours = [p for p in others if p not in left or left[p].is_folder] + [p for p in folders if p not in left]
    return list(dict.fromkeys([*agents, *ours]))


async def _listed(box: ShellSandbox, command: str, *, stdin: bytes = b"", strip: str = "") -> list[str]:
    """The paths that a command prints, each ended by a NUL."""
    done = await box.exec(f"{{ {command}; }} >{_LISTED}", stdin=stdin, cwd=WORKSPACE, timeout=_LISTING_SECONDS)
    if done.exit_code != 0:
        raise SandboxError(f"the fresh slot's files could not be cleared: {done.text.strip()[-300:]}")
    data = await box.read(_LISTED, max_bytes=_LISTING_BYTES)
    await box.exec(f"rm -f {_LISTED}")
    return [name.decode(errors="surrogateescape").removeprefix(strip) for name in data.split(b"\0") if name]


def _joined(paths: Iterable[str]) -> bytes:
    return b"".join(b"./%b\0" % path.encode(errors="surrogateescape") for path in paths)
