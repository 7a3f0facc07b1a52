"""Folders that slots start from, without a copy for each slot.

A slot with a `base` sees it through an overlay in its own mount namespace: what it changes goes to a file system of
limited size in memory, and is gone with the slot. Starting, resetting and forking such a slot takes the same few
milliseconds whatever the size of the base. A snapshot is one more layer, with only what has changed, on the host's
disk; it is full of the agent's files and is read by slots alone.

The kernel lets a slot change a file of a layer only if the file's owner is the slot's user. A driver that is not root
is that user, and its folders are used as they are. A root driver gives each base a user number of its own, which all
slots of that base share, and copies the base once, for it must not change the owner of what it was given. If the base
changes on the host's side afterwards, the copy does not.
"""

import asyncio
import os
import shutil
import stat
from pathlib import Path

from ludus.errors import SandboxError
from ludus.sandbox.archive import entries, extract
from ludus.sandbox.local.host_dir import HostDir, open_folder


class Layers:
    """The layers of one pool."""

    def __init__(self, host: HostDir, new_user: "int | None") -> None:
        self._folder = host.path / "layers"
        self._folder.mkdir(mode=0o711)
        self._folder.chmod(0o711)
        self.changes = self._folder / "changes"
        """Empty folders: each slot has a file system of its own there, in its own view of the host."""
        open_folder(self.changes / "upper")
        open_folder(self.changes / "work")
        self._next_user = new_user
        self._users: dict[str, int | None] = {}
        """The user that a layer of ours belongs to, by its path."""
        self._owners: dict[str, int | None] = {}
        """The user of slots that start from a folder of the host, by its path."""
        self._imported: dict[tuple[str, int], str] = {}
        self._lock = asyncio.Lock()
        self._made = 0

    async def ready(self, base: tuple[str, ...]) -> tuple[tuple[str, ...], int | None]:
        """The layers as slots can use them, and the user that they belong to."""
        if not base:
            return (), None
        async with self._lock:
            ours = [self._users[b] for b in base if b in self._users]
            user = ours[0] if ours else self._owner(base[0])
            return tuple([b if b in self._users else await self._import(b, user) for b in base]), user

    async def save(self, changes: bytes, base: tuple[str, ...]) -> str:
        """A new layer of what a slot changed on top of `base`."""
        _, user = await self.ready(base) if base else ((), self._take_user())
        folder = self._new_folder()
        try:
            await asyncio.to_thread(_lay_layer, changes, folder, user)
        except (OSError, ValueError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise SandboxError(f"no snapshot could be made: {error}") from error
        self._users[str(folder)] = user
        return str(folder)

    async def _import(self, base: str, user: int | None) -> str:
        if user is None:
            return base
        if (base, user) not in self._imported:
            folder = self._new_folder()
            try:
                await asyncio.to_thread(_copy_for, Path(base), folder, user)
            except (OSError, shutil.Error) as error:
                shutil.rmtree(folder, ignore_errors=True)
                raise SandboxError(f"sandbox.base '{base}' cannot be used: {error}", retryable=False) from error
            self._users[str(folder)] = user
            self._imported[base, user] = str(folder)
        return self._imported[base, user]

    def _owner(self, base: str) -> int | None:
        if base not in self._owners:
            self._owners[base] = self._take_user()
        return self._owners[base]

    def _take_user(self) -> int | None:
        if self._next_user is None:
            return None
        self._next_user += 1
        return self._next_user

    def _new_folder(self) -> Path:
        self._made += 1
        return self._folder / str(self._made)


def _copy_for(base: Path, folder: Path, user: int) -> None:
    shutil.copytree(base, folder, symlinks=True)
    _give(folder, user)


def _lay_layer(changes: bytes, folder: Path, user: int | None) -> None:
    extract(entries(changes, layer=True), folder, all_links=True)
    if user is not None:
        _give(folder, user)


def _give(folder: Path, user: int) -> None:
    """Make everything the user's own. Set-user-id bits would now be another's, and go."""
    for root, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            path = os.path.join(root, name)  # noqa: PTH118 - a hundred thousand of them
            status = os.lstat(path)
            os.lchown(path, user, user)
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o6000:
                os.chmod(path, status.st_mode & 0o777)  # noqa: PTH101
