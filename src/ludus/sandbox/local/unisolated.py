"""Slots without isolation: **unsafe for code that you do not trust**.

A `local` slot is a temporary folder with a bash that runs as the driver's own user. A command can read every file that
the user can read, use the network, and see and signal the user's processes. The slot provides order, not safety: an
environment without the host's variables, limits on time and output (not on memory, processes or disk), and a cleanup
that kills its processes and removes its folder. Use it for tests and for code that you wrote.

`/workspace` and `/tmp` are folders of the slot: `read`, `write` and `cwd` translate the path. The text of a command is
not translated, so commands should use relative paths and `$TMPDIR`. Each slot has a fork server of its own. It adopts
every process that the slot's commands leave behind, and ends them with `settle` and `close`. A `base` is copied for
each slot, and a snapshot is a full copy.
"""

import asyncio
import os
import shutil
from collections.abc import Mapping
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from types import MappingProxyType

import msgspec

from ludus.errors import SandboxError
from ludus.sandbox import WORKSPACE, Sandbox, SandboxSpec
from ludus.sandbox.archive import extract_entries, read_entries
from ludus.sandbox.backend import BackendFinding, SlotBackend, check_image
from ludus.sandbox.backend_settings import LocalSettings
from ludus.sandbox.limits import LimitStatus
from ludus.sandbox.local.fork_client import ForkServer, ForkServers, ForkStarter, SlotProgram
from ludus.sandbox.local.host_dir import HostDir, find_bash, remove_tree
from ludus.sandbox.shell import SlotShell
from ludus.sandbox.shell_sandbox import Layout, ShellSandbox, SlotParts, open_sandbox

_MARK = "LUDUS_SLOT"
"""A variable of every process of a slot. The janitor finds those of a driver that has died by it."""


class Local(SlotBackend[LocalSettings]):
    """Makes local slots. Close it after all its slots are closed."""

    name = "local"
    Settings = LocalSettings

    def __init__(
        self, settings: LocalSettings = LocalSettings(), secrets: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__(settings, secrets)
        self._host: HostDir | None = None
        self._servers = ForkServers()
        self._layers = 0

    async def create(self, spec: SandboxSpec) -> ShellSandbox:
        if self._host is None:
            self._host = HostDir()
        check_image(self, spec)
        if spec.caches:
            raise SandboxError("sandbox.caches needs mounts, which 'local' slots do not have", retryable=False)
        host = self._host
        return await open_sandbox(spec, lambda stack: _open_slot(host, self._servers.get(), spec, stack))

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
        await self._servers.close()
        if self._host is not None:
            self._host.close()
            self._host = None


async def _open_slot(host: HostDir, server: ForkServer, spec: SandboxSpec, stack: AsyncExitStack) -> SlotParts:
    """Start a slot. The cleanup of everything it takes on the host is pushed onto `stack`."""
    folder = host.make_slot_folder()
    stack.push_async_callback(asyncio.to_thread, remove_tree, folder)
    io, workspace, tmp, jobs = (folder / name for name in ("io", "workspace", "tmp", "jobs"))
    for part in (io, workspace, tmp, jobs):
        part.mkdir()
    for layer in spec.base:
        await asyncio.to_thread(_copy_layer, layer, workspace)
    own_server = await server.copy()
    stack.callback(own_server.close)
    starter = ForkStarter(own_server, 0, _make_program(host, spec, folder), lambda: nullcontext(()))
    stack.push_async_callback(starter.close)
    shell = SlotShell(starter, io, str(workspace))
    stack.callback(shell.close)
    own_server.on_end(shell.fail)
    await shell.start()
    layout = Layout(str(workspace), str(tmp), str(io), str(host.lib), str(jobs), find_bash())
    return SlotParts(shell, io, layout, await own_server.find_pid())


def _make_program(host: HostDir, spec: SandboxSpec, folder: Path) -> SlotProgram:
    workspace, bash = str(folder / "workspace"), find_bash()
    inner = (host.lib / "inner.line").read_text()
    environment = {
        "PATH": f"{os.environ.get('PATH', os.defpath)}:{host.lib}/bin",  # the last has `python`
        "HOME": workspace,
        "TMPDIR": str(folder / "tmp"),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        **dict(spec.env),
        _MARK: str(folder),
    }
    return SlotProgram(
        program=(bash, "--norc", "--noprofile", "-c", inner, "bash", str(folder / "io")),
        home=workspace,
        environment=environment,
        limits={"RLIMIT_CORE": 0},
    )


def _copy_layer(layer: str, workspace: Path) -> None:
    try:
        shutil.copytree(layer, workspace, symlinks=True, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise SandboxError(f"sandbox.base '{layer}' cannot be used: {error}", retryable=False) from error
