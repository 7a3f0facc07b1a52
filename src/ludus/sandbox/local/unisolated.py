"""Slots without isolation: **unsafe for code that you do not trust**.

A `local` slot is a temporary folder and a bash in it, run as the driver's own user. A command can read every file that
the user can, use the network, and see and signal the user's processes. What it gets is order, not safety: a clean
environment without the host's variables, limits on time and output (not on memory, processes or disk), and an end at
which its processes are killed and its folder is removed. Use it for tests and for code that you wrote.

`/workspace` and `/tmp` are folders of the slot: `read`, `write` and `cwd` translate the path. A command's own text is
not translated, so commands should use relative paths and `$TMPDIR`. Background processes are found by a variable in
their environment; a process that clears its environment *and* leaves the slot's process tree escapes `settle` and
`close`. A `base` is copied for each slot, and a snapshot is a whole copy.
"""

import asyncio
import os
import shutil
import subprocess
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec

from ludus.errors import SandboxError
from ludus.sandbox import WORKSPACE, Sandbox, SandboxSpec
from ludus.sandbox.archive import entries, extract
from ludus.sandbox.local.host_dir import HostDir, find_bash, remove_tree
from ludus.sandbox.processes import Child, descendants, is_dead, kill_trees
from ludus.sandbox.shell import Pipes, Shell
from ludus.sandbox.shell_sandbox import Layout, Place, ShellSandbox, open_sandbox

_START_SECONDS = 30.0
_MARK = "LUDUS_SLOT"


class Local:
    """Makes local slots. Close it when they are all closed."""

    def __init__(self) -> None:
        self._host: HostDir | None = None
        self._layers = 0

    async def create(self, spec: SandboxSpec) -> ShellSandbox:
        if self._host is None:
            self._host = HostDir()
        if spec.caches:
            raise SandboxError("sandbox.caches needs mounts, which 'local' slots do not have", retryable=False)
        host = self._host
        return await open_sandbox(spec, lambda stack: _open(host, spec, stack))

    async def snapshot(self, box: Sandbox) -> SandboxSpec:
        """The spec of slots that start with a copy of what the workspace is in `box` now."""
        assert self._host is not None, "there is a slot"
        self._layers += 1
        layer = self._host.path / f"layer-{self._layers}"
        packed = await box.pack(WORKSPACE)
        try:
            await asyncio.to_thread(lambda: extract(entries(packed), layer, all_links=True))
        except (OSError, ValueError) as error:
            raise SandboxError(f"no snapshot could be made: {error}") from error
        return msgspec.structs.replace(box.spec, base=(str(layer),))

    def close(self) -> None:
        if self._host is not None:
            self._host.close()
            self._host = None


async def _open(host: HostDir, spec: SandboxSpec, stack: AsyncExitStack) -> Place:
    """Start a slot. Whatever it takes on the host is put on `stack`, to be given back in reverse."""
    folder = host.slot()
    stack.push_async_callback(asyncio.to_thread, remove_tree, folder)
    io, workspace, tmp, jobs = (folder / name for name in ("io", "workspace", "tmp", "jobs"))
    for part in (io, workspace, tmp, jobs):
        part.mkdir()
    for layer in spec.base:
        await asyncio.to_thread(_copy, layer, workspace)
    pipes = Pipes.open()
    shell = Shell(pipes, io, str(workspace), sweep=lambda: _sweep(folder, child, spare=child.pid))
    stack.callback(shell.close)
    try:
        supervisor = shell.supervisor_arguments(str(host.lib), str(io), (), ("-c", "0"))
        child = _spawn([str(host.lib / "supervisor.sh"), *supervisor], spec, folder, pipes)
    finally:
        pipes.close_slot_ends()
    stack.push_async_callback(_end, child, folder)
    await shell.started(_START_SECONDS, lambda: child.pid)
    layout = Layout(str(workspace), str(tmp), str(io), str(host.lib), str(jobs), find_bash())
    return Place(shell, io, layout)


def _copy(layer: str, workspace: Path) -> None:
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


async def _end(child: Child, folder: Path) -> None:
    _sweep(folder, child, spare=0)
    await child.wait()


def _sweep(folder: Path, child: Child, *, spare: int) -> None:
    """Kill the slot's processes: those below its shell, and those that carry its mark, wherever they are."""

    def living() -> list[int]:
        return [pid for pid in (descendants([child.pid]) | _marked(folder)) - {spare} if not is_dead(pid)]

    for _ in range(100):  # bounded: something may fork faster than it is killed
        if not living():
            return
        kill_trees(living)


def _marked(folder: Path) -> set[int]:
    mark = f"{_MARK}={folder}".encode()
    found: set[int] = set()
    for process in Path("/proc").glob("[1-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.add(int(process.name))
    return found
