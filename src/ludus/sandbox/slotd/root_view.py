"""The file system view of a slot with an image: the container's whole root, of which the slot changes its own copy.

    changes   a file system in memory of limited size: what the slot has changed, as overlayfs writes it
    layer     folders and files that the slot needs and the image does not have; slotd's own folder is hidden by it
    /         the container's root: the image

The slot's user is root, with the rights of root over these files and over nothing else: it is in a user namespace that
knows the same users, while all other namespaces belong to slotd's. So it can install packages and change owners, but it
cannot mount, reach devices, trace processes or reach slotd. One user is missing in that namespace. It owns the slot's
copy of bash, which even the slot's root therefore cannot read (see `slot_dirs.py` for why that matters).
"""

from __future__ import annotations

import contextlib
import os
import signal

from ludus.sandbox import syscalls
from ludus.sandbox.slotd import mount_view
from ludus.sandbox.slotd.mount_view import FILES_PER_MB, IO, LIB, ViewOptions

CHANGES = "/run/ludus/changes"
MISSING_USER = 65_533
"""The user that the slot's namespace does not know."""
KEPT_CAPABILITIES = frozenset((0, 1, 3, 4, 5, 6, 7))
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID and SETUID: what package managers expect of root."""
_LAST_USER = 65_536
_CONTAINER_FILES = ("hosts", "hostname", "resolv.conf")
"""Files of /etc that an engine mounts into a container, so that they are empty in its own file system."""
_MASKED = ("acpi", "asound", "kcore", "keys", "latency_stats", "sched_debug", "scsi", "timer_list", "timer_stats")
"""Parts of /proc that say much about the host to a process whose user id is root's."""


def build_root_view(libc: syscalls.Libc, options: ViewOptions, changes: str, folder: str) -> None:
    """Build the view. The process needs a mount namespace of its own, and the right to mount.

    `changes`: an empty folder for the slot's changes. `folder`: the slot's working folder.
    """
    libc.mount("", "/", flags=syscalls.REC | syscalls.PRIVATE)
    size = f"mode=755,size={options.disk_mb}m,nr_inodes={options.disk_mb * FILES_PER_MB}"
    libc.mount("tmpfs", changes, "tmpfs", syscalls.NOSUID | syscalls.NODEV, size)
    layer, upper, work = (f"{changes}/{name}" for name in ("layer", "upper", "work"))
    for path in (layer, upper, work):
        os.mkdir(path)
    _fill_layer(layer, options, folder)
    layers = f"lowerdir={layer}:/,upperdir={upper},workdir={work},userxattr"
    libc.mount("overlay", options.root, "overlay", syscalls.NOSUID | syscalls.NODEV, layers)
    for source, target in ((options.lib, LIB), (options.io, IO), (upper, CHANGES), *options.mounts):
        libc.mount(source, options.root + target, flags=syscalls.BIND | syscalls.REC)
        mount_view.remount_read_only(libc, options.root + target, syscalls.NOSUID | syscalls.NODEV)
    mount_view.mount_devices(libc, options.root + "/dev")
    os.chdir(options.root)
    libc.mount(options.root, "/", flags=syscalls.MOVE)


def _fill_layer(layer: str, options: ViewOptions, folder: str) -> None:
    for path in ("/proc", "/dev", LIB, IO, CHANGES):
        os.makedirs(layer + path, exist_ok=True)
    for path in (folder, "/tmp", "/root", "/etc"):
        if path == "/etc" or not os.path.isdir(path):
            os.makedirs(layer + path, exist_ok=True)
            os.chmod(layer + path, {"/tmp": 0o1777, "/root": 0o700}.get(path, 0o755))
    for source, target in options.mounts:
        if os.path.isdir(source):
            os.makedirs(layer + target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(layer + target), exist_ok=True)
            mount_view.touch(layer + target)
    for name in _CONTAINER_FILES:
        with contextlib.suppress(OSError), open(f"/etc/{name}", "rb") as file:
            text = file.read()
            with open(f"{layer}/etc/{name}", "wb") as copy:
                copy.write(text)
    if options.hidden:
        os.makedirs(os.path.dirname(layer + options.hidden), exist_ok=True)
        os.mknod(layer + options.hidden, 0o020000, os.makedev(0, 0))  # overlayfs then hides what is below


def set_up_proc(libc: syscalls.Libc, *, own_network: bool) -> None:
    """Make the /proc that was just mounted read-only, and hide parts of it."""
    if own_network:
        with contextlib.suppress(OSError):  # root expects that it may listen on any port
            syscalls.write_proc_file("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")
    mount_view.remount_read_only(libc, "/proc", syscalls.NOSUID | syscalls.NODEV | syscalls.NOEXEC)
    for name in _MASKED:
        path = f"/proc/{name}"
        if os.path.isdir(path):
            flags = syscalls.RDONLY | syscalls.NOSUID | syscalls.NODEV | syscalls.NOEXEC
            libc.mount("tmpfs", path, "tmpfs", flags, "mode=000,size=4k,nr_inodes=1")
        elif os.path.exists(path):
            libc.mount("/dev/null", path, flags=syscalls.BIND)


def make_user_namespace(libc: syscalls.Libc) -> int:
    """Make the user namespace of a slot. Returns its descriptor.

    The process that enters a new namespace may not say which users it knows. So a child makes it, and this process,
    which has the right to, writes the list.
    """
    made, making = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            libc.unshare(syscalls.NEWUSER)
            os.write(making, b"+")
            signal.pause()
        finally:
            os._exit(1)
    try:
        os.close(making)
        if os.read(made, 1) != b"+":
            raise OSError("a user namespace cannot be made")
        for kind in ("uid", "gid"):
            with open(f"/proc/self/{kind}_map", encoding="ascii") as file:
                ranges = list_ranges(file.read())
            syscalls.write_proc_file(f"/proc/{child}/{kind}_map", ranges)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(made)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def list_ranges(known: str) -> str:
    """The users that a slot's namespace knows, in the kernel's format: those that this one knows, by its own list, up
    to 65,535, each as itself, without `MISSING_USER`."""
    lines: list[str] = []
    for line in known.splitlines():
        first, _, count = map(int, line.split())
        for start, end in ((first, MISSING_USER), (max(first, MISSING_USER + 1), _LAST_USER)):
            end = min(end, first + count)
            if start < end:
                lines.append(f"{start} {start} {end - start}")
    return "\n".join(lines)
