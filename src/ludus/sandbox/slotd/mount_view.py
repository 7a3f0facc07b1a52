"""The file system view of a slot with a mount namespace. The process that makes the namespace builds it.

There are two views here; slots with an image have a third one (`root_view.py`). `image` shows everything in the
container, read-only. `system` shows only the folders of a host that hold programs, so that the host's homes and
services are hidden. On top of either, the slot has its own `/workspace`, `/tmp` and home of limited size, a `/dev` with
harmless devices, and `/run/ludus` with the scripts and the input of its shell. slotd's own folder is hidden. `/proc` is
empty here: it belongs to a pid namespace, whose first process mounts it.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from ludus.sandbox import syscalls

HOME = "/home/agent"
LIB = "/run/ludus/lib"
IO = "/run/ludus/io"
WORKSPACE = "/workspace"
FOLDERS = ".folders"
"""The folder in home that holds further folders of a slot."""
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "opt", "nix", "gnu")
_OWN = ("proc", "sys", "dev", "tmp", "run", "home", "workspace")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_EMPTY = syscalls.RDONLY | syscalls.NOSUID | syscalls.NODEV | syscalls.NOEXEC
_SHM_MB = 64
FILES_PER_MB = 1024


class ViewOptions(NamedTuple):
    """The view of one slot."""

    root: str
    """An empty folder that becomes the slot's root."""
    view: str
    lib: str
    io: str
    etc: str
    """A folder of files that replace the files of the same name in /etc."""
    owner: int
    """The slot's user id, as seen by the process that builds the view."""
    disk_mb: int
    hidden: str = ""
    """A folder that the slot must not see."""
    mounts: tuple[tuple[str, str], ...] = ()
    """More folders (source, target) to show."""
    folders: tuple[str, ...] = ()
    """More folders that the slot may write to."""


def build_view(libc: syscalls.Libc, options: ViewOptions) -> None:
    """Build the view. The process needs a mount namespace of its own, and the right to mount."""
    libc.mount("", "/", flags=syscalls.REC | syscalls.PRIVATE)
    _mount_tmpfs(libc, options.root, "mode=755,size=1m")
    _bind_visible(libc, options)
    for point, flags in syscalls.list_mounts_below(options.root):
        _make_read_only(libc, point, flags)
    _mount_own_files(libc, options)
    for folder in options.folders:
        _mount_folder(libc, options, folder)
    mount_devices(libc, options.root + "/dev")
    os.mkdir(options.root + "/proc")
    if options.hidden and os.path.isdir(options.root + options.hidden):
        libc.mount("tmpfs", options.root + options.hidden, "tmpfs", _EMPTY, "mode=000,size=4k,nr_inodes=1")
    remount_read_only(libc, options.root, syscalls.NOSUID | syscalls.NODEV)
    os.chdir(options.root)
    libc.mount(options.root, "/", flags=syscalls.MOVE)  # who enters the namespace later has it as root


def _bind_visible(libc: syscalls.Libc, options: ViewOptions) -> None:
    names = _SYSTEM if options.view == "system" else [name for name in os.listdir("/") if name not in _OWN]
    for name in names:
        if os.path.lexists(f"/{name}"):
            _bind(libc, f"/{name}", f"{options.root}/{name}")
    os.mkdir(options.root + "/home", 0o755)
    if options.view != "system" and os.path.isdir("/home"):
        for name in os.listdir("/home"):
            if f"/home/{name}" != HOME:
                _bind(libc, f"/home/{name}", f"{options.root}/home/{name}")
    for source, target in options.mounts:
        os.makedirs(options.root + target, exist_ok=True)
        libc.mount(source, options.root + target, flags=syscalls.BIND | syscalls.REC)


def _bind(libc: syscalls.Libc, source: str, target: str) -> None:
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        touch(target)
    libc.mount(source, target, flags=syscalls.BIND | syscalls.REC)


def _make_read_only(libc: syscalls.Libc, point: str, flags: int) -> None:
    """Make a mount read-only, or detach it if that fails."""
    try:
        remount_read_only(libc, point, flags | syscalls.NOSUID | syscalls.NODEV)
    except OSError:
        libc.detach(point)


def remount_read_only(libc: syscalls.Libc, point: str, flags: int) -> None:
    libc.mount("", point, flags=syscalls.REMOUNT | syscalls.BIND | syscalls.RDONLY | flags)


def _mount_own_files(libc: syscalls.Libc, options: ViewOptions) -> None:
    root, owner = options.root, f"uid={options.owner},gid={options.owner}"
    size = f"size={options.disk_mb}m,nr_inodes={options.disk_mb * FILES_PER_MB}"
    for path, mode in (("/tmp", "mode=1777"), (HOME, f"mode=700,{owner}"), (WORKSPACE, f"mode=755,{owner}")):
        os.mkdir(root + path)
        _mount_tmpfs(libc, root + path, f"{mode},{size}")
    if not os.path.lexists(root + "/var"):
        os.mkdir(root + "/var")
        os.symlink("/tmp", root + "/var/tmp")
    elif os.path.isdir(root + "/var/tmp"):
        libc.mount(root + "/tmp", root + "/var/tmp", flags=syscalls.BIND)
    os.mkdir(root + "/run")
    for source, target in ((options.lib, LIB), (options.io, IO)):
        os.makedirs(root + target)
        libc.mount(source, root + target, flags=syscalls.BIND)
        remount_read_only(libc, root + target, syscalls.NOSUID | syscalls.NODEV)
    for name in os.listdir(options.etc):
        if os.path.isfile(f"{root}/etc/{name}"):
            libc.mount(f"{options.etc}/{name}", f"{root}/etc/{name}", flags=syscalls.BIND)
            remount_read_only(libc, f"{root}/etc/{name}", syscalls.NOSUID | syscalls.NODEV)


def _mount_folder(libc: syscalls.Libc, options: ViewOptions, folder: str) -> None:
    """Show a folder of home at another place."""
    place = f"{options.root}{HOME}/{FOLDERS}{folder}"
    os.makedirs(place)
    os.chown(place, options.owner, options.owner)
    os.makedirs(options.root + folder, exist_ok=True)
    libc.mount(place, options.root + folder, flags=syscalls.BIND)


def mount_devices(libc: syscalls.Libc, dev: str) -> None:
    """Mount a /dev with harmless devices, shared memory and terminals of its own."""
    os.makedirs(dev, exist_ok=True)
    _mount_tmpfs(libc, dev, "mode=755,size=64k")
    for name in _DEVICES:
        if os.path.exists(f"/dev/{name}"):
            touch(f"{dev}/{name}")
            libc.mount(f"/dev/{name}", f"{dev}/{name}", flags=syscalls.BIND)
    for name, target in (("fd", "self/fd"), ("stdin", "self/fd/0"), ("stdout", "self/fd/1"), ("stderr", "self/fd/2")):
        os.symlink(f"/proc/{target}", f"{dev}/{name}")
    os.mkdir(dev + "/shm")
    _mount_tmpfs(libc, dev + "/shm", f"mode=1777,size={_SHM_MB}m,nr_inodes={_SHM_MB * FILES_PER_MB}")
    os.mkdir(dev + "/pts")
    with contextlib.suppress(OSError):  # without it the slot has no terminals, which is acceptable
        libc.mount(
            "devpts", dev + "/pts", "devpts", syscalls.NOSUID | syscalls.NOEXEC, "newinstance,ptmxmode=0666,mode=620"
        )
        os.symlink("pts/ptmx", dev + "/ptmx")
    remount_read_only(libc, dev, syscalls.NOSUID)


def _mount_tmpfs(libc: syscalls.Libc, target: str, options: str) -> None:
    libc.mount("tmpfs", target, "tmpfs", syscalls.NOSUID | syscalls.NODEV, options)


def touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
