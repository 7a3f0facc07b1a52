"""Slots without isolation: **unsafe for code that you do not trust**.

A `local` slot is a temporary folder with a bash that runs as the driver's own user. A command can read every file that
the user can read, use the network, and see and signal the user's processes. The slot provides order, not safety: an
environment without the host's variables, limits on time and output (not on memory, processes or disk), and a cleanup
that kills its processes and removes its folder. Use it for tests and for code that you wrote.

`/workspace` and `/tmp` are folders of the slot: `read`, `write` and `cwd` translate the path. The text of a command is
not translated, so commands should use relative paths and `$TMPDIR`. Background processes are found by a variable in
their environment. A process that clears its environment *and* leaves the slot's process tree escapes `settle` and
`close`. A `base` is copied for each slot, and a snapshot is a full copy.
"""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import MappingProxyType

import msgspec

from ludus.errors import SandboxError
from ludus.sandbox import WORKSPACE, Sandbox, SandboxSpec
from ludus.sandbox.archive import extract_entries, read_entries
from ludus.sandbox.backend import BackendFinding, BackendSettings, SlotBackend
from ludus.sandbox.limits import LimitStatus
from ludus.sandbox.local.host_dir import HostDir, find_bash, remove_tree
from ludus.sandbox.processes import Child, find_descendants, is_dead, kill_trees
from ludus.sandbox.shell import Pipes, SlotShell
from ludus.sandbox.shell_sandbox import Layout, ShellSandbox, SlotParts, open_sandbox

_START_SECONDS = 30.0
_MARK = "LUDUS_SLOT"


class LocalSettings(BackendSettings, frozen=True, tag="local"):
    """Slots of this machine that isolate nothing: for trusted code only."""


class Local(SlotBackend[LocalSettings]):
    """Makes local slots. Close it after all its slots are closed."""

    name = "local"
    Settings = LocalSettings

    def __init__(
        self, settings: LocalSettings = LocalSettings(), secrets: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__(settings, secrets)
        self._host: HostDir | None = None
        self._layers = 0

    async def create(self, spec: SandboxSpec) -> ShellSandbox:
        if self._host is None:
            self._host = HostDir()
        if spec.caches:
            raise SandboxError("sandbox.caches needs mounts, which 'local' slots do not have", retryable=False)
        host = self._host
        return await open_sandbox(spec, lambda stack: _open_slot(host, spec, stack))

    async def snapshot(self, box: Sandbox) -> SandboxSpec:
        """Save the workspace of `box`, and return the spec of slots that start with a copy of it."""
        assert self._host is not None, "a slot was made"
        self._layers += 1
        layer = self._host.path / f"layer-{self._layers}"
        packed = await box.pack(WORKSPACE)
        try:
            await asyncio.to_thread(lambda: extract_entries(read_entries(packed), layer, all_links=True))
        except (OSError, ValueError) as error:
            raise SandboxError(f"no snapshot could be made: {error}") from error
        return msgspec.structs.replace(box.spec, base=(str(layer),))

    @classmethod
    async def look(cls) -> BackendFinding:
        limits = (
            *(LimitStatus(limit, "nothing", False) for limit in ("memory", "processes", "disk")),
            LimitStatus("time and output", "the driver", True),
        )
        return BackendFinding(cls.name, "works", "isolates nothing: for trusted code only", limits=limits)

    async def try_out(self) -> BackendFinding:
        return await self.look()

    async def close(self) -> None:
        if self._host is not None:
            self._host.close()
            self._host = None


async def _open_slot(host: HostDir, spec: SandboxSpec, stack: AsyncExitStack) -> SlotParts:
    """Start a slot. The cleanup of everything it takes on the host is pushed onto `stack`."""
    folder = host.make_slot_folder()
    stack.push_async_callback(asyncio.to_thread, remove_tree, folder)
    io, workspace, tmp, jobs = (folder / name for name in ("io", "workspace", "tmp", "jobs"))
    for part in (io, workspace, tmp, jobs):
        part.mkdir()
    for layer in spec.base:
        await asyncio.to_thread(_copy_layer, layer, workspace)
    pipes = Pipes.open()
    shell = SlotShell(pipes, io, str(workspace), sweep=lambda: _sweep(folder, child, spare=child.pid))
    stack.callback(shell.close)
    try:
        supervisor = shell.make_arguments(str(host.lib), str(io), (), ("-c", "0"))
        child = _spawn([str(host.lib / "supervisor.sh"), *supervisor], spec, folder, pipes)
    finally:
        pipes.close_slot_ends()
    stack.push_async_callback(_end_slot, child, folder)
    await shell.wait_started(_START_SECONDS, lambda: child.pid)
    layout = Layout(str(workspace), str(tmp), str(io), str(host.lib), str(jobs), find_bash())
    return SlotParts(shell, io, layout)


def _copy_layer(layer: str, workspace: Path) -> None:
    try:
        shutil.copytree(layer, workspace, symlinks=True, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise SandboxError(f"sandbox.base '{layer}' cannot be used: {error}", retryable=False) from error


def _spawn(command: list[str], spec: SandboxSpec, folder: Path, pipes: Pipes) -> Child:
    workspace = str(folder / "workspace")
    try:
        popen = subprocess.Popen(
            [find_bash(), "--norc", "--noprofile", *command],
            stdin=subprocess.DEVNULL,
            stdout=pipes.slot_stdout,
            stderr=pipes.slot_stderr,
            pass_fds=(pipes.slot_command, pipes.slot_status),
            cwd=workspace,
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": workspace,
                "TMPDIR": str(folder / "tmp"),
                "LANG": "C.UTF-8",
                "TERM": "dumb",
                **dict(spec.env),
                _MARK: str(folder),
            },
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxError(f"bash did not start: {error}") from error
    return Child(popen)


async def _end_slot(child: Child, folder: Path) -> None:
    _sweep(folder, child, spare=0)
    await child.wait()


def _sweep(folder: Path, child: Child, *, spare: int) -> None:
    """Kill the slot's processes: the descendants of its shell, and all processes with its mark."""

    def find_living() -> list[int]:
        return [pid for pid in (find_descendants([child.pid]) | _find_marked(folder)) - {spare} if not is_dead(pid)]

    for _ in range(100):  # bounded: processes may fork faster than they are killed
        if not find_living():
            return
        kill_trees(find_living)


def _find_marked(folder: Path) -> set[int]:
    mark = f"{_MARK}={folder}".encode()
    found: set[int] = set()
    for process in Path("/proc").glob("[1-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.add(int(process.name))
    return found
