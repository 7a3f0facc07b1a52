"""The slots of one slotd: opens, uses and closes them."""

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
from ludus.sandbox.shell import Pipes, SlotShell
from ludus.sandbox.slotd import first_process, mount_view, slot_dirs
from ludus.sandbox.slotd.slot_port import SlotPort, listen_in_slot

_START_SECONDS = 30.0
_END_SECONDS = 30.0
_OPEN_FILES = 4096
_REMEMBERED = 32
"""How many results of a slot's executions are kept, in case the driver asks again."""
_REMEMBERED_BYTES = 32 << 20
_NOT_FOR_SLOTS = ("LUDUS_", "NOMAD_", "MODAL_", "APPTAINER", "SINGULARITY")


class SlotdSettings(NamedTuple):
    """Settings that the driver sends once, at the start."""

    view: str = "image"
    as_root: bool = False
    """Slots run as root of the container and are not isolated from slotd."""
    exclusive: bool = False
    """There is one slot at a time. So it may use the container's own /workspace if it cannot have a private one."""
    lapse: float = 30.0
    """Seconds of silence after which the driver counts as dead."""


class SlotSpec(NamedTuple):
    """What one slot must provide."""

    network: bool
    disk_mb: int
    processes: int
    memory_mb: int
    """The limit per process; 0 if the container limits the memory."""
    env: dict[str, str]
    mounts: tuple[tuple[str, str], ...] = ()
    """Folders (source, target) that the slot may read."""


class SlotPaths(NamedTuple):
    """Paths in the slot, as the slot sees them."""

    workspace: str
    tmp: str
    home: str
    io: str
    lib: str
    jobs: str
    bash: str


_PATHS_INSIDE = SlotPaths(
    mount_view.WORKSPACE,
    "/tmp",
    mount_view.HOME,
    mount_view.IO,
    mount_view.LIB,
    "/tmp/.ludus-jobs",
    mount_view.LIB + "/bash",
)


class Slot:
    """One slot. `Slots` opens and closes it."""

    def __init__(
        self, name: str, spec: SlotSpec, folder: str, user: int, paths: SlotPaths, sweep: Callable[[Slot], None] | None
    ) -> None:
        self.name = name
        self.spec = spec
        self.folder = folder
        self.user = user
        self.paths = paths
        self.pipes = Pipes.open()
        self.shell = SlotShell(
            self.pipes, Path(folder, "io"), paths.workspace, sweep=(lambda: sweep(self)) if sweep else None
        )
        self.first_pid = 0
        self.network_socket: socket.socket | None = None
        """A socket made in the slot's own network; None if it has none."""
        self._port: SlotPort | None = None
        self._executions: OrderedDict[str, asyncio.Task[ExecResult]] = OrderedDict()

    def execute(
        self, execution: str, command: bytes, stdin: bytes | None, seconds: float, keep: int
    ) -> asyncio.Task[ExecResult]:
        """Run a command, or return the task of an execution that is already known.

        With `stdin`, which may be empty, the command reads what `write_input` has stored for it, followed by `stdin`.
        """
        task = self._executions.get(execution)
        if task is None:
            if stdin is not None:
                self.write_input(execution, None, stdin)
            task = asyncio.ensure_future(self._run(execution, command, stdin is not None, seconds, keep))
            task.add_done_callback(_retrieve_error)
            self._executions[execution] = task
            self._forget_results()
        return task

    def find_execution(self, execution: str) -> asyncio.Task[ExecResult] | None:
        return self._executions.get(execution)

    def write_input(self, execution: str, offset: int | None, data: bytes) -> None:
        """Store a part of a command's standard input, at an offset or at the end. The slot may read it."""
        fd = os.open(self._locate_input(execution), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        try:
            os.fchmod(fd, 0o644)
            position = os.lseek(fd, 0, os.SEEK_END) if offset is None else offset
            view = memoryview(data)
            while view:
                written = os.pwrite(fd, view, position)
                position, view = position + written, view[written:]
        except OSError as error:
            raise SandboxError(f"slotd cannot store the input of a command: {error}") from error
        finally:
            os.close(fd)

    def _locate_input(self, execution: str) -> str:
        if not execution.replace("-", "").isalnum():
            raise ValueError(f"{execution!r} is not a valid execution id")
        return f"{self.folder}/io/in-{execution}"

    async def _run(self, execution: str, command: bytes, has_input: bool, seconds: float, keep: int) -> ExecResult:
        if not has_input:
            return await self.shell.run(command, seconds=seconds, keep=keep)
        try:
            text = f"( eval {quote(os.fsdecode(command))} ) <{quote(f'{self.paths.io}/in-{execution}')}"
            return await self.shell.run(os.fsencode(text), seconds=seconds, keep=keep)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._locate_input(execution))

    def _forget_results(self) -> None:
        """Drop old results, but never a running execution."""
        done = [name for name, task in self._executions.items() if task.done()]
        size = sum(_measure_result(self._executions[name]) for name in done)
        for name in done:
            if len(self._executions) <= _REMEMBERED and size <= _REMEMBERED_BYTES:
                return
            size -= _measure_result(self._executions.pop(name))

    async def open_port(self, name: str) -> SlotPort:
        """Return the port of that name; open it if needed. A slot has one port: another one is closed."""
        while self._port is not None and self._port.name != name:
            await self._close_port()
        if self._port is None:
            self._port = listen_in_slot(name, self.network_socket)
        return self._port

    def get_port(self, name: str) -> SlotPort:
        if self._port is None or self._port.name != name:
            raise SandboxError("the port is closed")
        return self._port

    async def close_port(self, name: str) -> None:
        if self._port is not None and self._port.name == name:
            await self._close_port()

    async def _close_port(self) -> None:
        port, self._port = self._port, None
        if port is not None:
            await port.close()

    def close_network_socket(self) -> None:
        if self.network_socket is not None:
            self.network_socket.close()

    async def close(self) -> None:
        """Close the shell, which ends every running execution, and the port."""
        self.shell.close()
        await self._close_port()
        self.close_network_socket()
        tasks = [task for task in self._executions.values() if not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=_END_SECONDS)


def _retrieve_error(task: asyncio.Task[ExecResult]) -> None:
    if not task.cancelled():
        task.exception()


def _measure_result(task: asyncio.Task[ExecResult]) -> int:
    if task.cancelled() or task.exception() is not None:
        return 0
    return len(task.result().stdout) + len(task.result().stderr)


class Slots:
    """All slots of this slotd."""

    def __init__(self, settings: SlotdSettings) -> None:
        self._settings = settings
        self._dir = slot_dirs.make_slotd_dir()
        self._null = os.open("/dev/null", os.O_RDONLY)
        self._slots: dict[str, Slot] = {}
        self._opening: dict[str, asyncio.Future[Slot]] = {}
        self._ended: dict[int, asyncio.Future[None]] = {}
        self._starter = first_process.find_starter(as_root=settings.as_root, probe=self._try_starter)

    @property
    def isolation(self) -> first_process.Isolation:
        return self._starter.isolation

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, name: str) -> Slot:
        slot = self._slots.get(name)
        if slot is None:
            raise SandboxError(f"slotd has no slot {name}")
        return slot

    # ---- opening --------------------------------------------------------------------------------------------------

    async def open(self, name: str, spec: SlotSpec) -> Slot:
        """Open a slot of that name, or return the one that an earlier try of the same request has opened."""
        if name in self._slots:
            return self._slots[name]
        if name not in self._opening:
            self._opening[name] = asyncio.ensure_future(self._open(name, spec))
        try:
            return await asyncio.shield(self._opening[name])
        finally:
            self._opening.pop(name, None)

    async def _open(self, name: str, spec: SlotSpec) -> Slot:
        slot = self._prepare_slot(name, spec)
        try:
            slot.first_pid, slot.network_socket = self._start(slot)
            if slot.first_pid:
                self._ended[slot.first_pid] = asyncio.get_running_loop().create_future()
            await slot.shell.wait_started(_START_SECONDS, lambda: slot.first_pid)
        except BaseException:
            await self._end(slot)
            raise
        self._slots[name] = slot
        return slot

    def _prepare_slot(self, name: str, spec: SlotSpec) -> Slot:
        if not name.isidentifier() or not name.isascii():
            raise SandboxError(f"{name!r} is not a valid slot name", retryable=False)
        user = first_process.draw_user() if self.isolation.own_users else os.geteuid()
        folder = self._dir.make_slot_folder(name)
        if self.isolation.level == first_process.NAMESPACES:
            slot_dirs.write_user_files(folder + "/etc", self._starter.get_inner_user(user))
            return Slot(name, spec, folder, user, _PATHS_INSIDE, None)
        if spec.mounts:
            raise SandboxError("sandbox.caches needs namespaces, which slotd may not make there", retryable=False)
        return Slot(name, spec, folder, user, self._make_shared_paths(folder, user), self._sweep)

    def _make_shared_paths(self, folder: str, user: int) -> SlotPaths:
        """Make the folders of a slot without a mount namespace."""
        own = {part: f"{folder}/{part}" for part in ("workspace", "home", "jobs", "tmp")}
        if self._settings.exclusive:
            for part, path in (("workspace", mount_view.WORKSPACE), ("home", mount_view.HOME)):
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
        if self.isolation.own_users:
            slot_dirs.write_demotion(folder + "/demote", user, self._dir.bash)
            if self._settings.exclusive:
                with contextlib.suppress(OSError):  # in a read-only image the user has no name
                    slot_dirs.write_user_files("/etc", user)
        places = (own["workspace"], own["tmp"], own["home"], folder + "/io", self._dir.lib, own["jobs"])
        return SlotPaths(*places, self._dir.bash)

    def _start(self, slot: Slot) -> first_process.FirstProcess:
        pipes = slot.pipes
        try:
            limits = _make_ulimits(slot.spec, own_users=self.isolation.level != first_process.NONE)
            supervisor = slot.shell.make_arguments(slot.paths.lib, slot.paths.io, (), limits)
            place = self._make_start_options(
                slot, pipes.slot_stdout, pipes.slot_stderr, (pipes.slot_command, pipes.slot_status)
            )
            script = f"{slot.paths.lib}/supervisor.sh"
            return self._launch(slot, place, [script, *supervisor])
        finally:
            pipes.close_slot_ends()

    def _launch(
        self, slot: Slot, place: first_process.StartOptions, arguments: list[str]
    ) -> first_process.FirstProcess:
        # The supervisor starts inner shells through argv[0]. If it runs as root, that is a program that switches user.
        inside = self.isolation.level == first_process.NAMESPACES
        program = mount_view.LIB + "/bash" if inside else self._dir.bash
        name = slot.folder + "/demote" if self.isolation.level == first_process.USER else program
        environment = self._make_environment(slot)
        return self._starter.start(place, program, [name, "--norc", "--noprofile", *arguments], environment)

    def _make_start_options(
        self, slot: Slot, stdout: int, stderr: int, passed: tuple[int, ...]
    ) -> first_process.StartOptions:
        folder, owner = slot.folder, self._starter.get_inner_user(slot.user)
        view_options = mount_view.ViewOptions(
            folder + "/root",
            self._settings.view,
            self._dir.lib,
            folder + "/io",
            folder + "/etc",
            owner,
            slot.spec.disk_mb,
            slot.spec.mounts,
        )
        return first_process.StartOptions(
            slot.user, slot.spec.network, view_options, self._null, stdout, stderr, passed
        )

    def _make_environment(self, slot: Slot) -> dict[str, str]:
        """Make the slot's environment: a container's own variables, as with `docker exec`; of a host, only PATH."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_FOR_SLOTS)}
        if self._settings.view == "system":
            own = {"PATH": os.environ.get("PATH", os.defpath)}
        own.setdefault("LANG", "C.UTF-8")
        own.update(HOME=slot.paths.home, USER="agent", LOGNAME="agent", SHELL="/bin/bash", TERM="dumb")
        own.update(PWD=slot.paths.workspace)
        if self.isolation.level != first_process.NAMESPACES and not self._settings.exclusive:
            own["TMPDIR"] = slot.paths.tmp
        if self.isolation.level == first_process.NONE:
            own[first_process.MARK] = slot.folder
        own.update(slot.spec.env)
        return own

    def _try_starter(self, starter: first_process.SlotStarter) -> str:
        """Start a slot briefly with `starter`. Returns the error, or "" if it works."""
        self._starter = starter
        try:
            slot = self._prepare_slot("probe", SlotSpec(False, 1, 0, 0, {}))
        except OSError as error:
            slot_dirs.remove_tree(f"{self._dir.path}/probe")
            return str(error)
        reading, writing = os.pipe()
        try:
            launched = self._launch(
                slot, self._make_start_options(slot, writing, writing, ()), ["-c", '"$BASH" -c "exit 7"']
            )
            first, slot.network_socket = launched
            os.close(writing)
            writing = -1
            message = os.read(reading, 1000).decode(errors="replace").strip()
            code = os.waitpid(first, 0)[1] >> 8 if first else 125
            return "" if code == 7 else message or f"exit code {code}"
        finally:
            os.close(reading)
            if writing >= 0:
                os.close(writing)
            slot.close_network_socket()
            slot.shell.close()
            slot.pipes.close_slot_ends()
            slot_dirs.remove_tree(slot.folder)

    # ---- closing --------------------------------------------------------------------------------------------------

    async def close(self, name: str) -> None:
        if name in self._opening:
            with contextlib.suppress(SandboxError):
                await asyncio.shield(self._opening[name])
        slot = self._slots.pop(name, None)
        if slot is not None:
            await self._end(slot)

    async def reset(self, name: str) -> Slot:
        """Close the slot and open it again: its processes and files are gone."""
        spec = self.get(name).spec
        await self.close(name)
        return await self.open(name, spec)

    async def close_all(self) -> None:
        await asyncio.gather(*(self.close(name) for name in [*self._slots, *self._opening]), return_exceptions=True)
        os.close(self._null)
        self._dir.remove()

    async def _end(self, slot: Slot) -> None:
        if slot.first_pid:
            self._kill(slot)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._ended[slot.first_pid]), _END_SECONDS)
            self._ended.pop(slot.first_pid, None)
        await slot.close()
        slot_dirs.remove_tree(slot.folder)
        if self.isolation.level != first_process.NAMESPACES:
            self._wipe(slot)

    def _sweep(self, slot: Slot) -> None:
        self._starter.sweep(slot.user, slot.folder, slot.first_pid, spare_first=True)

    def _kill(self, slot: Slot) -> None:
        if self.isolation.level == first_process.NAMESPACES:  # all others in the namespace die with its first process
            with contextlib.suppress(ProcessLookupError):
                os.kill(slot.first_pid, signal.SIGKILL)
        else:
            self._starter.sweep(slot.user, slot.folder, slot.first_pid, spare_first=False)

    def _wipe(self, slot: Slot) -> None:
        for path in (slot.paths.workspace, slot.paths.home):
            if path in (mount_view.WORKSPACE, mount_view.HOME):
                slot_dirs.empty_folder(path)
        if self.isolation.own_users:
            slot_dirs.remove_user_files(slot.user)

    def reap(self) -> None:
        """Reap processes that have ended, adopted ones included."""
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


def _make_ulimits(spec: SlotSpec, *, own_users: bool) -> tuple[str, ...]:
    """Make the arguments of bash's `ulimit`.

    The kernel counts processes per user. So the limit is set only if each slot has a user of its own: otherwise the
    processes of other slots would count too.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    limits = ["-c", "0", "-n", str(files)]
    if spec.processes and own_users:
        limits += ["-u", str(spec.processes)]
    if spec.memory_mb:
        limits += ["-v", str(spec.memory_mb * 1024)]
    return tuple(limits)
