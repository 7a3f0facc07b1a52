"""`ShellSandbox`: the whole `Sandbox` protocol on top of one persistent shell.

A backend makes namespaces, folders and limits, and provides a `SlotShell`. Everything else is
the same for all backends and implemented here. Files and background processes go through commands in the slot too. So a
path means what it means to the agent, symlinks and permissions included, and no file is ever opened on the host.

Those commands run in a bash of their own (`slot_scripts/ops.sh`), so that a `PATH`, a function or a `set -e` in the
agent's shell does not break them by accident. The agent can still break them on purpose, because its shell starts that
bash: until `settle`, what a slot reports about its files is only as true as the agent allows. After `settle`, no
process of the agent is involved. A background process does inherit the shell's folder and exported variables.
"""

import asyncio
import errno
import posixpath
import re
import secrets
from asyncio import to_thread
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import msgspec

from ludus.errors import SandboxError
from ludus.sandbox import TRANSFER_BYTES, WORKSPACE, ExecResult, SandboxSpec
from ludus.sandbox.archive import ArchiveTooLarge, extract_entries, gather_entries, make_archive, read_entries
from ludus.sandbox.shell import SUBSHELL, SlotShell, write_input
from ludus.sandbox.teardown import run_shielded

_OPERATION_SECONDS = 60.0
_SEND_SECONDS = 2.0
_PACK_BYTES = 32 * 2**20
"""The size of the parts in which an archive is read: a command that writes more than `FLOOD_BYTES` is killed."""
_PADDING = 32_768
"""What an archive takes at least on top of its content: the size limit is for the content."""
_REMEMBERED = 64
"""How many results are kept of executions that may be asked for again."""
_BLOCKING_BYTES = 2**20
"""Larger input is written to the host's disk in a thread."""
_EXIT_CODE = re.compile(rb"[0-9]{1,3}")
_ERRORS = {
    "No such file or directory": errno.ENOENT,
    "Permission denied": errno.EACCES,
    "Operation not permitted": errno.EPERM,
    "Is a directory": errno.EISDIR,
    "Not a directory": errno.ENOTDIR,
    "File exists": errno.ENOTDIR,  # mkdir -p, when a parent is a file
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "File too large": errno.EFBIG,
    "Read-only file system": errno.EROFS,
    "File name too long": errno.ENAMETOOLONG,
    "Too many levels of symbolic links": errno.ELOOP,
    "Operation not supported": errno.ENOTSUP,
    "Cannot allocate memory": errno.ENOMEM,
}


@dataclass(frozen=True)
class Layout:
    """Paths in the slot, as the slot sees them."""

    workspace: str
    tmp: str
    io: str
    """The folder with long commands and standard input, written by the host."""
    lib: str
    """The slot's scripts."""
    jobs: str
    """The folder with the logs of background processes."""
    bash: str
    changes: str = WORKSPACE
    """The folder with the files that differ from what the slot started with."""
    tree: str = WORKSPACE
    """The folder whose changes these are: /workspace, or the root of a slot with an image."""


@dataclass(frozen=True)
class SlotParts:
    """What a backend makes for a slot, anew at each `reset`."""

    shell: SlotShell
    io: Path
    """The path of `layout.io` on the host."""
    layout: Layout
    first_process: int
    """The pid of the slot's first process on the host."""


MakeSlot = Callable[[AsyncExitStack], Awaitable[SlotParts]]
"""Makes the parts of a slot, and pushes the cleanup of everything it takes on the host onto the stack."""


async def open_sandbox(spec: SandboxSpec, make: MakeSlot) -> "ShellSandbox":
    """Open a slot. If it cannot be made, everything is cleaned up."""
    resources = AsyncExitStack()
    try:
        parts = await make(resources)
    except BaseException:
        await run_shielded(resources.aclose())
        raise
    return ShellSandbox(spec, parts, resources, make)


class ShellSandbox:
    """A slot made of a shell and of resources on the host. Closing `resources` frees all of them.

    `make` makes the parts anew, for `reset`.
    """

    def __init__(
        self,
        spec: SandboxSpec,
        parts: SlotParts,
        resources: AsyncExitStack,
        make: MakeSlot | None = None,
    ) -> None:
        self._spec = spec
        self._make = make
        self._closed = False
        self._series = secrets.token_hex(4)
        self._executions = 0
        self._results: dict[str, asyncio.Future[ExecResult]] = {}
        """Executions that have an id, oldest first."""
        self._use_parts(parts)
        self._resources = resources
        self._inputs = 0
        self._jobs: dict[str, bool] = {}
        """Background processes by id: whether they may still run."""

    def _use_parts(self, parts: SlotParts) -> None:
        self._shell, self._io, self._layout, self._first = parts.shell, parts.io, parts.layout, parts.first_process

    @property
    def spec(self) -> SandboxSpec:
        return self._spec

    @property
    def alive(self) -> bool:
        return self._shell.alive

    @property
    def first_process(self) -> int:
        """The pid of the slot's first process on the host, 0 if it is gone. `sandbox.port` enters its namespaces."""
        return self._first if self._shell.alive else 0

    # ---- commands -------------------------------------------------------------------------------------------------

    async def exec(
        self,
        command: str,
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        execution: str | None = None,
    ) -> ExecResult:
        if execution is not None:
            return await self._run_once(
                execution, lambda: self.exec(command, timeout=timeout, stdin=stdin, env=env, cwd=cwd)
            )
        if env or cwd is not None:
            command = _wrap_subshell(command, env or {}, None if cwd is None else self.resolve(cwd))
        seconds = self._spec.command_seconds if timeout is None else timeout
        result = await self._run(command, seconds=seconds, keep=self._spec.output_bytes, stdin=stdin)
        self._executions += 1
        return msgspec.structs.replace(result, id=f"{self._series}-{self._executions}")

    async def _run_once(self, execution: str, run: Callable[[], Awaitable[ExecResult]]) -> ExecResult:
        """Return the result of the execution with that id, and run it if there is none. A failed one is forgotten."""
        results = self._results  # `settle` and `reset` replace it
        if known := results.get(execution):
            return await asyncio.shield(known)
        result = results[execution] = asyncio.get_running_loop().create_future()
        try:
            result.set_result(msgspec.structs.replace(await run(), id=execution))
        except BaseException as error:
            del results[execution]
            result.set_exception(SandboxError(f"execution '{execution}' did not end: {type(error).__name__}: {error}"))
            result.exception()  # mark it as retrieved: maybe no other caller waits for it
            raise
        finally:
            ended = [name for name, each in results.items() if each.done()]
            for name in ended[: max(0, len(results) - _REMEMBERED)]:
                del results[name]
        return result.result()

    async def _run(self, command: str, *, seconds: float, keep: int, stdin: bytes | None = None) -> ExecResult:
        if "\0" in command:
            raise ValueError("a command cannot contain a NUL character")
        if stdin is None:
            return await self._shell.run(command.encode(), seconds=seconds, keep=keep)
        self._inputs += 1
        name = f"in-{self._inputs}"
        path = self._io / name
        try:
            if len(stdin) > _BLOCKING_BYTES:
                await to_thread(write_input, path, stdin)
            else:
                write_input(path, stdin)
            text = f"{SUBSHELL.decode()}eval {quote(command)} ) <{quote(f'{self._layout.io}/{name}')}"
            return await self._shell.run(text.encode(), seconds=seconds, keep=keep)
        finally:
            path.unlink(missing_ok=True)

    async def _run_operation(
        self,
        operation: str,
        *arguments: str,
        seconds: float = _OPERATION_SECONDS,
        keep: int = 65_536,
        stdin: bytes | None = None,
    ) -> ExecResult:
        result = await self._run(self._format_operation(operation, *arguments), seconds=seconds, keep=keep, stdin=stdin)
        if result.timed_out and operation != "send":
            raise SandboxError(f"the slot did not {operation} within {seconds:g} s")
        return result

    def _format_operation(self, *words: str) -> str:
        script = (self._layout.bash, "-p", f"{self._layout.lib}/ops.sh", self._layout.jobs)
        return " ".join(map(quote, (*script, *words)))

    # ---- files ----------------------------------------------------------------------------------------------------

    async def read(self, path: str, *, max_bytes: int = 10_000_000) -> bytes:
        inside = self.resolve(path)
        result = await self._run_operation("read", inside, str(max_bytes + 1), keep=max_bytes + 1)
        if result.exit_code != 0:
            raise _make_os_error(result, path)
        if len(result.stdout) > max_bytes:
            raise ValueError(f"{path} is larger than {max_bytes} bytes")
        return result.stdout

    async def write(self, path: str, data: bytes) -> None:
        result = await self._run_operation("write", self.resolve(path), stdin=data)
        if result.exit_code != 0:
            raise _make_os_error(result, path)

    async def upload(self, source: Path, target: str, *, max_bytes: int = TRANSFER_BYTES) -> None:
        inside = self.resolve(target)
        if await to_thread(source.is_dir):
            packed = await to_thread(lambda: make_archive(gather_entries(source, max_bytes=max_bytes)))
            return await self._unpack(packed, inside, target)
        folder, name = posixpath.split(inside)
        packed = await to_thread(lambda: make_archive(gather_entries(source, name=name, max_bytes=max_bytes)))
        return await self._unpack(packed, folder, target)

    async def download(self, source: str, target: Path, *, max_bytes: int = TRANSFER_BYTES) -> None:
        is_folder = (await self._run_operation("folder", self.resolve(source))).exit_code == 0
        packed = await self.pack(source, max_bytes=max_bytes)
        try:
            items = await to_thread(lambda: list(read_entries(packed, max_bytes=max_bytes)))
        except ValueError as error:
            raise OSError(errno.EIO, str(error), source) from error
        if is_folder:
            await to_thread(extract_entries, items, target)
            return
        if len(items) != 1 or items[0].data is None:
            raise OSError(errno.ENOTSUP, "neither a file nor a folder", source)
        await to_thread(extract_entries, [msgspec.structs.replace(items[0], path=target.name)], target.parent)

    async def pack(self, path: str, *, max_bytes: int = TRANSFER_BYTES) -> bytes:
        return await self._pack("pack", path, max_bytes)

    @property
    def changes_path(self) -> str:
        """The folder in the slot with its changes to its base; empty if the slot has no layers."""
        return self._layout.changes if self._layout.changes != WORKSPACE else ""

    @property
    def tree(self) -> str:
        """The folder that `verify` gets a copy of: /workspace, or the root of a slot with an image."""
        return self._layout.tree

    async def pack_changes(self, *, max_bytes: int = TRANSFER_BYTES) -> bytes:
        """Pack what differs from the layers that the slot started with. The archive also lists what was removed."""
        return await self._pack("layer", self._layout.changes, max_bytes)

    async def _pack(self, operation: str, path: str, max_bytes: int) -> bytes:
        inside, parts, size = self.resolve(path), list[bytes](), 0
        while True:
            part = await self._run_operation(operation, inside, str(size + 1), str(_PACK_BYTES), keep=_PACK_BYTES)
            if part.exit_code != 0:
                raise _make_os_error(part, path)
            parts.append(part.stdout)
            size += len(part.stdout)
            if size > max_bytes + _PADDING:
                raise ArchiveTooLarge(path, max_bytes)
            if len(part.stdout) < _PACK_BYTES:
                return parts[0] if len(parts) == 1 else await to_thread(b"".join, parts)

    async def unpack(self, archive: bytes, path: str, *, replace: bool = False) -> None:
        await self._unpack(archive, self.resolve(path), path, replace=replace)

    async def _unpack(self, packed: bytes, inside: str, path: str, *, replace: bool = False) -> None:
        result = await self._run_operation("replace" if replace else "unpack", inside, stdin=packed)
        if result.exit_code != 0:
            raise _make_os_error(result, path)

    def resolve(self, path: str) -> str:
        """Return the path as commands in the slot must write it. A backend may have /workspace and /tmp elsewhere."""
        if "\0" in path or not path:
            raise ValueError(f"{path!r} is not a path")
        absolute = posixpath.join(WORKSPACE, path)
        folders = ((WORKSPACE, self._layout.workspace), ("/tmp", self._layout.tmp))
        if any(_is_below(absolute, actual) for _, actual in folders):
            return absolute  # resolved already
        for name, actual in folders:
            if _is_below(absolute, name):
                return actual + absolute[len(name) :]
        return absolute

    # ---- background processes -------------------------------------------------------------------------------------

    async def start(self, command: str, *, cwd: str | None = None) -> str:
        process = f"bg-{len(self._jobs) + 1}"
        self._jobs[process] = True
        operation = self._format_operation("start", process, command)
        if cwd is not None:
            operation = _wrap_subshell(operation, {}, self.resolve(cwd))
        result = await self._run(operation, seconds=_OPERATION_SECONDS, keep=65_536)
        if result.exit_code != 0:
            raise _make_os_error(result, cwd or command)
        return process

    async def poll(self, process: str) -> int | None:
        may_run = self._jobs[process]
        result = await self._run_operation("poll" if may_run else "code", process)
        if result.exit_code == 0 and not result.stdout:
            return None
        self._jobs[process] = False
        return int(result.stdout) if _EXIT_CODE.fullmatch(result.stdout) else 137

    async def log(self, process: str, *, max_bytes: int = 100_000) -> bytes:
        self._jobs[process]
        return (await self._run_operation("log", process, str(max_bytes), keep=max_bytes)).stdout

    async def send(self, process: str, data: bytes) -> None:
        if await self.poll(process) is not None:
            raise ProcessLookupError(errno.ESRCH, "the process has ended", process)
        if (await self._run_operation("send", process, seconds=_SEND_SECONDS, stdin=data)).timed_out:
            raise BlockingIOError(errno.EAGAIN, "the process does not read its input", process)

    async def kill(self, process: str) -> None:
        if self._jobs[process]:
            await self._run_operation("kill", process)

    # ---- the slot -------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        await self._shell.restart()
        self._jobs = dict.fromkeys(self._jobs, False)
        self._results = {}

    async def reset(self) -> None:
        if self._make is None:
            raise SandboxError("a slot of this kind cannot be reset", retryable=False)
        if self._closed:
            raise SandboxError("the slot is closed")
        old, self._resources = self._resources, AsyncExitStack()
        closing = asyncio.create_task(old.aclose())
        try:
            parts = await self._make(self._resources)
        except BaseException:
            self._closed = True  # there are neither old nor new parts
            await run_shielded(self._resources.aclose())
            raise
        finally:
            await run_shielded(_wait_task(closing))
        self._use_parts(parts)
        self._jobs, self._results = {}, {}

    async def close(self) -> None:
        self._closed = True
        await run_shielded(self._resources.aclose())


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


async def _wait_task(task: asyncio.Task[None]) -> None:
    await task


def _wrap_subshell(command: str, env: Mapping[str, str], cwd: str | None) -> str:
    steps = [] if cwd is None else [f"cd -- {quote(cwd)} || exit 126"]
    for name, value in env.items():
        if not name.isidentifier() or not name.isascii():
            raise ValueError(f"{name!r} is not the name of a variable")
        steps.append(f"export {name}={quote(value)}")
    return SUBSHELL.decode() + "\n".join([*steps, f"eval {quote(command)}"]) + " )"


def _make_os_error(result: ExecResult, path: str) -> OSError:
    """Convert the last line of a failed operation's stderr to the matching Python exception."""
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    last = lines[-1] if lines else f"exit code {result.exit_code}"
    for message, number in _ERRORS.items():
        if last.endswith(message):
            return OSError(number, message, path)
    return OSError(errno.EIO, last, path)
