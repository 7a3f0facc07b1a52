"""The slots of one slotd: made, used, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from ludus.errors import SandboxError
from ludus.sandbox import ExecResult
from ludus.sandbox.shell import Pipes, Shell
from ludus.sandbox.slotd import entrance as enter
from ludus.sandbox.slotd import mount_view as view
from ludus.sandbox.slotd import slot_dirs as disk
from ludus.sandbox.slotd.slot_port import Door, open_door

_START_SECONDS = 30.0
_END_SECONDS = 30.0
_OPEN_FILES = 4096
_REMEMBERED = 32
"""Executions of a slot whose results are kept, in case the driver asks again."""
_REMEMBERED_BYTES = 32 << 20
_NOT_FOR_SLOTS = ("LUDUS_", "NOMAD_", "MODAL_", "APPTAINER", "SINGULARITY")


class Settings(NamedTuple):
    """What the driver says once, at the start."""

    view: str = "image"
    as_root: bool = False
    """Slots run as root of the container, and are not kept from slotd."""
    exclusive: bool = False
    """There is one slot at a time, so it may have the container's own /workspace if it cannot have a private one."""
    lapse: float = 30.0
    """Seconds of silence after which the driver counts as dead."""


class Spec(NamedTuple):
    """What one slot must be like."""

    network: bool
    disk_mb: int
    processes: int
    memory_mb: int
    """Of one process; 0 where the container holds the memory."""
    env: dict[str, str]
    mounts: tuple[tuple[str, str], ...] = ()
    """Folders (source, target) that the slot may read."""


class Paths(NamedTuple):
    """Where things are, as the slot sees them."""

    workspace: str
    tmp: str
    home: str
    io: str
    lib: str
    jobs: str
    bash: str


_PATHS_INSIDE = Paths(view.WORKSPACE, "/tmp", view.HOME, view.IO, view.LIB, "/tmp/.ludus-jobs", view.LIB + "/bash")


class Slot:
    """One slot. Use `Slots` to make and end it."""

    def __init__(
        self, name: str, spec: Spec, folder: str, user: int, paths: Paths, sweep: Callable[[Slot], None] | None
    ) -> None:
        self.name = name
        self.spec = spec
        self.folder = folder
        self.user = user
        self.paths = paths
        self.pipes = Pipes.open()
        self.shell = Shell(
            self.pipes, Path(folder, "io"), paths.workspace, sweep=(lambda: sweep(self)) if sweep else None
        )
        self.first = 0
        self.inside: socket.socket | None = None
        """A socket of the slot's network, if that is its own."""
        self._door: Door | None = None
        self._executions: OrderedDict[str, asyncio.Task[ExecResult]] = OrderedDict()

    def execute(
        self, execution: str, command: bytes, stdin: bytes | None, seconds: float, keep: int
    ) -> asyncio.Task[ExecResult]:
        """Run a command, unless this execution is known: then it is the same run. With `stdin`, which may be empty, it
        reads what came in as its `take_input`, and that."""
        task = self._executions.get(execution)
        if task is None:
            if stdin is not None:
                self.take_input(execution, None, stdin)
            task = asyncio.ensure_future(self._run(execution, command, stdin is not None, seconds, keep))
            task.add_done_callback(_seen)
            self._executions[execution] = task
            self._forget()
        return task

    def execution(self, execution: str) -> asyncio.Task[ExecResult] | None:
        return self._executions.get(execution)

    def take_input(self, execution: str, offset: int | None, data: bytes) -> None:
        """Lay down a part of a command's standard input, at an offset or at the end. The slot may read it."""
        fd = os.open(self._input(execution), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        try:
            os.fchmod(fd, 0o644)
            place = os.lseek(fd, 0, os.SEEK_END) if offset is None else offset
            view = memoryview(data)
            while view:
                written = os.pwrite(fd, view, place)
                place, view = place + written, view[written:]
        except OSError as error:
            raise SandboxError(f"input for the slot cannot be written there: {error}") from error
        finally:
            os.close(fd)

    def _input(self, execution: str) -> str:
        if not execution.replace("-", "").isalnum():
            raise ValueError(f"{execution!r} is no name for an execution")
        return f"{self.folder}/io/in-{execution}"

    async def _run(self, execution: str, command: bytes, has_input: bool, seconds: float, keep: int) -> ExecResult:
        if not has_input:
            return await self.shell.run(command, seconds=seconds, keep=keep)
        try:
            text = f"( eval {quote(os.fsdecode(command))} ) <{quote(f'{self.paths.io}/in-{execution}')}"
            return await self.shell.run(os.fsencode(text), seconds=seconds, keep=keep)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._input(execution))

    def _forget(self) -> None:
        """Drop old results, but never one that is still to come."""
        done = [name for name, task in self._executions.items() if task.done()]
        size = sum(_size(self._executions[name]) for name in done)
        for name in done:
            if len(self._executions) <= _REMEMBERED and size <= _REMEMBERED_BYTES:
                return
            size -= _size(self._executions.pop(name))

    async def open_door(self, name: str) -> Door:
        """The door of that name. There is one at a time: that of an earlier request is shut."""
        while self._door is not None and self._door.name != name:
            await self._shut_door()
        if self._door is None:
            self._door = open_door(name, self.inside)
        return self._door

    def door(self, name: str) -> Door:
        if self._door is None or self._door.name != name:
            raise SandboxError("the door is shut")
        return self._door

    async def shut_door(self, name: str) -> None:
        if self._door is not None and self._door.name == name:
            await self._shut_door()

    async def _shut_door(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            await door.shut()

    def leave_network(self) -> None:
        if self.inside is not None:
            self.inside.close()

    async def close(self) -> None:
        """End the shell, and with it every execution under way; nobody gets through its door any more."""
        self.shell.close()
        await self._shut_door()
        self.leave_network()
        tasks = [task for task in self._executions.values() if not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=_END_SECONDS)


def _seen(task: asyncio.Task[ExecResult]) -> None:
    if not task.cancelled():
        task.exception()


def _size(task: asyncio.Task[ExecResult]) -> int:
    if task.cancelled() or task.exception() is not None:
        return 0
    return len(task.result().stdout) + len(task.result().stderr)


class Slots:
    """All slots of this slotd."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._base = disk.make_base()
        self._null = os.open("/dev/null", os.O_RDONLY)
        self._slots: dict[str, Slot] = {}
        self._opening: dict[str, asyncio.Future[Slot]] = {}
        self._ended: dict[int, asyncio.Future[None]] = {}
        self._entrance = enter.find_entrance(as_root=settings.as_root, probe=self._probe)

    @property
    def way(self) -> enter.Way:
        return self._entrance.way

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, name: str) -> Slot:
        slot = self._slots.get(name)
        if slot is None:
            raise SandboxError(f"there is no slot {name} here")
        return slot

    # ---- making ---------------------------------------------------------------------------------------------------

    async def open(self, name: str, spec: Spec) -> Slot:
        """A slot of that name: a new one, or the one that was opened for an earlier try of the same request."""
        if name in self._slots:
            return self._slots[name]
        if name not in self._opening:
            self._opening[name] = asyncio.ensure_future(self._open(name, spec))
        try:
            return await asyncio.shield(self._opening[name])
        finally:
            self._opening.pop(name, None)

    async def _open(self, name: str, spec: Spec) -> Slot:
        slot = self._prepare(name, spec)
        try:
            slot.first, slot.inside = self._start(slot)
            if slot.first:
                self._ended[slot.first] = asyncio.get_running_loop().create_future()
            await slot.shell.started(_START_SECONDS, lambda: slot.first)
        except BaseException:
            await self._end(slot)
            raise
        self._slots[name] = slot
        return slot

    def _prepare(self, name: str, spec: Spec) -> Slot:
        if not name.isidentifier() or not name.isascii():
            raise SandboxError(f"{name!r} is no name for a slot", retryable=False)
        user = enter.new_user() if self.way.own_users else os.geteuid()
        folder = self._base.slot(name)
        if self.way.isolation == enter.NAMESPACES:
            disk.name_user(folder + "/etc", self._entrance.inner_user(user))
            return Slot(name, spec, folder, user, _PATHS_INSIDE, None)
        if spec.mounts:
            raise SandboxError("caches need namespaces, which are not allowed there", retryable=False)
        return Slot(name, spec, folder, user, self._shared_paths(folder, user), self._sweep)

    def _shared_paths(self, folder: str, user: int) -> Paths:
        """Folders for a slot without a view of its own."""
        own = {part: f"{folder}/{part}" for part in ("workspace", "home", "jobs", "tmp")}
        if self._settings.exclusive:
            for part, path in (("workspace", view.WORKSPACE), ("home", view.HOME)):
                with contextlib.suppress(OSError):
                    os.makedirs(path, exist_ok=True)
                    os.chown(path, user, user)
                    own[part] = path
            own["tmp"] = "/tmp"
        for part, path in own.items():
            if path != "/tmp":
                os.makedirs(path, exist_ok=True)
                os.chmod(path, 0o755 if part == "workspace" else 0o700)
                os.chown(path, user, user)
        if self.way.own_users:
            disk.lay_demotion(folder + "/demote", user, self._base.bash)
            if self._settings.exclusive:
                with contextlib.suppress(OSError):  # a read-only image: then the user has no name
                    disk.name_user("/etc", user)
        places = (own["workspace"], own["tmp"], own["home"], folder + "/io", self._base.lib, own["jobs"])
        return Paths(*places, self._base.bash)

    def _start(self, slot: Slot) -> enter.Started:
        pipes = slot.pipes
        try:
            limits = _ulimits(slot.spec, own_users=self.way.isolation != enter.NONE)
            supervisor = slot.shell.supervisor_arguments(slot.paths.lib, slot.paths.io, (), limits)
            place = self._place(slot, pipes.slot_stdout, pipes.slot_stderr, (pipes.slot_command, pipes.slot_status))
            script = f"{slot.paths.lib}/supervisor.sh"
            return self._launch(slot, place, [script, *supervisor])
        finally:
            pipes.close_slot_ends()

    def _launch(self, slot: Slot, place: enter.Place, arguments: list[str]) -> enter.Started:
        # bash starts the inner shells by its own name, argv[0]: root's supervisor starts them as the slot's user.
        inside = self.way.isolation == enter.NAMESPACES
        program = view.LIB + "/bash" if inside else self._base.bash
        name = slot.folder + "/demote" if self.way.isolation == enter.USER else program
        environment = self._environment(slot)
        return self._entrance.start(place, program, [name, "--norc", "--noprofile", *arguments], environment)

    def _place(self, slot: Slot, stdout: int, stderr: int, passed: tuple[int, ...]) -> enter.Place:
        folder, owner = slot.folder, self._entrance.inner_user(slot.user)
        sight = view.Sight(
            folder + "/root",
            self._settings.view,
            self._base.lib,
            folder + "/io",
            folder + "/etc",
            owner,
            slot.spec.disk_mb,
            slot.spec.mounts,
        )
        return enter.Place(slot.user, slot.spec.network, sight, self._null, stdout, stderr, passed)

    def _environment(self, slot: Slot) -> dict[str, str]:
        """A container's own variables, as `docker exec` would pass them; of a host, only the PATH."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_FOR_SLOTS)}
        if self._settings.view == "system":
            own = {"PATH": os.environ.get("PATH", os.defpath)}
        own.setdefault("LANG", "C.UTF-8")
        own.update(HOME=slot.paths.home, USER="agent", LOGNAME="agent", SHELL="/bin/bash", TERM="dumb")
        own.update(PWD=slot.paths.workspace)
        if self.way.isolation != enter.NAMESPACES and not self._settings.exclusive:
            own["TMPDIR"] = slot.paths.tmp
        if self.way.isolation == enter.NONE:
            own[enter.MARK] = slot.folder
        own.update(slot.spec.env)
        return own

    def _probe(self, entrance: enter.Entrance) -> str:
        """What goes wrong when a slot is started that way; nothing if it works."""
        self._entrance = entrance
        try:
            slot = self._prepare("probe", Spec(False, 1, 0, 0, {}))
        except OSError as error:
            disk.remove_tree(f"{self._base.path}/probe")
            return str(error)
        told, tell = os.pipe()
        try:
            launched = self._launch(slot, self._place(slot, tell, tell, ()), ["-c", '"$BASH" -c "exit 7"'])
            first, slot.inside = launched
            os.close(tell)
            tell = -1
            words = os.read(told, 1000).decode(errors="replace").strip()
            code = os.waitpid(first, 0)[1] >> 8 if first else 125
            return "" if code == 7 else words or f"exit code {code}"
        finally:
            os.close(told)
            if tell >= 0:
                os.close(tell)
            slot.leave_network()
            slot.shell.close()
            slot.pipes.close_slot_ends()
            disk.remove_tree(slot.folder)

    # ---- ending ---------------------------------------------------------------------------------------------------

    async def close(self, name: str) -> None:
        if name in self._opening:
            with contextlib.suppress(SandboxError):
                await asyncio.shield(self._opening[name])
        slot = self._slots.pop(name, None)
        if slot is not None:
            await self._end(slot)

    async def reset(self, name: str) -> Slot:
        """The slot as it was when it was opened: everything in it is ended and removed."""
        spec = self.get(name).spec
        await self.close(name)
        return await self.open(name, spec)

    async def close_all(self) -> None:
        await asyncio.gather(*(self.close(name) for name in [*self._slots, *self._opening]), return_exceptions=True)
        os.close(self._null)
        self._base.remove()

    async def _end(self, slot: Slot) -> None:
        if slot.first:
            self._kill(slot)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._ended[slot.first]), _END_SECONDS)
            self._ended.pop(slot.first, None)
        await slot.close()
        disk.remove_tree(slot.folder)
        if self.way.isolation != enter.NAMESPACES:
            self._wipe(slot)

    def _sweep(self, slot: Slot) -> None:
        self._entrance.sweep(slot.user, slot.folder, slot.first, spare_first=True)

    def _kill(self, slot: Slot) -> None:
        if self.way.isolation == enter.NAMESPACES:  # all others in the namespace die with its first process
            with contextlib.suppress(ProcessLookupError):
                os.kill(slot.first, signal.SIGKILL)
        else:
            self._entrance.sweep(slot.user, slot.folder, slot.first, spare_first=False)

    def _wipe(self, slot: Slot) -> None:
        for path in (slot.paths.workspace, slot.paths.home):
            if path in (view.WORKSPACE, view.HOME):
                disk.empty(path)
        if self.way.own_users:
            disk.remove_files_of(slot.user)

    def reap(self) -> None:
        """Take note of processes that have ended, adopted ones included."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended = self._ended.get(pid)
            if ended is not None and not ended.done():
                ended.set_result(None)


def _ulimits(spec: Spec, *, own_users: bool) -> tuple[str, ...]:
    """Arguments of bash's `ulimit`. The number of processes is counted per user, so it is exact where slots have their
    own, and would count everyone else's where they have not."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    limits = ["-c", "0", "-n", str(files)]
    if spec.processes and own_users:
        limits += ["-u", str(spec.processes)]
    if spec.memory_mb:
        limits += ["-v", str(spec.memory_mb * 1024)]
    return tuple(limits)
