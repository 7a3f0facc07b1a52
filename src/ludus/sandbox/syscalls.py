"""System calls that Python's standard library lacks, through ctypes, and small steps made of calls that it has."""

import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, NOATIME, NODIRATIME = 1, 2, 4, 8, 32, 1024, 2048
BIND, MOVE, REC, PRIVATE, RELATIME = 4096, 8192, 16384, 1 << 18, 1 << 21
_DETACH = 2
_PDEATHSIG, _DUMPABLE, _SECCOMP, _CAPBSET_DROP, _SUBREAPER, _NO_NEW_PRIVS = 1, 4, 22, 24, 36, 38
_SECCOMP_FILTER = 2
_LAST_CAP = 63
_CAPABILITY_VERSION = 0x20080522
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


class Libc:
    """The C library of this process."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL(None, use_errno=True)

    def unshare(self, flags: int) -> None:
        self._call("unshare", flags)

    def enter(self, namespace: int) -> None:
        """Enter the namespace of a descriptor. Of a pid namespace, only processes started later are members."""
        self._call("setns", namespace, 0)

    def mount(self, source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
        text = [os.fsencode(part) or None for part in (source, target, kind, options)]
        self._call("mount", text[0], text[1], text[2], ctypes.c_ulong(flags), text[3], what=target)

    def detach(self, target: str) -> None:
        self._call("umount2", os.fsencode(target), _DETACH, what=target)

    def sethostname(self, name: str) -> None:
        self._call("sethostname", name.encode(), ctypes.c_size_t(len(name)))

    def die_with_parent(self) -> None:
        """Have the kernel send SIGKILL when the parent dies. A change of user undoes this, so call it afterwards."""
        self._prctl(_PDEATHSIG, 9)

    def adopt_orphans(self) -> None:
        """Become the parent of descendants whose own parent has died."""
        self._prctl(_SUBREAPER, 1)

    def hide_memory(self) -> None:
        """Keep other processes of the same user from tracing this one, and from reading its memory and descriptors."""
        self._prctl(_DUMPABLE, 0)

    def drop_capabilities(self) -> None:
        """Give up all capabilities. A program that is started afterwards has none either, unless its user is root."""
        header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
        self._call("capset", ctypes.create_string_buffer(header, len(header)), ctypes.create_string_buffer(24))

    def allow_proc_writes(self) -> None:
        """Let this process write to its own files in /proc again, after a change of user."""
        self._prctl(_DUMPABLE, 1)

    def forbid_new_privileges(self) -> None:
        self._prctl(_NO_NEW_PRIVS, 1)

    def drop_bounding_set(self, keep: Collection[int] = ()) -> None:
        """Keep any program from regaining a capability. Needs CAP_SETPCAP; without it only the other barriers hold."""
        for capability in (number for number in range(_LAST_CAP + 1) if number not in keep):
            try:
                self._prctl(_CAPBSET_DROP, capability)
            except OSError as error:
                if error.errno == errno.EINVAL:  # past the last one
                    return
                if error.errno != errno.EPERM:
                    raise

    def filter_calls(self, program: bytes) -> None:
        """Install a system-call filter for this process and all it starts. Needs `no_new_privileges`."""
        steps = ctypes.create_string_buffer(program, len(program))
        fprog = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(steps))
        argument = ctypes.create_string_buffer(fprog, len(fprog))
        zero = ctypes.c_ulong(0)
        self._call("prctl", _SECCOMP, ctypes.c_ulong(_SECCOMP_FILTER), argument, zero, zero)

    def _prctl(self, option: int, value: int) -> None:
        zero = ctypes.c_ulong(0)
        self._call("prctl", option, ctypes.c_ulong(value), zero, zero, zero)

    def _call(self, name: str, *arguments: Any, what: str = "") -> None:
        if getattr(self._lib, name)(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}", what or None)


def change_user(user: int) -> None:
    """Become a user for good, with a group of the same number and no other."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def write_proc_file(path: str, text: str) -> None:
    """Write a file of /proc, which must be one call and must not create anything."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def start_loopback() -> None:
    """Start the loopback device of a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack_from("16sh", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def list_mounts_below(folder: str) -> list[tuple[str, int]]:
    """Mount points in `folder` (itself not included) with the flags that they have, outermost first."""
    known = {"ro": RDONLY, "nosuid": NOSUID, "nodev": NODEV, "noexec": NOEXEC}
    known.update(noatime=NOATIME, nodiratime=NODIRATIME, relatime=RELATIME)
    found: list[tuple[str, int]] = []
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        fields = line.split(" ")
        point = _unescape(fields[4])
        if point.startswith(folder + "/"):
            found.append((point, sum(known.get(option, 0) for option in fields[5].split(","))))
    return found


def _unescape(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
