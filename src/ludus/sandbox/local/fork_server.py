"""A separate program: starts the processes of this machine's slots, and ends them.

    python -I -S -c BOOT SOCKET      # see `fork_client`; the driver has the other end of the socket

It has one thread and imports little, so it may enter user namespaces and a fork of it takes a third of a millisecond.
The driver can do neither. It serves one socket until the driver closes it or dies, even by kill -9. One helper is
always forked in advance, so that no slot waits for that.

A slot in namespaces has a keeper, whose pid the driver gives. For the first shell, and after all processes were ended,
a helper process enters the keeper's namespaces and makes a new pid namespace, with a mount namespace for its own /proc.
It starts an init there and the shell, and exits; this program adopts both. The init is `cat`: it reads from a pipe that
only this program has and never writes to, so it ends with this program. The kernel hides its memory and descriptors
from the agent. It ignores SIGCHLD, so that the kernel reaps orphans at once. Later shells are started into the same pid
namespace, of which this program keeps descriptors. To end the processes, the init is killed: the kernel
then kills every process of the namespace, and lets this program reap the init only after the last of them is gone. That
is the proof.

A slot without namespaces has a copy of this program for itself, made by the request `serve`. The copy adopts whatever
its shells leave behind, so all its descendants belong to the slot, and it kills them until it has no child left.
"""

import gc
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl, ioctl
from functools import partial
from typing import Any, NamedTuple, NoReturn

from ludus.sandbox import syscalls
from ludus.sandbox.processes import find_children, find_descendants, signal_each

_GET_OWNER = 0xB701
"""The ioctl that returns the user namespace to which a namespace belongs (NS_GET_USERNS)."""
_NAMESPACES = ("mnt", "user", "net", "ipc", "uts", "cgroup")
_OOM_SCORE = 500
"""The kernel looks for victims among the agents' processes before it takes a keeper or the driver."""
_MESSAGE_BYTES = 4096
_MOST_FDS = 16
_SPARE_FD = 20
"""Above the descriptors that a shell has."""
_FAILED = 125


def main(fd: int) -> None:
    os.set_inheritable(fd, False)
    libc = syscalls.Libc()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.freeze()  # pages that the collector does not touch stay shared with the forks
    gc.disable()
    while True:
        fd = _Server(socket.socket(fileno=fd), libc).serve()


class _Nest(NamedTuple):
    """The pid namespace in which the agent of one slot lives."""

    init: int
    mounts: int
    """A descriptor of its mount namespace."""
    pids: int
    """A descriptor of its pid namespace."""
    life: int
    """The end of a pipe that the init reads: when it is closed, the init ends."""


class _Server:
    """What is known about the slots of one socket."""

    def __init__(self, link: socket.socket, libc: syscalls.Libc) -> None:
        self._link = link
        self._libc = libc
        self._nests: dict[int, _Nest] = {}
        """The current one of each slot."""
        self._shells: set[int] = set()
        self._helpers: dict[int, tuple[socket.socket, int, int, int]] = {}
        """Helpers that have not reported yet: where they will, the request, the slot and the life of a new init."""
        self._ending: set[int] = set()
        """Slots whose init was killed and is not yet reaped."""
        self._codes: dict[int, int] = {}
        """Exit codes of processes that no helper has reported yet."""
        self._copies: set[int] = set()
        self._spare: socket.socket | None = None
        """The connection to a helper that waits for work."""
        self._poll = select.poll()

    def serve(self) -> int:
        """Serve until the driver is gone, then end everything. In a copy: returns the socket that the copy serves."""
        self._libc.adopt_orphans()
        self._send(serving=os.getpid())
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        for fd in (self._link.fileno(), wake_read):
            self._poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in self._poll.poll():
                if fd == wake_read:
                    with suppress(BlockingIOError):
                        os.read(wake_read, 4096)
                elif fd in self._helpers:
                    self._read_report(fd)
                elif (copied := self._take_request()) is not None:
                    os.close(wake_read)
                    os.close(wake_write)
                    return copied
            self._reap()

    # ---- requests -------------------------------------------------------------------------------------------------

    def _take_request(self) -> int | None:
        """Handle one request. Returns a socket in a copy of this program, which has to serve that one."""
        try:
            data, fds = _receive(self._link, _MOST_FDS)
        except ConnectionResetError:
            data, fds = b"", []
        if not data:
            self._kill_descendants()
            os._exit(0)
        request: dict[str, Any] = json.loads(data)
        try:
            if request["do"] == "serve":
                return self._copy(fds)
            if request["do"] == "start":
                self._start(request, fds)
            else:
                self._end(request["slot"])
        finally:
            for fd in fds:
                os.close(fd)
        return None

    def _copy(self, fds: list[int]) -> int | None:
        pid = os.fork()
        if pid:
            self._copies.add(pid)
            return None
        self._link.close()
        if self._spare is not None:
            self._spare.close()
        return fds.pop()

    def _start(self, request: dict[str, Any], fds: list[int]) -> None:
        number, slot = request["request"], request["slot"]
        if not request["keeper"]:
            options = _read_options(fds[0])
            self._report_started(number, _fork(lambda: _become_shell(options, fds[1:]), fds[4]))
            return
        alive, life = os.pipe2(os.O_CLOEXEC)
        nest = self._nests.get(slot)
        work = json.dumps({"init": nest.init if nest else 0}).encode()
        helper = self._hand_over(work, [*fds, alive, *((nest.mounts, nest.pids) if nest else ())])
        os.close(alive)
        self._helpers[helper.fileno()] = (helper, number, slot, life)
        self._poll.register(helper, select.POLLIN)
        self._spare = self._fork_helper()

    def _hand_over(self, work: bytes, fds: list[int]) -> socket.socket:
        """Give work to the spare helper, or to a new one if it is gone. Returns the connection to it."""
        if self._spare is not None:
            with suppress(OSError):
                socket.send_fds(self._spare, [work], fds)
                return self._spare
            self._spare.close()
        helper = self._fork_helper()
        with suppress(OSError):  # then its end is seen instead of a report
            socket.send_fds(helper, [work], fds)
        return helper

    def _fork_helper(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def wait_for_work() -> NoReturn:
            ours.close()  # else the helper would outlive this program
            _wait_for_work(self._libc, theirs)

        with theirs:
            self._copies.add(_fork(wait_for_work, 2))
        return ours

    def _read_report(self, fd: int) -> None:
        """Read which processes a helper has started. It has exited, or is about to."""
        self._poll.unregister(fd)
        link, request, slot, life = self._helpers.pop(fd)
        with link:
            data, fds = _receive(link, 2)
        if not fds:
            os.close(life)
        if not data:
            self._send(failed=request, message="the slot's namespaces cannot be entered")
            return
        shell, init = map(int, data.split())
        if fds:
            mounts, pids = fds
            self._nests[slot] = _Nest(init, mounts, pids, life)
        self._report_started(request, shell)
        for pid in (shell, init):
            if pid in self._codes:
                self._report_exit(pid, self._codes.pop(pid))

    def _report_started(self, request: int, shell: int) -> None:
        self._shells.add(shell)
        self._send(started=request, pid=shell)

    def _end(self, slot: int) -> None:
        if slot in self._nests:
            self._ending.add(slot)
            _kill(self._nests[slot].init)
            return
        if slot == 0:  # the only slot of a copy
            self._kill_descendants()
        self._send(ended=slot)

    # ---- ends of processes ----------------------------------------------------------------------------------------

    def _reap(self) -> bool:
        """Reap what has exited. Returns whether there are children left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._report_exit(pid, os.waitstatus_to_exitcode(status))

    def _report_exit(self, pid: int, code: int) -> None:
        if pid in self._shells:
            self._shells.remove(pid)
            self._send(exited=pid, code=code if code >= 0 else 128 - code)
            return
        for slot, nest in self._nests.items():
            if pid == nest.init:
                del self._nests[slot]
                for fd in nest[1:]:
                    os.close(fd)
                if slot in self._ending:
                    self._ending.remove(slot)
                    self._send(ended=slot)
                return
        if pid in self._copies:
            self._copies.remove(pid)
        elif self._helpers:  # its helper has not reported it yet
            self._codes[pid] = code

    def _kill_descendants(self) -> None:
        """Kill until no child is left. The driver limits the time."""
        while self._reap():
            found = find_descendants(find_children(os.getpid()))
            signal_each(found, signal.SIGSTOP)  # so that few of them fork meanwhile
            signal_each(found, signal.SIGKILL)
            select.select([], [], [], 0.001)

    def _send(self, **reply: object) -> None:
        with suppress(OSError):  # the driver is gone: the next request is the end of the stream
            self._link.send(json.dumps(reply).encode())


def _ignore(number: int, frame: object) -> None:
    """A handler, since the wake-up descriptor needs one."""


def _receive(link: socket.socket, most: int) -> tuple[bytes, list[int]]:
    """Receive a packet and its descriptors, which no program inherits. (`recv_fds` ignores the flag for that.)"""
    data, fds, _, _ = socket.recv_fds(link, _MESSAGE_BYTES, most)
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, fds


def _read_options(fd: int) -> dict[str, Any]:
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(0)
        return json.loads(file.read())


def _kill(init: int) -> None:
    """Kill an init. Root without the capability to kill becomes the init's user first."""
    try:
        os.kill(init, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        owner = os.stat(f"/proc/{init}").st_uid  # noqa: PTH116 - pathlib is not imported here

        def kill_as_owner() -> NoReturn:
            syscalls.change_user(owner)
            os.kill(init, signal.SIGKILL)
            os._exit(0)

        os.waitpid(_fork(kill_as_owner, 2), 0)


# ---- in forked processes ------------------------------------------------------------------------------------------


def _fork(work: Callable[[], NoReturn], stderr: int) -> int:
    """Fork a process that does `work`, which does not return. An error is written to `stderr`."""
    pid = os.fork()
    if not pid:
        _run_forked(work, stderr)
    return pid


def _run_forked(work: Callable[[], NoReturn], stderr: int) -> NoReturn:
    """A forked process must never return to its parent's code."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        work()
    except BaseException as error:
        with suppress(OSError):
            os.write(stderr, f"{error}\n".encode(errors="replace"))
    finally:
        os._exit(_FAILED)


def _wait_for_work(libc: syscalls.Libc, link: socket.socket) -> NoReturn:
    """Wait until the fork server hands over a request, and do it."""
    data, fds = _receive(link, _MOST_FDS)
    if not data:
        os._exit(0)
    options, init = _read_options(fds.pop(0)), json.loads(data)["init"]
    kept = (*fds, link.fileno())
    mounts, pids = (fds.pop(-2), fds.pop(-1)) if init else (0, 0)
    alive = fds.pop()
    nest = _Nest(init, mounts, pids, alive) if init else None
    _close_others(kept)
    _run_forked(partial(_start_in_namespaces, libc, options, nest, fds, link, alive), fds[3])


def _start_in_namespaces(
    libc: syscalls.Libc,
    options: dict[str, Any],
    nest: _Nest | None,
    fds: list[int],
    report: socket.socket,
    alive: int,
) -> NoReturn:
    """Enter the slot, start the shell there, and an init before it if there is no nest. Report both pids, and
    descriptors of a new nest."""
    with suppress(OSError):  # done by root, it is also the lowest value that the agent may set
        syscalls.write_proc_file("/proc/self/oom_score_adj", str(_OOM_SCORE))
    if options["user"] is not None:
        syscalls.change_user(options["user"])
    own = os.open("/proc/self/ns", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    inner_user = _enter_namespaces(libc, options["keeper"], nest)
    if nest is None:
        libc.unshare(syscalls.NEWPID | syscalls.NEWNS)
        init = _start_init(libc, options["init"], alive)
    else:
        init = nest.init
    shell = _fork(lambda: _set_up_shell(libc, options, inner_user, fds, is_first=nest is None), fds[3])
    # Opened only now: before the first process, the pid namespace cannot be entered.
    names = ("mnt", "pid_for_children") if nest is None else ()
    opened = [os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=own) for name in names]
    socket.send_fds(report, [b"%d %d" % (shell, init)], opened)
    os._exit(0)


def _enter_namespaces(libc: syscalls.Libc, keeper: int, nest: _Nest | None) -> int:
    """Enter the namespaces of the keeper, and of the nest. Returns a descriptor of the keeper's user namespace, which
    is to be entered last.

    The mount namespace belongs to an outer user namespace, in which this process now has all capabilities. The keeper
    and the agent are in an inner one and have none in the outer.
    """
    opened = [os.open(f"/proc/{keeper}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in _NAMESPACES]
    mounts, inner_user, *others = opened
    others = [fd for fd, name in zip(others, _NAMESPACES[2:], strict=True) if not _is_own(fd, name)]
    libc.enter(ioctl(mounts, _GET_OWNER))
    for fd in (*others, *((nest.mounts, nest.pids) if nest else (mounts,))):
        libc.enter(fd)
    return inner_user


def _is_own(fd: int, name: str) -> bool:
    """Whether a namespace is that of this process: a slot with a network shares the host's."""
    return os.fstat(fd).st_ino == os.stat(f"/proc/self/ns/{name}").st_ino  # noqa: PTH116 - as for `fstat`


def _start_init(libc: syscalls.Libc, command: list[str], alive: int) -> int:
    """Start the init. It has no capability: an empty bounding set leaves none to a new program.

    It stays in the outer user namespace, so that the agent may not look into it even if it can read its program. It is
    not forked from here, since that takes longer than all the rest, and it is in no control group of the slot, so that
    the kernel does not choose it when the slot is out of memory.
    """
    libc.drop_bounding_set()
    libc.forbid_new_privileges()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a program inherits that
    program, *arguments = command
    init = os.posix_spawn(program, arguments, {}, file_actions=[(os.POSIX_SPAWN_DUP2, alive, 0)], setsid=True)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return init


def _set_up_shell(
    libc: syscalls.Libc, options: dict[str, Any], inner_user: int, fds: list[int], *, is_first: bool
) -> NoReturn:
    libc.hide_memory()
    if is_first:
        flags = syscalls.NOSUID | syscalls.NODEV | syscalls.NOEXEC | syscalls.RDONLY
        libc.mount("proc", "/proc", "proc", flags)
        for folder, size in options["inodes"].items():
            libc.mount("", folder, "", syscalls.REMOUNT | syscalls.NOSUID | syscalls.NODEV, f"nr_inodes={size}")
    _enter_groups(fds)
    _drop_privileges(libc, inner_user)
    if options["filter"]:
        libc.filter_calls(bytes.fromhex(options["filter"]))
    _become_shell(options, fds)


def _drop_privileges(libc: syscalls.Libc, inner_user: int) -> None:
    libc.enter(inner_user)
    libc.drop_bounding_set()
    libc.drop_capabilities()
    libc.forbid_new_privileges()


def _enter_groups(fds: list[int]) -> None:
    """Enter the control groups. After the fork: the kernel lets a process enter a full group, but not fork in one."""
    for fd in fds[4:]:
        os.write(fd, b"0")


def _become_shell(options: dict[str, Any], fds: list[int]) -> NoReturn:
    os.setsid()
    os.umask(0o022)
    for name, value in options["limits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    spare = [fcntl(fd, F_DUPFD_CLOEXEC, _SPARE_FD) for fd in fds[:4]]
    for target, fd in enumerate(spare, start=3):
        os.dup2(fd, target)
    os.execve(options["program"][0], options["program"], options["environment"])


def _close_others(kept: tuple[int, ...]) -> None:
    """Close all descriptors but the standard ones and these: the agent sees this process before it runs a program."""
    last = 2
    for fd in sorted(kept):
        os.closerange(last + 1, fd)
        last = fd
    os.closerange(last + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


if __name__ == "__main__":
    main(int(sys.argv[1]))
