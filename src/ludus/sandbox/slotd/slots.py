"""The slots of one slotd: opens, uses and closes them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections import OrderedDict
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from ludus.errors import SandboxError, SlotEvidence
from ludus.sandbox import ExecResult, syscalls
from ludus.sandbox.shell import SlotShell
from ludus.sandbox.shell_starter import ShellEnds
from ludus.sandbox.slotd import isolation as levels
from ludus.sandbox.slotd import mount_view, plain_starter, root_view, slot_dirs
from ludus.sandbox.slotd.children import Children
from ludus.sandbox.slotd.isolation import Isolation
from ludus.sandbox.slotd.namespace_starter import INNER_USER, ImagePlace, NamespaceStarter, SlotPlace
from ludus.sandbox.slotd.plain_starter import PlainStarter
from ludus.sandbox.slotd.shell_program import ShellProgram, SlotStarter
from ludus.sandbox.slotd.slot_port import SlotPort, listen_in_slot

_END_SECONDS = 30.0
_PROBE_CODE = 7
_OPEN_FILES = 4096
_REMEMBERED = 32
"""How many results of a slot's executions are kept, in case the driver asks again."""
_REMEMBERED_BYTES = 32 << 20
_NOT_FOR_SLOTS = ("LUDUS_", "NOMAD_", "MODAL_", "APPTAINER", "SINGULARITY")


class SlotdSettings(NamedTuple):
    """Settings that the driver sends once, at the start."""

    view: str = "image"
    """`image` or `system`: see `mount_view.py`. `root`: slots with an image, see `root_view.py`."""
    as_root: bool = False
    """Slots run as root of the container and are not isolated from slotd."""
    exclusive: bool = False
    """There is one slot at a time. So it may use the container's own /workspace if it cannot have a private one."""
    lapse: float = 30.0
    """Seconds of silence after which the driver counts as dead."""
    user: str = ""
    """For the view `root`: the user of the image, whose home is the slot's."""


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
    folders: tuple[str, ...] = ()
    """Further folders that the slot may write to."""


class SlotPaths(NamedTuple):
    """Paths in the slot, as the slot sees them."""

    workspace: str
    tmp: str
    home: str
    io: str
    lib: str
    jobs: str
    bash: str
    changes: str = mount_view.WORKSPACE
    """The folder with the files that differ from what the slot started with."""
    tree: str = mount_view.WORKSPACE
    """The folder whose changes these are."""


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
        self, name: str, spec: SlotSpec, folder: str, user: int, paths: SlotPaths, starter: SlotStarter
    ) -> None:
        self.name = name
        self.spec = spec
        self.folder = folder
        self.user = user
        self.paths = paths
        self.starter = starter
        self.shell = SlotShell(starter, Path(folder, "io"), paths.workspace)
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
            problem = f"slotd cannot store the input of a command: {error}"
            raise SandboxError(problem, evidence=SlotEvidence(outside=problem)) from error
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
            self._port = listen_in_slot(name, self.starter.network_socket)
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

    async def close(self) -> None:
        """Close the shell, which ends every running execution, and the port; end all processes."""
        self.shell.close()
        await self._close_port()
        await self.starter.close()
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
    """All slots of this slotd. Make it with `open_slots`."""

    def __init__(self, settings: SlotdSettings, children: Children) -> None:
        self._settings = settings
        self._children = children
        self._libc = _load_libc()
        self._has_image = settings.view == "root"
        self._folder = os.getcwd()
        """The container's working folder: that of its image."""
        self._dir = slot_dirs.make_slotd_dir(root_view.MISSING_USER if self._has_image else None)
        self._inner = slot_dirs.read_script("inner.line").decode()
        self._slots: dict[str, Slot] = {}
        self._opening: dict[str, asyncio.Future[Slot]] = {}
        self._cleaning = asyncio.ensure_future(children.run(self._dir.remove_orphans))
        self.isolation = Isolation(levels.NONE, reason="no system calls through ctypes")

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, name: str) -> Slot:
        slot = self._slots.get(name)
        if slot is None:
            problem = f"slotd has no slot {name}"
            raise SandboxError(problem, evidence=SlotEvidence(outside=problem))
        return slot

    async def find_isolation(self) -> None:
        """Use the best isolation that works here."""
        if self._libc is not None:
            choices = levels.WITH_IMAGE if self._has_image else levels.BEST_FIRST
            self.isolation = await levels.find_isolation(
                as_root=self._settings.as_root, probe=self._try_isolation, choices=choices
            )

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
        if not name.isidentifier() or not name.isascii():
            raise SandboxError(f"{name!r} is not a valid slot name", retryable=False)
        slot = self._prepare_slot(name, spec, self.isolation)
        try:
            await slot.starter.open()
            await slot.shell.start()
        except OSError as error:
            await self._end(slot)
            raise SandboxError(f"the slot cannot be made: {error}") from error
        except BaseException:
            await self._end(slot)
            raise
        self._slots[name] = slot
        return slot

    def _prepare_slot(self, name: str, spec: SlotSpec, isolation: Isolation) -> Slot:
        """Make the folders and the starter of a slot. Nothing runs yet."""
        user = levels.sample_user() if isolation.own_users else os.geteuid()
        if isolation.level != levels.NAMESPACES and spec.mounts:
            raise SandboxError("sandbox.caches needs namespaces, which slotd may not make there", retryable=False)
        folder = self._dir.make_slot_folder(user)
        if isolation.level == levels.NAMESPACES:
            paths = self._make_image_paths() if self._has_image else _PATHS_INSIDE
            starter: SlotStarter = self._make_namespace_starter(spec, isolation, user, folder, paths)
        else:
            paths = self._make_shared_paths(folder, user, isolation)
            if self._settings.exclusive:
                _make_folders(spec.folders, user)
            program = self._make_program(spec, paths, isolation, folder)
            starter = PlainStarter(
                self._libc,
                self._children,
                program,
                user=user if isolation.own_users else None,
                mark=folder,
                other_marks=lambda: [slot.folder for slot in self._slots.values() if slot.folder != folder],
            )
        return Slot(name, spec, folder, user, paths, starter)

    def _make_image_paths(self) -> SlotPaths:
        home = slot_dirs.find_home(self._settings.user) if self._settings.user else os.environ.get("HOME", "/root")
        return _PATHS_INSIDE._replace(workspace=self._folder, home=home, changes=root_view.CHANGES, tree="/")

    def _make_namespace_starter(
        self, spec: SlotSpec, isolation: Isolation, user: int, folder: str, paths: SlotPaths
    ) -> NamespaceStarter:
        assert self._libc is not None
        owner = INNER_USER if isolation.in_user_namespace else user
        if not self._has_image:
            slot_dirs.write_user_files(folder + "/etc", owner)
        view = mount_view.ViewOptions(
            folder + "/root",
            self._settings.view,
            self._dir.lib,
            folder + "/io",
            folder + "/etc",
            owner,
            spec.disk_mb,
            self._dir.path,
            spec.mounts,
            spec.folders,
        )
        program = self._make_program(spec, paths, isolation, folder)
        image = ImagePlace(folder + "/changes", paths.workspace) if self._has_image else None
        place = SlotPlace(user, spec.network, view, image)
        return NamespaceStarter(self._libc, self._children, isolation, place, program)

    def _make_shared_paths(self, folder: str, user: int, isolation: Isolation) -> SlotPaths:
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
        if isolation.own_users and self._settings.exclusive:
            with contextlib.suppress(OSError):  # in a read-only image the user has no name
                slot_dirs.write_user_files("/etc", user)
        places = (own["workspace"], own["tmp"], own["home"], folder + "/io", self._dir.lib, own["jobs"])
        return SlotPaths(*places, self._dir.bash)

    def _make_program(self, spec: SlotSpec, paths: SlotPaths, isolation: Isolation, folder: str) -> ShellProgram:
        environment = self._make_environment(spec, paths, isolation, folder)
        limits = make_limits(spec, own_users=isolation.level != levels.NONE)
        return ShellProgram(paths.bash, self._inner, paths.io, paths.workspace, environment, limits)

    def _make_environment(self, spec: SlotSpec, paths: SlotPaths, isolation: Isolation, folder: str) -> dict[str, str]:
        """Make the slot's environment: a container's own variables, as with `docker exec`; of a host, only PATH."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_FOR_SLOTS)}
        if self._settings.view == "system":
            own = {"PATH": os.environ.get("PATH", os.defpath)}
        own.setdefault("LANG", "C.UTF-8")
        if not self._has_image:  # an image has the programs that it has
            own["PATH"] = f"{own.get('PATH', os.defpath)}:{paths.lib}/bin"
        name = "root" if self._has_image else "agent"
        own.update(HOME=paths.home, USER=name, LOGNAME=name, SHELL="/bin/bash", TERM="dumb")
        own.update(PWD=paths.workspace)
        if isolation.level != levels.NAMESPACES and not self._settings.exclusive:
            own["TMPDIR"] = paths.tmp
        if isolation.level == levels.NONE:
            own[plain_starter.MARK] = folder
        own.update(spec.env)
        return own

    async def _try_isolation(self, isolation: Isolation) -> str:
        """Run a program in a slot that is isolated in this way. Returns the error, or "" if it works."""
        reading, writing = os.pipe()
        slot: Slot | None = None
        try:
            slot = self._prepare_slot("probe", SlotSpec(False, 1, 0, 0, {}), isolation)
            code = await _run_probe(slot.starter, writing)
        except OSError as error:
            return str(error)
        finally:
            os.close(writing)
            message = os.read(reading, 1000).decode(errors="replace").strip()
            os.close(reading)
            if slot is not None:
                await self._end(slot)
        return "" if code == _PROBE_CODE else message or f"exit code {code}"

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
        await self._cleaning
        await self._children.run(self._dir.remove)

    async def _end(self, slot: Slot) -> None:
        await slot.close()
        await self._children.run(lambda: self._remove_files(slot))

    def _remove_files(self, slot: Slot) -> None:
        """Remove what a slot has left. This runs in a forked process: an agent may have left much."""
        slot_dirs.remove_tree(slot.folder)
        if self._has_image:
            return  # its files were in its own namespace, and these folders are the image's
        for path in (slot.paths.workspace, slot.paths.home):
            if path in (mount_view.WORKSPACE, mount_view.HOME):
                slot_dirs.empty_folder(path)
        if self._settings.exclusive and self.isolation.level != levels.NAMESPACES:
            for path in slot.spec.folders:
                slot_dirs.empty_folder(path)
        if slot.user != os.geteuid():
            slot_dirs.remove_user_files(slot.user)


async def open_slots(settings: SlotdSettings, children: Children) -> Slots:
    """Find out how slots can be isolated here. `children.reap` must be called on SIGCHLD already."""
    slots = Slots(settings, children)
    await slots.find_isolation()
    return slots


def _make_folders(folders: tuple[str, ...], user: int) -> None:
    """Make further folders of the only slot of a container."""
    for path in folders:
        with contextlib.suppress(OSError):  # the image is read-only
            os.makedirs(path, exist_ok=True)
            os.chown(path, user, user)


def _load_libc() -> syscalls.Libc | None:
    """The C library; None if Python has no way to call it. This process then adopts the orphans of its descendants."""
    try:
        libc = syscalls.Libc()
        libc.adopt_orphans()
    except (ImportError, OSError, AttributeError):
        return None
    return libc


async def _run_probe(starter: SlotStarter, stderr: int) -> int:
    """Run bash in bash, and return the exit code: `_PROBE_CODE` if all went well."""
    null = os.open(os.devnull, os.O_RDWR)
    arguments = [b"bash", b"--norc", b"--noprofile", b"-c", b'"$BASH" -c "exit %d"' % _PROBE_CODE]
    try:
        await starter.open()
        process = await starter.run_program(arguments, ShellEnds(null, null, null, stderr))
        return await process.exited
    finally:
        os.close(null)


def make_limits(spec: SlotSpec, *, own_users: bool) -> tuple[tuple[int, int], ...]:
    """Make the resource limits of a slot's shells.

    The kernel counts processes per user. So the limit is set only if each slot has a user of its own: otherwise the
    processes of other slots would count too.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, files)]
    if spec.processes and own_users:
        limits.append((resource.RLIMIT_NPROC, spec.processes))
    if spec.memory_mb:
        limits.append((resource.RLIMIT_AS, spec.memory_mb * 2**20))
    return tuple(limits)
