"""What a slot sees when it has a mount namespace: built by its first process, before it gives up every right.

Two views. `image`: everything in the container, read-only. `system`: only the folders of a host that programs live in,
so that the homes and services of a host are out of sight. Over either lie the slot's own `/workspace`, `/tmp` and home,
of limited size, its own `/proc`, a `/dev` with harmless devices, and `/run/ludus` with the scripts and input of its
shell.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from ludus.sandbox.slotd import syscalls as linux

HOME = "/home/agent"
LIB = "/run/ludus/lib"
IO = "/run/ludus/io"
WORKSPACE = "/workspace"
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "opt", "nix", "gnu")
_OWN = ("proc", "sys", "dev", "tmp", "run", "home", "workspace")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_SHM_MB = 64
_FILES_PER_MB = 1024


class Sight(NamedTuple):
    """What one slot is to see."""

    root: str
    """An empty folder that becomes the slot's root."""
    view: str
    lib: str
    io: str
    etc: str
    """A folder of files that replace those of the same name in /etc."""
    owner: int
    """The slot's user, as it is numbered where the view is built."""
    disk_mb: int
    mounts: tuple[tuple[str, str], ...] = ()
    """Folders (source, target) that are shown as well."""


def build(libc: linux.Libc, sight: Sight) -> None:
    """Make the view and change into it. Needs a mount and a pid namespace of its own, and the right to mount."""
    libc.mount("", "/", flags=linux.REC | linux.PRIVATE)
    _tmpfs(libc, sight.root, "mode=755,size=1m")
    _show(libc, sight)
    for point, flags in linux.mounts_below(sight.root):
        _close(libc, point, flags)
    _own_files(libc, sight)
    _devices(libc, sight.root + "/dev")
    os.mkdir(sight.root + "/proc")
    libc.mount("proc", sight.root + "/proc", "proc", linux.NOSUID | linux.NODEV | linux.NOEXEC)
    _remount(libc, sight.root, linux.NOSUID | linux.NODEV)
    os.chdir(sight.root)
    libc.mount(sight.root, "/", flags=linux.MOVE)
    os.chroot(".")
    os.chdir(WORKSPACE)


def _show(libc: linux.Libc, sight: Sight) -> None:
    names = _SYSTEM if sight.view == "system" else [name for name in os.listdir("/") if name not in _OWN]
    for name in names:
        if os.path.lexists(f"/{name}"):
            _bind(libc, f"/{name}", f"{sight.root}/{name}")
    os.mkdir(sight.root + "/home", 0o755)
    if sight.view != "system" and os.path.isdir("/home"):
        for name in os.listdir("/home"):
            if f"/home/{name}" != HOME:
                _bind(libc, f"/home/{name}", f"{sight.root}/home/{name}")
    for source, target in sight.mounts:
        os.makedirs(sight.root + target, exist_ok=True)
        libc.mount(source, sight.root + target, flags=linux.BIND | linux.REC)


def _bind(libc: linux.Libc, source: str, target: str) -> None:
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        _touch(target)
    libc.mount(source, target, flags=linux.BIND | linux.REC)


def _close(libc: linux.Libc, point: str, flags: int) -> None:
    """Make a mount read-only; one that will not be is taken out of sight."""
    try:
        _remount(libc, point, flags | linux.NOSUID | linux.NODEV)
    except OSError:
        libc.detach(point)


def _remount(libc: linux.Libc, point: str, flags: int) -> None:
    libc.mount("", point, flags=linux.REMOUNT | linux.BIND | linux.RDONLY | flags)


def _own_files(libc: linux.Libc, sight: Sight) -> None:
    root, owner = sight.root, f"uid={sight.owner},gid={sight.owner}"
    room = f"size={sight.disk_mb}m,nr_inodes={sight.disk_mb * _FILES_PER_MB}"
    for path, options in (("/tmp", "mode=1777"), (HOME, f"mode=700,{owner}"), (WORKSPACE, f"mode=755,{owner}")):
        os.mkdir(root + path)
        _tmpfs(libc, root + path, f"{options},{room}")
    if not os.path.lexists(root + "/var"):
        os.mkdir(root + "/var")
        os.symlink("/tmp", root + "/var/tmp")
    elif os.path.isdir(root + "/var/tmp"):
        libc.mount(root + "/tmp", root + "/var/tmp", flags=linux.BIND)
    os.mkdir(root + "/run")
    for source, target in ((sight.lib, LIB), (sight.io, IO)):
        os.makedirs(root + target)
        libc.mount(source, root + target, flags=linux.BIND)
        _remount(libc, root + target, linux.NOSUID | linux.NODEV)
    for name in os.listdir(sight.etc):
        if os.path.isfile(f"{root}/etc/{name}"):
            libc.mount(f"{sight.etc}/{name}", f"{root}/etc/{name}", flags=linux.BIND)
            _remount(libc, f"{root}/etc/{name}", linux.NOSUID | linux.NODEV)


def _devices(libc: linux.Libc, dev: str) -> None:
    os.mkdir(dev)
    _tmpfs(libc, dev, "mode=755,size=64k")
    for name in _DEVICES:
        if os.path.exists(f"/dev/{name}"):
            _touch(f"{dev}/{name}")
            libc.mount(f"/dev/{name}", f"{dev}/{name}", flags=linux.BIND)
    for name, target in (("fd", "self/fd"), ("stdin", "self/fd/0"), ("stdout", "self/fd/1"), ("stderr", "self/fd/2")):
        os.symlink(f"/proc/{target}", f"{dev}/{name}")
    os.mkdir(dev + "/shm")
    _tmpfs(libc, dev + "/shm", f"mode=1777,size={_SHM_MB}m,nr_inodes={_SHM_MB * _FILES_PER_MB}")
    os.mkdir(dev + "/pts")
    with contextlib.suppress(OSError):  # then there are no terminals; nothing of ours needs one
        libc.mount("devpts", dev + "/pts", "devpts", linux.NOSUID | linux.NOEXEC, "newinstance,ptmxmode=0666,mode=620")
        os.symlink("pts/ptmx", dev + "/ptmx")
    _remount(libc, dev, linux.NOSUID)


def _tmpfs(libc: linux.Libc, target: str, options: str) -> None:
    libc.mount("tmpfs", target, "tmpfs", linux.NOSUID | linux.NODEV, options)


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
