"""Starts the first process of a slot, and isolates slots from each other. Three levels, best first:

`namespaces`  Mount, pid, ipc, uts and (unless the network is allowed) net namespaces, its own file system view, no
              capabilities, no new privileges. Made in a user namespace if that is allowed, else with slotd's own
              CAP_SYS_ADMIN. If slotd is root, each slot has a user id of its own.
`user`        slotd is root but may not make namespaces, as in a container with default rights. Each slot has a user id
              of its own, so it can neither signal nor read slotd or other slots. World-readable files and the network
              are shared with the rest of the container.
`none`        slotd is an ordinary user, or the slot must run as root. No isolation, as with the backend `local`.

The first process is the slot's supervisor (`slot_scripts/supervisor.sh`). The agent cannot kill it: it is pid 1 of the
namespace, or it runs as root and only the shell that it starts runs as the slot's user. At level `none` the agent can.
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

from ludus.sandbox import seccomp, syscalls
from ludus.sandbox.processes import find_descendants, is_dead, kill_trees
from ludus.sandbox.slotd import mount_view

NAMESPACES, USER, NONE = "namespaces", "user", "none"
MARK = "LUDUS_SLOT"
"""An environment variable that marks a slot's processes, at level `none`."""
_INNER_USER = 1000
"""The slot's user id inside its user namespace."""
_HIGH_USERS, _LOW_USERS = (0x7000_0000, 0x0FFF_0000), (20_000, 40_000)
"""The ranges (start, size) of user ids for slots. The high one is far from the ids that systems assign. The low one is
for containers that have only 65,536 ids."""


class Isolation(NamedTuple):
    """How slots are isolated here."""

    level: str
    in_user_namespace: bool = False
    own_users: bool = False
    """Each slot has a user id of its own. slotd must be root and able to switch to any id."""
    reason: str = ""
    """Why a better level is not available."""


class StartOptions(NamedTuple):
    """What it takes to start the first process of one slot."""

    user: int
    """The slot's user id as slotd sees it; slotd's own if the slot has none of its own."""
    network: bool
    view: mount_view.ViewOptions
    stdin: int
    stdout: int
    stderr: int
    passed: tuple[int, ...]
    """Other descriptors that the process inherits."""


class FirstProcess(NamedTuple):
    """A slot's first process."""

    pid: int
    """Its pid as slotd sees it; 0 if it did not start."""
    network_socket: socket.socket | None = None
    """A new socket in the slot's network, not bound and not connected; None if the slot has no network of its own."""


class SlotStarter:
    """Starts the first processes of slots, at one level of isolation."""

    def __init__(self, libc: syscalls.Libc | None, isolation: Isolation) -> None:
        self._libc = libc
        self._isolation = isolation

    @property
    def isolation(self) -> Isolation:
        return self._isolation

    def get_inner_user(self, user: int) -> int:
        """Return a slot's user id as the slot itself sees it."""
        return _INNER_USER if self._isolation.in_user_namespace else user

    def start(
        self, options: StartOptions, program: str, arguments: list[str], environment: dict[str, str]
    ) -> FirstProcess:
        """Start a slot's first process. If that fails, the reason is on the process's stderr, and the process exits."""

        def run_program() -> NoReturn:
            os.execve(program, arguments, environment)

        if self._isolation.level == NAMESPACES:
            assert self._libc is not None
            return _spawn_in_namespaces(self._libc, self._isolation, options, run_program)
        return _spawn_in_place(self._libc, self._isolation, options, run_program)

    def sweep(self, user: int, mark: str, first: int, *, spare_first: bool) -> None:
        """Kill a slot's processes, with or without its first one. Needed only without a pid namespace.

        These are the descendants of the first process and all processes of the slot's user. If the slot has no user of
        its own, they are the descendants and the processes with the slot's mark. A process escapes if it clears its
        environment *and* outlives the first process.
        """
        for _ in range(100):  # bounded: processes may fork faster than they are killed
            others = _find_user_processes(user) if self._isolation.own_users else _find_marked(mark)
            left = {pid for pid in (*find_descendants([first]), *others) if not is_dead(pid)}
            left -= {first} if spare_first else set()
            if not left:
                return
            if self._isolation.own_users:
                _kill_user_processes(user)
            kill_trees(lambda left=left: left)


def draw_user() -> int:
    """Draw a random user id for a slot. Only root can use it."""
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


# ---- finding the best isolation -----------------------------------------------------------------------------------


def find_starter(*, as_root: bool, probe: Callable[[SlotStarter], str]) -> SlotStarter:
    """Find the best isolation that works here. `probe` starts a slot briefly and returns the error, or ""."""
    try:
        libc = syscalls.Libc()
        libc.adopt_orphans()
    except (ImportError, OSError, AttributeError) as error:
        return SlotStarter(None, Isolation(NONE, reason=f"no system calls through ctypes: {error}"))
    if as_root:
        return SlotStarter(libc, Isolation(NONE, reason="slots run as root"))
    reason = "namespaces are not allowed here"
    for isolation in _ISOLATIONS:
        if isolation.own_users and os.geteuid() != 0:
            continue
        starter = SlotStarter(libc, isolation._replace(reason="" if isolation.level == NAMESPACES else reason))
        problem = probe(starter)
        if not problem:
            return starter
        reason += f"; {problem}"
    return SlotStarter(libc, Isolation(NONE, reason=reason))


_ISOLATIONS = (
    Isolation(NAMESPACES, in_user_namespace=True, own_users=True),
    Isolation(NAMESPACES, own_users=True),
    Isolation(NAMESPACES, in_user_namespace=True),
    Isolation(USER, own_users=True),
)
"""Best first."""


# ---- in namespaces ------------------------------------------------------------------------------------------------


def _spawn_in_namespaces(
    libc: syscalls.Libc, isolation: Isolation, options: StartOptions, run_program: Callable[[], NoReturn]
) -> FirstProcess:
    """Start a helper process that makes the namespaces, forks the first process in them and exits.

    slotd then adopts the first process, which waits for that at the `adopted` pipe.
    """
    receiver, sender = socket.socketpair()
    adopted_read, adopted_write = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.close(adopted_write)
        _run_in_child(options, lambda: _make_namespaces(libc, isolation, options, sender, adopted_read, run_program))
    sender.close()
    os.close(adopted_read)
    try:
        started = _receive_first_process(receiver)
        os.waitpid(parent, 0)
        return started
    finally:
        receiver.close()
        os.close(adopted_write)


def _send_first_process(sender: socket.socket, first: int, *, network: bool) -> None:
    """Send the pid of the first process and, if the network namespace is new, a socket made in it."""
    with socket.socket() as network_socket:
        fd = struct.pack("i", network_socket.fileno())
        rights = [] if network else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fd)]
        sender.sendmsg([b"%d" % first], rights)


def _receive_first_process(receiver: socket.socket) -> FirstProcess:
    # CLOEXEC: other slots must not inherit the socket.
    number, rights, _, _ = receiver.recvmsg(32, socket.CMSG_SPACE(struct.calcsize("i")), socket.MSG_CMSG_CLOEXEC)
    sockets = [socket.socket(fileno=struct.unpack("i", data)[0]) for _, _, data in rights]
    return FirstProcess(int(number or b"0"), *sockets)


def _make_namespaces(
    libc: syscalls.Libc,
    isolation: Isolation,
    options: StartOptions,
    sender: socket.socket,
    adopted_read: int,
    run_program: Callable[[], NoReturn],
) -> None:
    if isolation.in_user_namespace and isolation.own_users:
        _change_user(options.user)
        libc.allow_proc_writes()
    user, group = os.geteuid(), os.getegid()
    kinds = syscalls.NEWNS | syscalls.NEWPID | syscalls.NEWIPC | syscalls.NEWUTS
    kinds |= syscalls.NEWUSER if isolation.in_user_namespace else 0
    kinds |= 0 if options.network else syscalls.NEWNET
    libc.unshare(kinds)
    if isolation.in_user_namespace:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{_INNER_USER} {user} 1")
        _write("/proc/self/gid_map", f"{_INNER_USER} {group} 1")
    first = os.fork()
    if first:
        _send_first_process(sender, first, network=options.network)
        return
    sender.close()
    os.read(adopted_read, 1)  # wait until slotd has reaped our parent: a death signal set before that would kill us
    os.close(adopted_read)
    _set_up_namespaces(libc, isolation, options)
    if not isolation.in_user_namespace:
        _change_user(options.user)
    libc.die_with_parent()
    _install_filter(libc)
    run_program()


def _set_up_namespaces(libc: syscalls.Libc, isolation: Isolation, options: StartOptions) -> None:
    mount_view.build_view(libc, options.view)
    libc.sethostname("ludus")
    if not options.network:
        with contextlib.suppress(OSError):  # without CAP_NET_ADMIN the slot has no loopback
            syscalls.start_loopback()
    if isolation.in_user_namespace:
        with contextlib.suppress(OSError):
            _write("/proc/sys/user/max_user_namespaces", "0")
    libc.drop_bounding_set()
    libc.forbid_new_privileges()


# ---- without namespaces -------------------------------------------------------------------------------------------


def _spawn_in_place(
    libc: syscalls.Libc | None, isolation: Isolation, options: StartOptions, run_program: Callable[[], NoReturn]
) -> FirstProcess:
    def set_up_and_run() -> None:
        if libc is not None:
            libc.adopt_orphans()
            libc.die_with_parent()
            if isolation.level == USER:
                libc.forbid_new_privileges()
                _install_filter(libc)
        run_program()

    first = os.fork()
    if not first:
        _run_in_child(options, set_up_and_run)
    return FirstProcess(first)


def _find_user_processes(user: int) -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == user:
                    found.append(int(name))
    return found


def _find_marked(mark: str) -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if f"{MARK}={mark}".encode() in file.read().split(b"\0"):
                    found.append(int(name))
    return found


def _kill_user_processes(user: int) -> None:
    """Kill all processes of a user with one call, so that none can escape by forking."""
    child = os.fork()
    if child == 0:
        try:
            _change_user(user)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


# ---- with and without namespaces ----------------------------------------------------------------------------------


def _run_in_child(options: StartOptions, work: Callable[[], None]) -> NoReturn:
    """Run `work` in a forked process, then exit. An error is written to the slot's stderr."""
    code = 125
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.umask(0o022)
        for target, fd in enumerate((options.stdin, options.stdout, options.stderr)):
            os.dup2(fd, target)
        for fd in options.passed:
            os.set_inheritable(fd, True)
        with contextlib.suppress(OSError):
            _write("/proc/self/oom_score_adj", "500")
        work()
        code = 0
    except OSError as error:
        os.write(2, f"{error}\n".encode(errors="replace"))
    except BaseException:  # a forked process must never return to its parent's code
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def _install_filter(libc: syscalls.Libc) -> None:
    """Install the system-call filter. A kernel without filters is left without one."""
    program = seccomp.build_filter()
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
