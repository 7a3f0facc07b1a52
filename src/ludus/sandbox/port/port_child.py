"""A program of its own: make a listening socket in the network of another process, and hand it over.

    python doorstep.py PID FD     # FD: a unix socket that is inherited, and takes the listening one

Whoever may enter a network is its owner's business. Root may enter any. A normal user may enter those that belong to a
user namespace which that user made, after entering the user namespace. Root without its powers, as in most containers,
may do neither until it has become the user that the slot runs as. The three are tried in this order. Nothing of the
project is imported: this starts once for each slot with a door.
"""

import ctypes
import fcntl
import os
import socket
import sys
from pathlib import Path

_NEW_USER, _NEW_NET = 0x1000_0000, 0x4000_0000
_GET_OWNER = 0xB701
"""The request that gives the user namespace which a namespace belongs to."""
_BACKLOG = 128


def main(pid: int, handover: int) -> None:
    try:
        _enter(pid)
    except PermissionError:
        _become(pid)
        _enter(pid)
    with socket.socket() as door, socket.socket(fileno=handover) as link:
        door.bind(("127.0.0.1", 0))
        door.listen(_BACKLOG)
        socket.send_fds(link, [b"."], [door.fileno()])


def _enter(pid: int) -> None:
    """Move this process into the network of `pid`, unless it is there."""
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if os.fstat(network).st_ino == Path("/proc/self/ns/net").stat().st_ino:
        return
    try:
        _set_namespace(network, _NEW_NET)
    except PermissionError:
        _set_namespace(fcntl.ioctl(network, _GET_OWNER), _NEW_USER)
        _set_namespace(network, _NEW_NET)


def _become(pid: int) -> None:
    """Turn from root into the user that `pid` runs as."""
    found = Path(f"/proc/{pid}").stat()
    os.setgroups([])
    os.setresgid(found.st_gid, found.st_gid, found.st_gid)
    os.setresuid(found.st_uid, found.st_uid, found.st_uid)


def _set_namespace(fd: int, kind: int) -> None:
    """`os.setns`, which Python has from 3.12 on only."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, kind) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), int(sys.argv[2]))
    except OSError as error:
        sys.exit(f"{type(error).__name__}: {error}")
