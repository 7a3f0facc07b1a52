"""A separate program: makes a listening socket in the network of another process and passes it to its parent.

    python port_child.py PID FD     # FD: an inherited unix socket, to which the listening socket is sent

Root may enter any network. A normal user may enter a network that belongs to a user namespace of that user, after
entering the user namespace. Root without capabilities, as in most containers, can do neither before it has become the
user that the slot runs as. The three ways are tried in this order. The program imports nothing of Ludus, so that it
starts fast: it runs once for each port.
"""

import ctypes
import fcntl
import os
import socket
import sys
from pathlib import Path

_NEW_USER, _NEW_NET = 0x1000_0000, 0x4000_0000
_GET_OWNER = 0xB701
"""The ioctl that returns the user namespace to which a namespace belongs (NS_GET_USERNS)."""
_BACKLOG = 128


def main(pid: int, reply_fd: int) -> None:
    try:
        _enter_network(pid)
    except PermissionError:
        _become_user(pid)
        _enter_network(pid)
    with socket.socket() as listening, socket.socket(fileno=reply_fd) as reply:
        listening.bind(("127.0.0.1", 0))
        listening.listen(_BACKLOG)
        socket.send_fds(reply, [b"."], [listening.fileno()])


def _enter_network(pid: int) -> None:
    """Move this process into the network of `pid`, unless it is already there."""
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if os.fstat(network).st_ino == Path("/proc/self/ns/net").stat().st_ino:
        return
    try:
        _set_namespace(network, _NEW_NET)
    except PermissionError:
        _set_namespace(fcntl.ioctl(network, _GET_OWNER), _NEW_USER)
        _set_namespace(network, _NEW_NET)


def _become_user(pid: int) -> None:
    """Switch from root to the user of the process `pid`."""
    found = Path(f"/proc/{pid}").stat()
    os.setgroups([])
    os.setresgid(found.st_gid, found.st_gid, found.st_gid)
    os.setresuid(found.st_uid, found.st_uid, found.st_uid)


def _set_namespace(fd: int, kind: int) -> None:
    """Call `setns`. Python has `os.setns` only since 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, kind) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), int(sys.argv[2]))
    except OSError as error:
        sys.exit(f"{type(error).__name__}: {error}")
