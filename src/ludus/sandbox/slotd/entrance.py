"""How a slot's first process comes to be, and what keeps slots apart. Three ways, best first:

`namespaces`  Mount, pid, ipc, uts and (unless the network is allowed) net namespaces, a view of its own, no capability,
              no new privileges. Made in a user namespace where that is allowed, else with slotd's own CAP_SYS_ADMIN.
              When slotd is root, each slot has a user number that nobody else has.
`user`        slotd is root but may not make namespaces, as in a container with default rights: a user number of its own
              per slot, so that it can neither signal nor read slotd or other slots. Files that everyone may read,
              and the network, are shared with the rest of the container.
`none`        slotd is an ordinary user, or the slot has to be root: order, not safety, as with the backend `local`.

The first process is the slot's supervisor (`slot_scripts/supervisor.sh`). The agent cannot kill it: it is pid 1 of the
namespace, or belongs to root (only the shell it starts is the slot's user). With `none`, it can.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import struct
import traceback
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from ludus.sandbox import seccomp
from ludus.sandbox.processes import descendants, is_dead, kill_trees
from ludus.sandbox.slotd import mount_view as view
from ludus.sandbox.slotd import syscalls as linux

NAMESPACES, USER, NONE = "namespaces", "user", "none"
MARK = "LUDUS_SLOT"
"""The variable by which processes of a slot are found that has nothing else of its own."""
_INNER_USER = 1000
"""The slot's user as it sees itself in a user namespace."""
_HIGH_USERS, _LOW_USERS = (0x7000_0000, 0x0FFF_0000), (20_000, 40_000)
"""Where user numbers are drawn from: far from those that systems give out; low where a container has only 65,536."""


class Way(NamedTuple):
    """How slots are made here."""

    isolation: str
    in_user_namespace: bool = False
    own_users: bool = False
    """Each slot has a user number of its own. Takes a root who can change to any number."""
    why: str = ""
    """Why not better."""


class Place(NamedTuple):
    """What the first process of one slot is told."""

    user: int
    """The slot's user, as slotd numbers it; slotd's own where the slot has none of its own."""
    network: bool
    sight: view.Sight
    stdin: int
    stdout: int
    stderr: int
    passed: tuple[int, ...]
    """Descriptors that it keeps."""


class Started(NamedTuple):
    """A slot's first process."""

    first: int
    """Its number here; 0 if it did not come to be."""
    inside: socket.socket | None = None
    """A socket made in the slot's network, neither bound nor connected, where it has a network of its own."""


class Entrance:
    """Starts first processes the way it is done here."""

    def __init__(self, libc: linux.Libc | None, way: Way) -> None:
        self._libc = libc
        self._way = way

    @property
    def way(self) -> Way:
        return self._way

    def inner_user(self, user: int) -> int:
        """How a slot's user is numbered for itself."""
        return _INNER_USER if self._way.in_user_namespace else user

    def start(self, place: Place, program: str, arguments: list[str], environment: dict[str, str]) -> Started:
        """Start a slot's first process. If it fails, it says why on its stderr and ends."""

        def become() -> NoReturn:
            os.execve(program, arguments, environment)

        if self._way.isolation == NAMESPACES:
            assert self._libc is not None
            return _spawn_inside(self._libc, self._way, place, become)
        return _spawn_beside(self._libc, self._way, place, become)

    def sweep(self, user: int, mark: str, first: int, *, spare_first: bool) -> None:
        """Kill a slot's processes, with or without its first one. Needed only where there is no pid namespace.

        They are those below the first, and those of the slot's user; where it has none of its own, those that carry its
        mark. A process that clears its environment *and* outlives a killed first process escapes.
        """
        for _ in range(100):  # bounded: something may fork faster than it is killed
            others = _processes_of(user) if self._way.own_users else _marked(mark)
            left = {pid for pid in (*descendants([first]), *others) if not is_dead(pid)}
            left -= {first} if spare_first else set()
            if not left:
                return
            if self._way.own_users:
                _kill_all_of(user)
            kill_trees(lambda left=left: left)


def new_user() -> int:
    """A user number that nobody has. Only root may give one."""
    start, size = _HIGH_USERS
    user = start + secrets.randbelow(size)
    fd = os.memfd_create("probe")
    try:
        os.fchown(fd, user, user)
    except OSError:
        start, size = _LOW_USERS
        return start + secrets.randbelow(size)
    finally:
        os.close(fd)
    return user


# ---- finding the way ----------------------------------------------------------------------------------------------


def find_entrance(*, as_root: bool, probe: Callable[[Entrance], str]) -> Entrance:
    """The best way that works here. `probe` starts a slot for a moment and returns what went wrong, if anything."""
    try:
        libc = linux.Libc()
        libc.adopt_orphans()
    except (ImportError, OSError, AttributeError) as error:
        return Entrance(None, Way(NONE, why=f"no system calls through ctypes: {error}"))
    if as_root:
        return Entrance(libc, Way(NONE, why="slots run as root"))
    why = "namespaces are not allowed here"
    for way in _WAYS:
        if way.own_users and os.geteuid() != 0:
            continue
        entrance = Entrance(libc, way._replace(why="" if way.isolation == NAMESPACES else why))
        problem = probe(entrance)
        if not problem:
            return entrance
        why += f"; {problem}"
    return Entrance(libc, Way(NONE, why=why))


_WAYS = (
    Way(NAMESPACES, in_user_namespace=True, own_users=True),
    Way(NAMESPACES, own_users=True),
    Way(NAMESPACES, in_user_namespace=True),
    Way(USER, own_users=True),
)
"""Best first."""


# ---- in namespaces ------------------------------------------------------------------------------------------------


def _spawn_inside(libc: linux.Libc, way: Way, place: Place, become: Callable[[], NoReturn]) -> Started:
    """A process that makes the namespaces and leaves the first process of them to us, its adopted child."""
    told, tell = socket.socketpair()
    adopted, adopt = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.close(adopt)
        _in_child(place, lambda: _make_namespaces(libc, way, place, tell, adopted, become))
    tell.close()
    os.close(adopted)
    try:
        started = _hear(told)
        os.waitpid(parent, 0)
        return started
    finally:
        told.close()
        os.close(adopt)


def _tell(tell: socket.socket, first: int, *, network: bool) -> None:
    """Say what the first process is, and hand over a socket of this network if it is a new one."""
    with socket.socket() as inside:
        rights = [] if network else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", inside.fileno()))]
        tell.sendmsg([b"%d" % first], rights)


def _hear(told: socket.socket) -> Started:
    # Not to be inherited: other slots must not get hold of it.
    number, rights, _, _ = told.recvmsg(32, socket.CMSG_SPACE(struct.calcsize("i")), socket.MSG_CMSG_CLOEXEC)
    inside = [socket.socket(fileno=struct.unpack("i", data)[0]) for _, _, data in rights]
    return Started(int(number or b"0"), *inside)


def _make_namespaces(
    libc: linux.Libc, way: Way, place: Place, tell: socket.socket, adopted: int, become: Callable[[], NoReturn]
) -> None:
    if way.in_user_namespace and way.own_users:
        _change_user(place.user)
        libc.own_proc_files()
    user, group = os.geteuid(), os.getegid()
    kinds = linux.NEWNS | linux.NEWPID | linux.NEWIPC | linux.NEWUTS
    kinds |= linux.NEWUSER if way.in_user_namespace else 0
    kinds |= 0 if place.network else linux.NEWNET
    libc.unshare(kinds)
    if way.in_user_namespace:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{_INNER_USER} {user} 1")
        _write("/proc/self/gid_map", f"{_INNER_USER} {group} 1")
    first = os.fork()
    if first:
        _tell(tell, first, network=place.network)
        return
    tell.close()
    os.read(adopted, 1)  # until slotd has seen our parent's end: a death signal set before would kill us with it
    os.close(adopted)
    _furnish(libc, way, place)
    if not way.in_user_namespace:
        _change_user(place.user)
    libc.die_with_parent()
    _filter(libc)
    become()


def _furnish(libc: linux.Libc, way: Way, place: Place) -> None:
    view.build(libc, place.sight)
    libc.sethostname("ludus")
    if not place.network:
        with contextlib.suppress(OSError):  # without CAP_NET_ADMIN there is no loopback either
            linux.loopback_up()
    if way.in_user_namespace:
        with contextlib.suppress(OSError):
            _write("/proc/sys/user/max_user_namespaces", "0")
    libc.drop_bounding_set()
    libc.no_new_privileges()


# ---- without namespaces -------------------------------------------------------------------------------------------


def _spawn_beside(libc: linux.Libc | None, way: Way, place: Place, become: Callable[[], NoReturn]) -> Started:
    def go() -> None:
        if libc is not None:
            libc.adopt_orphans()
            libc.die_with_parent()
            if way.isolation == USER:
                libc.no_new_privileges()
                _filter(libc)
        become()

    first = os.fork()
    if not first:
        _in_child(place, go)
    return Started(first)


def _processes_of(user: int) -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == user:
                    found.append(int(name))
    return found


def _marked(mark: str) -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if f"{MARK}={mark}".encode() in file.read().split(b"\0"):
                    found.append(int(name))
    return found


def _kill_all_of(user: int) -> None:
    """Kill every process of a user at once, so that none can fork away."""
    child = os.fork()
    if child == 0:
        try:
            _change_user(user)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


# ---- both ---------------------------------------------------------------------------------------------------------


def _in_child(place: Place, work: Callable[[], None]) -> NoReturn:
    """Run `work` in a forked process and end it. An error is told on the slot's stderr."""
    code = 125
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.umask(0o022)
        for target, fd in enumerate((place.stdin, place.stdout, place.stderr)):
            os.dup2(fd, target)
        for fd in place.passed:
            os.set_inheritable(fd, True)
        with contextlib.suppress(OSError):
            _write("/proc/self/oom_score_adj", "500")
        work()
        code = 0
    except OSError as error:
        os.write(2, f"{error}\n".encode(errors="replace"))
    except BaseException:  # a forked process must never return into its parent's code
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def _filter(libc: linux.Libc) -> None:
    """Refuse the system calls that no task needs. A host that knows no filters has none."""
    program = seccomp.program()
    if program:
        with contextlib.suppress(OSError):
            libc.filter_calls(program)


def _change_user(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
