"""Copies an agent's files to a fresh slot, for `verify`.

Only `/workspace` is copied: no processes, and nothing from home, /tmp or shared memory. Python's byte code caches are
not copied, because a cached file can differ from its source. If the environment protects files, the agent's files with
such names are dropped, whether they were changed, added, or replaced by a link or folder; the files of a fresh setup
stay. If slots see their base through an overlay, only the changes to it are copied, so a base may have any size.

The agent's files may be larger than a slot can hold, if a file has holes or many hard links. That raises
`ArchiveTooLarge`: the agent caused it, so it is not a failure of the slot. They may also be nested deeper than the
longest path. Such files are not copied.

A symbolic link that leads out of /workspace is not copied either: in the fresh slot it would lead to a file that the
agent did not write, such as the expected output. Links are followed through other links, those of `setup` and of the
base included. Links that `setup` or the base made, with the same target, are kept: they are not the agent's. Named
pipes, devices and hard links to something else than a file are not copied. `copy_files` returns what it has left out.

In a slot with an image (`SandboxSpec.image`), all this is about the whole root file system instead of /workspace. There
a link is not copied if it leads into one of the `hidden` folders, which the verifier fills, or stands in the place of a
folder with protected files. What was protected is named
among what was left out, because an agent may well have meant a change of a system folder.

A pattern is matched as in `fnmatch` (`*` also matches `/`) against the path below /workspace and against each of its
parent folders: `tests` and `tests/*` both protect everything in `tests`.
"""

import asyncio
import errno
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from ludus.errors import SandboxError
from ludus.sandbox import TRANSFER_BYTES, WORKSPACE, Sandbox
from ludus.sandbox.archive import ArchiveEntry, ArchiveTooLarge, make_archive, read_entries
from ludus.sandbox.file_tree import CollectedFiles, Protection, list_parents
from ludus.sandbox.links import find_leading_into, find_outward

if TYPE_CHECKING:  # few runs have slots
    from ludus.sandbox.shell_sandbox import ShellSandbox

T = TypeVar("T")

_MARGIN_BYTES = 64 * 2**20
"""What the archive of a full disk may take on top of the files' content: half a kilobyte for each of 130,000 files."""
_LISTING_BYTES = 48 * 2**20
_LISTING_SECONDS = 120.0
_PATH_BYTES = 4000
"""The kernel does not accept longer paths in one call. Counted from /workspace."""
_FEW_ENTRIES = 200
_SMALL_BYTES = 256 * 2**10
"""An archive of that size has at most 512 entries."""
_CACHE = "__pycache__"
_SHOWN_LEFT_OUT = 50
_ROOT = "/"
_SLOT_PATHS = ("run/ludus", "proc", "dev", "sys", "tmp/.ludus-*")
"""Places in a slot with an image that are the slot's own."""
_NAME_CHARS = 200
_LIST_FILE = "/tmp/.ludus-listed"
_UNLOCK = f'chmod u+rwx {WORKSPACE} || chmod u+rwx "$HOME"'
"""A `local` slot has no /workspace, but its home is the same folder."""


async def collect_files(box: Sandbox) -> CollectedFiles:
    """Read the agent's files from a settled slot. If the slot has layers, only its changes.

    Raises `ArchiveTooLarge` for more than the slot's disk can hold. A file with holes or very many hard links do that.
    """
    layered = _get_layered(box) is not None
    try:
        return CollectedFiles(await _pack_files(box), layered)
    except PermissionError:  # the agent has locked /workspace itself; locked files and folders inside it are not copied
        await box.exec(_UNLOCK)
        return CollectedFiles(await _pack_files(box), layered)


async def _pack_files(box: Sandbox) -> tuple[ArchiveEntry, ...]:
    limit = box.spec.disk_mb * 2**20 + _MARGIN_BYTES
    if layered_box := _get_layered(box):
        limit += 2 * _MARGIN_BYTES  # this format has more metadata per file
        packed = await layered_box.pack_changes(max_bytes=limit)
    elif box.spec.base:  # the base was copied into the slot, and does not count towards its disk
        limit += TRANSFER_BYTES
        try:
            packed = await box.pack(WORKSPACE, max_bytes=limit)
        except ArchiveTooLarge as error:
            raise SandboxError(f"sandbox.base cannot be copied to a fresh slot: {error}", retryable=False) from error
    else:
        packed = await box.pack(WORKSPACE, max_bytes=limit)
    return await _run_by_bytes(
        len(packed), lambda: tuple(read_entries(packed, max_bytes=limit, layer=layered_box is not None, special=True))
    )


def find_changes(box: Sandbox) -> str:
    """The folder in a slot with an image that has what differs from the image; empty for another slot."""
    layered_box = _get_layered(box)
    return layered_box.changes_path if layered_box is not None and _get_tree(box) == _ROOT else ""


async def list_changes(box: Sandbox) -> tuple[str, ...]:
    """The files that were changed, made or removed in a slot with layers, by path below its tree; of another slot,
    none."""
    layered_box = _get_layered(box)
    if layered_box is None:
        return ()
    place = layered_box.changes_path
    paths = await _list_paths(box, f"find {place} -mindepth 1 ! -type d -print0", strip=f"{place}/")
    slot = Protection(_SLOT_PATHS)
    return tuple(sorted(path for path in paths if not slot.covers(path)))


async def copy_files(
    files: CollectedFiles, box: Sandbox, protected: Sequence[str] | Protection, hidden: Sequence[str] = ()
) -> tuple[str, ...]:
    """Replace what `setup` made in a fresh slot by the agent's files, except where they are protected.

    `hidden`: folders of a slot with an image that the verifier fills. Returns what was left out: links that lead out
    of /workspace or into a hidden folder, and special files.
    """
    entries, tree = files.entries, _get_tree(box)
    if files.layered != (_get_layered(box) is not None):
        raise SandboxError(
            "the files were collected in a slot of another kind (with or without layers over a base): use the sandbox "
            "settings of the run",
            retryable=False,
        )
    dropped = ()
    rules = protected if isinstance(protected, Protection) else Protection(tuple(protected))
    if tree == _ROOT:
        dropped = await _run_by_size(entries, lambda: _describe_protected(entries, rules))
        guard = replace(rules, patterns=(*rules.patterns, *hidden, *_SLOT_PATHS))
        hidden = (*hidden, *(path for path in _SLOT_PATHS if "*" not in path))
    else:
        guard = rules
    found = await _run_by_size(entries, lambda: filter_files(entries, guard))
    has_links = await _run_by_size(entries, lambda: any(e.link is not None for e in found.values()))
    setup_links = await _list_links(box) if has_links else {}
    if layered_box := _get_layered(box):
        changed = await _clear_replaced(found, layered_box, guard)
    else:
        setup_entries = await _pack_protected(box, guard)
        setup_links |= {entry.path: entry.link for entry in setup_entries if entry.link is not None}
        changed = await _run_by_size(entries, lambda: merge_files(found.values(), setup_entries, guard))

    def find_bad(links: Mapping[str, str]) -> frozenset[str]:
        if tree != _ROOT:
            return find_outward(links, WORKSPACE)
        return find_leading_into(links, hidden) | {path for path in links if guard.is_below(path)}

    copied, left_out = await _run_by_size(changed, lambda: leave_out(changed, setup_links, find_bad))
    packed = await _run_by_size(copied, lambda: make_archive(copied))
    try:
        await box.unpack(packed, tree, replace=not layered_box)
    except OSError as error:
        if error.errno == errno.ENOSPC and len(packed) > box.spec.disk_mb * 2**20:
            raise ArchiveTooLarge(tree, box.spec.disk_mb * 2**20) from error
        raise
    return (*left_out, *dropped)


def _describe_protected(entries: Iterable[ArchiveEntry], guard: Protection) -> tuple[str, ...]:
    """What the agent did to protected files, in one line; nothing if it did nothing to them."""
    paths = [entry.path for entry in entries if not entry.is_folder and guard.covers(entry.path)]
    if not paths:
        return ()
    return (f"{len(paths)} changes of protected files, such as {_quote_name(paths[0])}",)


async def _pack_protected(box: Sandbox, guard: Protection) -> list[ArchiveEntry]:
    """Read what `setup` made in a fresh slot and protects."""
    if guard == Protection():
        return []
    packed = await box.pack(WORKSPACE)
    return await _run_by_bytes(len(packed), lambda: [e for e in read_entries(packed) if guard.covers(e.path)])


def leave_out(
    files: Iterable[ArchiveEntry],
    setup_links: Mapping[str, str],
    find_bad: Callable[[Mapping[str, str]], frozenset[str]] = lambda links: find_outward(links, WORKSPACE),
) -> tuple[list[ArchiveEntry], tuple[str, ...]]:
    """Return the files that are copied, and a description of each that is not.

    `setup_links` are the targets of the links in the fresh slot, by path. `find_bad` finds links that lead astray.
    """
    files = list(files)
    links = {**setup_links}
    for entry in files:
        links.pop(entry.path, None)
        if entry.link is not None:
            links[entry.path] = entry.link
    outward = find_bad(links)
    copied, left_out = list[ArchiveEntry](), list[str]()
    for entry in files:
        if entry.special:
            left_out.append(_quote_name(f"{entry.path} ({entry.special})"))
        elif entry.path in outward and setup_links.get(entry.path) != entry.link:
            left_out.append(_quote_name(f"{entry.path} -> {entry.link}"))
        else:
            copied.append(entry)
    more = len(left_out) - _SHOWN_LEFT_OUT
    return copied, (*left_out[:_SHOWN_LEFT_OUT], f"… and {more} more") if more > 0 else tuple(left_out)


def _quote_name(text: str) -> str:
    """A path on one line, of limited length and without characters that cannot be encoded: the agent chose it."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown if len(shown) <= _NAME_CHARS else shown[:_NAME_CHARS] + "…"


async def _list_links(box: Sandbox) -> dict[str, str]:
    """The symbolic links in a fresh slot's tree: their targets by path."""
    loop = 'for p; do printf "%s\\0" "$p"; readlink -n -- "$p"; printf "\\0"; done'
    find = "find . -xdev -type l"
    command = f"{find} -printf '%p\\0%l\\0' 2>/dev/null || {find} -exec sh -c '{loop}' sh {{}} +"
    fields = await _list_fields(box, command)
    return await _run_by_bytes(
        len(fields) * 2**10,
        lambda: {path.removeprefix("./"): target for path, target in zip(fields[::2], fields[1::2], strict=False)},
    )


async def _run_by_size(entries: Collection[ArchiveEntry], work: Callable[[], T]) -> T:
    """Do work on few and small files here, and any other in a thread: it would block every other rollout."""
    is_small = len(entries) <= _FEW_ENTRIES and sum(len(e.data or b"") for e in entries) <= _SMALL_BYTES
    return work() if is_small else await asyncio.to_thread(work)


async def _run_by_bytes(size: int, work: Callable[[], T]) -> T:
    """Do work on a small text or archive here, and on a large one in a thread."""
    return work() if size <= _SMALL_BYTES else await asyncio.to_thread(work)


def filter_files(entries: Iterable[ArchiveEntry], guard: Protection) -> dict[str, ArchiveEntry]:
    """Return the agent's files by path, without protected files, byte code caches and paths that are too long."""
    return {
        e.path: e
        for e in entries
        if _CACHE not in e.path.split("/")
        and not guard.covers(e.path)
        and len(e.path.encode(errors="surrogateescape")) <= _PATH_BYTES
    }


def merge_files(
    entries: Iterable[ArchiveEntry], setup_entries: Iterable[ArchiveEntry], guard: Protection
) -> list[ArchiveEntry]:
    """Combine the agent's unprotected files with those of `setup`. Folders come before their content."""
    found = filter_files(entries, guard)
    for item in setup_entries:
        for parent in list_parents(item.path):
            if parent in found and not found[parent].is_folder:
                del found[parent]
        found[item.path] = item
    return _drop_unreachable(found)


def _drop_unreachable(found: Mapping[str, ArchiveEntry]) -> list[ArchiveEntry]:
    """Sort by path, and drop entries below something that is not a folder.

    Such an entry cannot come from a real disk: it is an attempt to write through a link.
    """
    real = [e for e in found.values() if all(found[a].is_folder for a in list_parents(e.path) if a in found)]
    return sorted(real, key=lambda e: e.path)


# ---- slots with layers --------------------------------------------------------------------------------------------


def _get_layered(box: Sandbox) -> "ShellSandbox | None":
    from ludus.sandbox.shell_sandbox import ShellSandbox

    return box if isinstance(box, ShellSandbox) and box.changes_path else None


def _get_tree(box: Sandbox) -> str:
    from ludus.sandbox.shell_sandbox import ShellSandbox

    return box.tree if isinstance(box, ShellSandbox) else WORKSPACE


async def _clear_replaced(
    entries: Mapping[str, ArchiveEntry], box: "ShellSandbox", guard: Protection
) -> list[ArchiveEntry]:
    """Remove from a fresh slot what the agent has removed or replaced. Returns the entries that are to be written."""
    folders = await _list_paths(
        box, f"find {box.changes_path} -mindepth 1 -type d -print0", strip=f"{box.changes_path}/"
    )
    others = await _list_paths(
        box, f"find {box.changes_path} -mindepth 1 ! -type d -print0", strip=f"{box.changes_path}/"
    )
    agents = entries.values()
    roots = await _run_by_size(agents, lambda: _join_paths(find_obstacles(entries, folders, others)))
    search = "xargs -0 -r sh -c 'find \"$@\" -depth -print0 2>/dev/null; true' sh"
    found = await _list_paths(box, search, stdin=roots, strip="./")
    spared, removed = await _run_by_bytes(len(found) * 2**10, lambda: _split_spared(found, guard))
    await _list_paths(box, "xargs -0 -r rm -fd --", stdin=removed)
    return await _run_by_size(
        agents,
        lambda: _drop_unreachable(
            {p: e for p, e in entries.items() if not e.removed and (e.is_folder or p not in spared)}
        ),
    )


def _split_spared(paths: Sequence[str], guard: Protection) -> tuple[set[str], bytes]:
    """Return the paths that stay, since they or something below them is protected, and the others as input."""
    spared = {name for path in paths if guard.covers(path) for name in (path, *list_parents(path))}
    return spared, _join_paths(path for path in paths if path not in spared)


def find_obstacles(entries: Mapping[str, ArchiveEntry], folders: Sequence[str], others: Sequence[str]) -> list[str]:
    """List what must be removed from a fresh slot before the agent's changes are written.

    `folders` and `others` are what `setup` has changed in the fresh slot.
    """
    agents = [e.path for e in entries.values() if e.removed or e.opaque or not e.is_folder]
    changed = [path for path in others if path not in entries or entries[path].is_folder]
    changed += [path for path in folders if path not in entries]
    return list(dict.fromkeys([*agents, *changed]))


async def _list_paths(box: Sandbox, command: str, *, stdin: bytes = b"", strip: str = "") -> list[str]:
    """Return the paths that a command prints, each ended by a NUL."""
    fields = await _list_fields(box, command, stdin=stdin)
    return await _run_by_bytes(len(fields) * 2**10, lambda: [path.removeprefix(strip) for path in fields])


async def _list_fields(box: Sandbox, command: str, *, stdin: bytes = b"") -> list[str]:
    """Return the texts that a command prints, each ended by a NUL."""
    output = quote(box.resolve(_LIST_FILE))
    done = await box.exec(f"{{ {command}; }} >{output}", stdin=stdin, cwd=_get_tree(box), timeout=_LISTING_SECONDS)
    if done.exit_code != 0:
        raise SandboxError(f"the fresh slot's files could not be cleared: {done.text.strip()[-300:]}")
    data = await box.read(_LIST_FILE, max_bytes=_LISTING_BYTES)
    await box.exec(f"rm -f {output}")
    return await _run_by_bytes(
        len(data), lambda: [name.decode(errors="surrogateescape") for name in data.split(b"\0") if name]
    )


def _join_paths(paths: Iterable[str]) -> bytes:
    return b"".join(b"./%b\0" % path.encode(errors="surrogateescape") for path in paths)
