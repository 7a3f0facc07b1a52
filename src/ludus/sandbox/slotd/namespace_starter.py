"""Starts and ends the processes of one slot at the level `namespaces`.

    slotd ─┬─ descriptors of the slot's user, mount, net, ipc and uts namespaces, which exist as long as they are open
           ├─ init    the first process of a nested pid namespace, with its own copy of the mounts and its own /proc
           └─ shell   in the namespaces of init; what it leaves is adopted by init

init runs no code of the agent. It ignores everything but the end of its lifeline, a pipe whose other end only slotd
has: when slotd dies, so does init. When init dies, the kernel kills every process in its namespace, and init has an
exit code only when all of them are gone. So one SIGKILL and that exit code are the proof that nothing is left. The next
shell gets a new init.

/proc is read-only in a slot: so an agent cannot change how the kernel chooses what to kill when memory runs out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ludus.errors import SandboxError, SlotEvidence
from ludus.sandbox import syscalls
from ludus.sandbox.shell_starter import ShellEnds, ShellProcess
from ludus.sandbox.slotd import mount_view, root_view, shell_program
from ludus.sandbox.slotd.children import Children, run_to_exit, send_report
from ludus.sandbox.slotd.isolation import Isolation
from ludus.sandbox.slotd.shell_program import ShellProgram

INNER_USER = 1000
"""The slot's user id inside its user namespace."""
END_SECONDS = 30.0
"""How long the end of all processes may take. They are dead at once, unless the kernel is busy with them."""


class ImagePlace(NamedTuple):
    """What a slot with an image has in addition. See `root_view.py`."""

    changes: str
    """An empty folder for the slot's changes."""
    folder: str
    """The slot's working folder."""


class SlotPlace(NamedTuple):
    """What the namespaces of one slot are made of."""

    user: int
    """The slot's user id as slotd sees it; slotd's own if the slot has none of its own."""
    network: bool
    view: mount_view.ViewOptions
    image: ImagePlace | None = None
    """For a slot with an image, whose user is root."""


class _Namespaces(NamedTuple):
    """Descriptors of a slot's namespaces."""

    user: tuple[int, ...]
    others: tuple[int, ...]
    """Uts, ipc and, unless the network is shared, net."""
    mount: int
    inner: tuple[int, ...]
    """The user namespace that the programs of a slot with an image enter last."""


class _Init(NamedTuple):
    """The first process of a pid namespace."""

    pid: int
    exited: asyncio.Future[int]
    mount: int
    pids: int
    lifeline: int

    def close(self) -> None:
        for fd in (self.mount, self.pids, self.lifeline):
            os.close(fd)


class NamespaceStarter:
    """The processes of one slot."""

    def __init__(
        self, libc: syscalls.Libc, children: Children, isolation: Isolation, place: SlotPlace, program: ShellProgram
    ) -> None:
        self._libc = libc
        self._children = children
        self._isolation = isolation
        self._place = place
        self._program = program
        self._namespaces: _Namespaces | None = None
        self._init: _Init | None = None
        self._shells: set[asyncio.Future[int]] = set()
        self._network_socket: socket.socket | None = None

    @property
    def network_socket(self) -> socket.socket | None:
        return self._network_socket

    # ---- for slotd ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        report = await self._children.ask(self._make_namespaces)
        descriptors = list(report.descriptors)
        if not self._place.network:
            self._network_socket = socket.socket(fileno=descriptors.pop())
        mount = descriptors.pop(0)
        inner = (descriptors.pop(0),) if self._place.image else ()
        user = (descriptors.pop(0),) if self._isolation.in_user_namespace else ()
        self._namespaces = _Namespaces(user, tuple(descriptors), mount, inner)

    async def start_shell(self, ends: ShellEnds, folder: bytes) -> ShellProcess:
        arguments = self._program.make_arguments(folder)
        try:
            return await self.run_program(arguments, ends)
        except OSError:  # init is about to end, or the slot's processes leave no room for another one
            await self.end_processes()
        try:
            return await self.run_program(arguments, ends)
        except OSError as error:
            raise SandboxError(f"no shell can be started in the slot: {error}") from error

    async def run_program(self, arguments: list[bytes], ends: ShellEnds) -> ShellProcess:
        init = self._init
        if init is None or init.exited.done():
            init = await self._start_init()
        report = await self._children.ask(lambda sender: self._enter_and_fork(init, arguments, ends, sender))
        pid = int(report.text)
        exited = self._children.watch(pid, adopted=True)
        self._shells.add(exited)
        exited.add_done_callback(self._shells.discard)
        return ShellProcess(pid, exited)

    async def end_processes(self) -> None:
        init, self._init = self._init, None
        if init is None:
            return
        if not init.exited.done():
            os.kill(init.pid, signal.SIGKILL)
        # The shells are children of slotd: init ends after they have been reaped.
        _, left = await asyncio.wait([init.exited, *self._shells], timeout=END_SECONDS)
        await _run_in_thread(init.close)  # this may free many mounts
        if left:
            raise SandboxError(
                f"the slot's processes did not end within {END_SECONDS:g} s",
                evidence=SlotEvidence(inside="its processes do not die"),
            )

    async def close(self) -> None:
        with contextlib.suppress(SandboxError):  # what cannot die is the kernel's now
            await self.end_processes()
        if self._network_socket is not None:
            self._network_socket.close()
        namespaces, self._namespaces = self._namespaces, None
        if namespaces is not None:
            await _run_in_thread(
                lambda: _close_all((namespaces.mount, *namespaces.inner, *namespaces.user, *namespaces.others))
            )

    async def _start_init(self) -> _Init:
        reading, writing = os.pipe()
        try:
            report = await self._children.ask(lambda sender: self._fork_init(reading, sender))
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        pid, (mount, pids) = int(report.text), report.descriptors
        self._init = _Init(pid, self._children.watch(pid, adopted=True), mount, pids, writing)
        return self._init

    # ---- in forked processes --------------------------------------------------------------------------------------

    def _make_namespaces(self, sender: socket.socket) -> None:
        libc, isolation, place = self._libc, self._isolation, self._place
        self._become_owner()
        libc.allow_proc_writes()
        user, group = os.geteuid(), os.getegid()
        kinds = syscalls.NEWNS | syscalls.NEWIPC | syscalls.NEWUTS
        kinds |= syscalls.NEWUSER if isolation.in_user_namespace else 0
        kinds |= 0 if place.network else syscalls.NEWNET
        libc.unshare(kinds)
        if isolation.in_user_namespace:
            syscalls.write_proc_file("/proc/self/setgroups", "deny")
            syscalls.write_proc_file("/proc/self/uid_map", f"{INNER_USER} {user} 1")
            syscalls.write_proc_file("/proc/self/gid_map", f"{INNER_USER} {group} 1")
            with contextlib.suppress(OSError):
                syscalls.write_proc_file("/proc/sys/user/max_user_namespaces", "0")
        names = ["mnt"] + ["user"] * isolation.in_user_namespace + ["uts", "ipc"] + ["net"] * (not place.network)
        descriptors = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]
        if place.image is not None:
            descriptors.insert(1, root_view.make_user_namespace(libc))
        libc.sethostname("ludus")
        if not place.network:
            with contextlib.suppress(OSError):  # without CAP_NET_ADMIN the slot has no loopback
                syscalls.start_loopback()
            descriptors.append(socket.socket().detach())
        if place.image is None:
            mount_view.build_view(libc, place.view)
        else:
            root_view.build_root_view(libc, place.view, place.image.changes, place.image.folder)
        send_report(sender, b"made", tuple(descriptors))

    def _fork_init(self, lifeline: int, sender: socket.socket) -> None:
        """Start an init, wait until it is ready, and send its pid and the descriptors of its namespaces."""
        own = os.open("/proc/self/ns", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        inherited = {int(name) for name in os.listdir("/proc/self/fd")}
        self._enter()
        self._libc.unshare(syscalls.NEWNS | syscalls.NEWPID)
        ready, signalling = os.pipe()
        init = os.fork()
        if init == 0:
            _close_all(inherited - {0, 1, 2, lifeline, sender.fileno()})
            run_to_exit(lambda: self._run_init(lifeline, signalling, sender))
        os.close(signalling)
        if not os.read(ready, 1):
            return  # init has reported why
        mount = os.open("mnt", os.O_RDONLY, dir_fd=own)
        pids = os.open("pid_for_children", os.O_RDONLY, dir_fd=own)
        send_report(sender, b"%d" % init, (mount, pids))

    def _run_init(self, lifeline: int, signalling: int, sender: socket.socket) -> None:
        try:
            self._set_up_init()
        except OSError as error:
            send_report(sender, f"!{error}".encode(errors="replace"))
            return
        sender.close()
        os.write(signalling, b"+")
        os.close(signalling)
        os.read(lifeline, 1)

    def _set_up_init(self) -> None:
        flags = syscalls.NOSUID | syscalls.NODEV | syscalls.NOEXEC
        if self._place.image is None:
            self._libc.mount("proc", "/proc", "proc", syscalls.RDONLY | flags)
        else:
            self._libc.mount("proc", "/proc", "proc", flags)
            root_view.set_up_proc(self._libc, own_network=not self._place.network)
        os.setsid()
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        for target in (0, 1, 2):
            os.dup2(null, target)
        os.close(null)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel then reaps what init adopts
        self._drop_privileges()

    def _enter_and_fork(self, init: _Init, arguments: list[bytes], ends: ShellEnds, sender: socket.socket) -> None:
        """Start a program in the namespaces of an init, and send its pid."""
        shell_program.raise_oom_score()
        self._enter(init)

        def confine() -> None:
            if self._place.image is None:
                self._drop_privileges()
            else:
                self._become_slot_root()
            shell_program.install_filter(self._libc)

        shell = os.fork()
        if shell == 0:
            run_to_exit(lambda: shell_program.become_program(self._program, arguments, ends, confine))
        send_report(sender, b"%d" % shell)

    def _become_slot_root(self) -> None:
        """Become root of a slot with an image. A program that root starts has the capabilities of the bounding set."""
        assert self._namespaces is not None
        for fd in self._namespaces.inner:
            self._libc.enter(fd)
        self._libc.drop_bounding_set(root_view.KEPT_CAPABILITIES)
        self._libc.forbid_new_privileges()

    def _become_owner(self) -> None:
        """Become the user that owns the slot's user namespace."""
        if self._isolation.in_user_namespace and self._isolation.own_users:
            syscalls.change_user(self._place.user)

    def _enter(self, init: _Init | None = None) -> None:
        namespaces = self._namespaces
        assert namespaces is not None
        self._become_owner()
        for fd in (*namespaces.user, *namespaces.others):
            self._libc.enter(fd)
        self._libc.hide_memory()  # a copy of slotd's
        if init is None:
            self._libc.enter(namespaces.mount)
        else:
            self._libc.enter(init.pids)
            self._libc.enter(init.mount)

    def _drop_privileges(self) -> None:
        self._libc.drop_bounding_set()
        self._libc.forbid_new_privileges()
        if not self._isolation.in_user_namespace:
            syscalls.change_user(self._place.user)
        self._libc.drop_capabilities()


def _close_all(descriptors: Iterable[int]) -> None:
    for fd in descriptors:
        with contextlib.suppress(OSError):
            os.close(fd)


async def _run_in_thread(work: Callable[[], None]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, work)
