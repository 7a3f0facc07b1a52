"""Folders that slots start with, without a copy for each slot.

A slot with a `base` sees it through an overlay in its own mount namespace. Its changes go to a file system of limited
size in memory, which ends with the slot. Starting, resetting and forking such a slot takes the same few milliseconds,
whatever the size of the base. A snapshot is one more layer on the host's disk, with only the changes. It holds the
agent's files, and only slots read it.

The kernel lets a slot change a file of a layer only if the slot's user owns the file. A driver that is not root is that
user, and its folders are used as they are. A driver that is root samples a user id for each base, which all slots of
that base share, and copies the base once, because it must not change the owner of the original. Later changes to the
base on the host do not affect the copy.
"""

import asyncio
import os
import shutil
import stat
from pathlib import Path

from ludus.errors import SandboxError
from ludus.sandbox.archive import extract_entries, read_entries
from ludus.sandbox.local.host_dir import HostDir, make_open_folder


class Layers:
    """The layers of one pool."""

    def __init__(self, host: HostDir, new_user: "int | None") -> None:
        self._folder = host.path / "layers"
        self._folder.mkdir(mode=0o711)
        self._folder.chmod(0o711)
        self.changes = self._folder / "changes"
        """Empty folders. Each slot mounts a file system of its own there, visible to that slot only."""
        make_open_folder(self.changes / "upper")
        make_open_folder(self.changes / "work")
        self._next_user = new_user
        self._users: dict[str, int | None] = {}
        """The owner of each layer made here, by its path."""
        self._owners: dict[str, int | None] = {}
        """The user of the slots that start with a folder of the host, by its path."""
        self._imported: dict[tuple[str, int], str] = {}
        self._lock = asyncio.Lock()
        self._made = 0

    async def prepare(self, base: tuple[str, ...]) -> tuple[tuple[str, ...], int | None]:
        """Prepare layers for slots. Returns the folders to use and their owner."""
        if not base:
            return (), None
        async with self._lock:
            ours = [self._users[b] for b in base if b in self._users]
            user = ours[0] if ours else self._find_owner(base[0])
            return tuple([b if b in self._users else await self._import_base(b, user) for b in base]), user

    async def save(self, changes: bytes, base: tuple[str, ...]) -> str:
        """Save a slot's changes on top of `base` as a new layer. Returns its path."""
        _, user = await self.prepare(base) if base else ((), self._take_user())
        folder = self._make_path()
        try:
            await asyncio.to_thread(_write_layer, changes, folder, user)
        except (OSError, ValueError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise SandboxError(f"no snapshot could be made: {error}") from error
        self._users[str(folder)] = user
        return str(folder)

    async def _import_base(self, base: str, user: int | None) -> str:
        if user is None:
            return base
        if (base, user) not in self._imported:
            folder = self._make_path()
            try:
                await asyncio.to_thread(_copy_base, Path(base), folder, user)
            except (OSError, shutil.Error) as error:
                shutil.rmtree(folder, ignore_errors=True)
                raise SandboxError(f"sandbox.base '{base}' cannot be used: {error}", retryable=False) from error
            self._users[str(folder)] = user
            self._imported[base, user] = str(folder)
        return self._imported[base, user]

    def _find_owner(self, base: str) -> int | None:
        if base not in self._owners:
            self._owners[base] = self._take_user()
        return self._owners[base]

    def _take_user(self) -> int | None:
        if self._next_user is None:
            return None
        self._next_user += 1
        return self._next_user

    def _make_path(self) -> Path:
        self._made += 1
        return self._folder / str(self._made)


def _copy_base(base: Path, folder: Path, user: int) -> None:
    shutil.copytree(base, folder, symlinks=True)
    change_owner(folder, user)


def _write_layer(changes: bytes, folder: Path, user: int | None) -> None:
    extract_entries(read_entries(changes, layer=True), folder, all_links=True)
    if user is not None:
        change_owner(folder, user)


def change_owner(folder: Path, user: int) -> None:
    """Make `user` the owner of everything in a folder. Set-user-id bits are removed: they would now be this user's."""
    for root, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            path = os.path.join(root, name)  # noqa: PTH118 - a hundred thousand of them
            status = os.lstat(path)
            os.lchown(path, user, user)
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o6000:
                os.chmod(path, status.st_mode & 0o777)  # noqa: PTH101
