"""Slots on the other side of a link, and the servers (containers, hosts) that run them.

`RemoteSandbox` has the same contract as every slot. Files and background processes are built on commands, in
`sandbox/shell_sandbox.py`; slotd runs the commands. A `SlotServer` is one slotd with room for one or more slots.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import msgspec
from msgspec import Struct

from ludus.errors import SandboxError, SlotEvidence
from ludus.sandbox import WORKSPACE, ExecResult, SandboxSpec
from ludus.sandbox.backend import Mount
from ludus.sandbox.limits import LimitStatus
from ludus.sandbox.port.local_port import ProtocolFactory
from ludus.sandbox.port.remote_port import open_remote_port
from ludus.sandbox.remote.link import Link
from ludus.sandbox.shell import SlotShell
from ludus.sandbox.shell_sandbox import Layout, ShellSandbox, SlotParts
from ludus.sandbox.slotd.frames import Frame
from ludus.sandbox.teardown import run_shielded

MARGIN_SECONDS = 180.0
"""The driver waits this much longer than a command's own time limit, which slotd enforces. That is longer than slotd
may take to end a slot's processes and to start a new shell, twice: an agent must not make the link look dead."""
_PART_BYTES = 4 * 2**20
_OPEN_SECONDS = 90.0
_CLOSE_SECONDS = 60.0


_LAYOUT = ("workspace", "tmp", "io", "lib", "jobs", "bash", "changes", "tree")

ExplainLoss = Callable[[], Awaitable[SlotEvidence]]
"""Finds out why the link to a server was lost."""


class SlotdInfo(Struct, frozen=True):
    """What a slotd reports about itself in the handshake."""

    version: int
    python: str
    isolation: str
    """`namespaces`, `user` or `none`: see `slotd/isolation.py`."""
    why: str = ""
    """Why the isolation is not better."""


def check_isolation(info: SlotdInfo, *, slots: int, trusted: bool, container: bool, image: bool = False) -> None:
    """Raise SandboxError if the slots of a server would not be isolated enough.

    `container`: slotd has a container to itself, which isolates a single slot from the host and from the network.
    `image`: the slot has an image of its own, which takes namespaces.
    """
    if image and info.isolation != "namespaces":
        raise SandboxError(
            f"slotd cannot give a slot its own copy of the image there, with namespaces and overlayfs: {info.why}",
            retryable=False,
        )
    if info.isolation == "namespaces" or trusted or (info.isolation == "user" and container and slots == 1):
        return
    remedy = "set slots to 1" if info.isolation == "user" and container else "set trusted, for code that you trust"
    raise SandboxError(f"slots would not be isolated there: {info.why}. Allow namespaces, or {remedy}", retryable=False)


async def finish_handshake(
    link: Link, reply: Awaitable[Frame], *, slots: int, trusted: bool, container: bool, image: bool = False
) -> SlotdInfo:
    """Wait for slotd's reply to the handshake and check its isolation. If slotd does not reply or `check_isolation`
    refuses it, the link is closed."""
    try:
        info = msgspec.convert((await reply).head, SlotdInfo)
        check_isolation(info, slots=slots, trusted=trusted, container=container, image=image)
    except BaseException:
        await link.close()
        raise
    return info


class _RemoteShell:
    """The part of `SlotShell` that `ShellSandbox` uses, over a link."""

    def __init__(self, link: Link, slot: str, explain: ExplainLoss | None) -> None:
        self._link = link
        self._slot = slot
        self._explain = explain
        self._turn = asyncio.Lock()
        self._closed = False
        self._executions = count(1)
        self._series = secrets.token_hex(4)

    @property
    def alive(self) -> bool:
        return self._link.alive and not self._closed

    @property
    def pid(self) -> int:
        """0: the slot has no process on this host."""
        return 0

    async def run(self, command: bytes, *, seconds: float, keep: int, stdin: bytes | None = None) -> ExecResult:
        head = {"op": "run", "command": len(command), "seconds": seconds, "keep": keep, "stdin": stdin is not None}
        execution = f"{self._series}-{next(self._executions)}"
        async with self._turn:
            try:
                rest = await self._send_input_parts(execution, stdin or b"")
                body, limit = command + rest, seconds + MARGIN_SECONDS
                reply = await self._call({**head, "execution": execution}, body, seconds=limit)
            except asyncio.CancelledError:
                with suppress(SandboxError):  # the caller has gone; the next command finds the slot dead
                    await run_shielded(self._call({"op": "cancel", "execution": execution}, seconds=MARGIN_SECONDS))
                raise
        return _parse_result(reply)

    async def _send_input_parts(self, execution: str, stdin: bytes) -> bytes:
        """Send all parts of a long input but the last, which is returned. So slotd never holds more than one part."""
        offset = 0
        while len(stdin) - offset > _PART_BYTES:
            part = stdin[offset : offset + _PART_BYTES]
            head = {"op": "input", "execution": execution, "offset": offset}
            await self._call(head, part, seconds=MARGIN_SECONDS)
            offset += len(part)
        return stdin[offset:]

    async def restart(self) -> None:
        async with self._turn:
            await run_shielded(self._call({"op": "restart"}, seconds=MARGIN_SECONDS))

    async def reset(self) -> Layout:
        """Return the slot to its first state. Its paths may be others afterwards."""
        async with self._turn:
            return _parse_layout(await run_shielded(self._call({"op": "reset"}, seconds=_OPEN_SECONDS)))

    def open_port(self, make_protocol: ProtocolFactory) -> AbstractAsyncContextManager[int]:
        if self._closed:
            raise SandboxError("the slot is closed", evidence=SlotEvidence(outside="the slot was closed"))
        return open_remote_port(self._link, self._slot, make_protocol)

    async def close(self) -> None:
        """End the slot. A running command fails; it does not have to end first."""
        if not self._closed:
            closing = self._call({"op": "close"}, seconds=_CLOSE_SECONDS)
            self._closed = True
            with suppress(SandboxError):  # the server is gone, and the slot with it
                await closing

    def _call(self, head: dict[str, Any], body: bytes = b"", *, seconds: float) -> Coroutine[Any, Any, Frame]:
        if self._closed:
            raise SandboxError("the slot is closed", evidence=SlotEvidence(outside="the slot was closed"))
        return self._send({**head, "slot": self._slot}, body, seconds)

    async def _send(self, head: dict[str, Any], body: bytes, seconds: float) -> Frame:
        try:
            return await self._link.call(head, body, seconds=seconds)
        except SandboxError as error:
            if self._link.alive or self._explain is None:
                raise
            evidence = await self._explain()
            raise SandboxError(str(error), retryable=error.retryable, evidence=evidence) from error


def _parse_result(reply: Frame) -> ExecResult:
    head, out = reply.head, int(reply.head["out"])
    return ExecResult(
        reply.body[:out], reply.body[out:], head["code"], head["timed_out"], head["truncated"], head["seconds"]
    )


def _parse_layout(reply: Frame) -> Layout:
    paths: dict[str, str] = reply.head["paths"]
    return Layout(**{name: paths[name] for name in _LAYOUT})


class RemoteSandbox(ShellSandbox):
    """A slot of a `SlotServer`."""

    def __init__(self, spec: SandboxSpec, shell: _RemoteShell, layout: Layout, resources: AsyncExitStack) -> None:
        # `ShellSandbox` uses only methods that `_RemoteShell` has. The folder for input is on slotd's side.
        super().__init__(spec, SlotParts(cast(SlotShell, shell), Path("/"), layout, 0), resources)
        self._remote = shell

    async def _run(self, command: str, *, seconds: float, keep: int, stdin: bytes | None = None) -> ExecResult:
        if "\0" in command:
            raise ValueError("a command cannot contain a NUL character")
        return await self._remote.run(command.encode(), seconds=seconds, keep=keep, stdin=stdin)

    async def reset(self) -> None:
        """Return the slot to its first state: its processes, files and shared memory are gone."""
        self._layout = await self._remote.reset()
        self._jobs, self._results = {}, {}
        await self.upload_base()

    def open_port(self, make_protocol: ProtocolFactory) -> AbstractAsyncContextManager[int]:
        """For `local_port.open_port`."""
        return self._remote.open_port(make_protocol)

    async def upload_base(self) -> None:
        """Copy the layers of `spec.base` into the slot's workspace."""
        for layer in self.spec.base:
            try:
                await self.upload(Path(layer), WORKSPACE)
            except OSError as error:
                raise SandboxError(f"sandbox.base '{layer}' cannot be used: {error}", retryable=False) from error


class SlotServer:
    """One slotd, and the container or host it runs in. Made by a backend, used by a `Fleet`."""

    def __init__(
        self,
        link: Link,
        info: SlotdInfo,
        *,
        end: Callable[[], Awaitable[None]],
        container_limits: Sequence[str] = (),
        env: Mapping[str, str] = MappingProxyType({}),
        mounts: Sequence[Mount] | None = None,
        image_mounts: Sequence[str] | None = None,
        explain_loss: ExplainLoss | None = None,
    ) -> None:
        """`end`: ends the container or job after the link is closed. `container_limits`: the limits (memory, processes,
        disk) that the container enforces for its slot. `mounts`: folders that slotd shows to every slot, beside the
        caches of its spec; None if the container has them already. `image_mounts`: for a server whose one slot has an
        image: the folders and files of the container that the slot sees too. `explain_loss`: needed if a slot is alone
        with slotd and could be the reason why slotd ended; with several slots, none can."""
        self.info = info
        self._link = link
        self._end = end
        self._container_limits = container_limits
        self._env = env
        self._mounts = mounts
        self._image_mounts = image_mounts
        self._explain = explain_loss
        self._names = count(1)

    @property
    def alive(self) -> bool:
        return self._link.alive

    @property
    def reusable(self) -> bool:
        """Whether a new slot finds nothing that earlier slots left. Without namespaces, something might be left. A slot
        with an image gets a new container all the same: it is where an agent's work is judged."""
        return self.info.isolation == "namespaces" and self._image_mounts is None

    def describe_limits(self) -> tuple[LimitStatus, ...]:
        """The limits of its slots and what enforces them, for people."""
        return describe_server_limits(self.info, container=self._container_limits)

    async def open(self, spec: SandboxSpec, on_close: Callable[[], Awaitable[None]]) -> RemoteSandbox:
        """Open a slot. `on_close` is called when the slot is closed."""
        name = f"s{next(self._names)}_{secrets.token_hex(16)}"
        request = {
            "network": spec.network,
            "disk_mb": spec.disk_mb,
            "processes": spec.processes,
            "memory_mb": 0 if "memory" in self._container_limits else spec.memory_mb,
            "env": {**self._env, **dict(spec.env)},
            "mounts": self._list_mounts(spec),
            "folders": spec.folders,
        }
        call = self._link.call({"op": "open", "slot": name, "spec": request}, seconds=_OPEN_SECONDS)
        try:
            reply = await call
        except asyncio.CancelledError:
            with suppress(SandboxError):
                await run_shielded(self._link.call({"op": "close", "slot": name}, seconds=_CLOSE_SECONDS))
            raise
        shell, resources = _RemoteShell(self._link, name, self._explain), AsyncExitStack()
        resources.push_async_callback(on_close)
        resources.push_async_callback(shell.close)
        box = RemoteSandbox(spec, shell, _parse_layout(reply), resources)
        try:
            await box.upload_base()
        except BaseException:
            await box.close()
            raise
        return box

    def _list_mounts(self, spec: SandboxSpec) -> list[tuple[str, str]]:
        """The folders (source, target) that slotd shows to a slot."""
        if self._image_mounts is not None:
            return [(target, target) for target in self._image_mounts]
        return [] if self._mounts is None else [*((m.source, m.target) for m in self._mounts), *spec.caches]

    async def close(self) -> None:
        await run_shielded(self._close())

    async def _close(self) -> None:
        try:
            await self._link.close()
        finally:
            await self._end()


def describe_server_limits(info: SlotdInfo, *, container: Sequence[str]) -> tuple[LimitStatus, ...]:
    """The limits of a server's slots and what enforces them. `container`: the limits that its container enforces."""
    inside = info.isolation == "namespaces"
    memory = LimitStatus("memory", "resource limit: per process, not per slot", False)
    if "memory" in container:
        memory = LimitStatus("memory", "the container's control group", True)
    processes = LimitStatus("processes", "resource limit of the slot's own user", True)
    if info.isolation == "none":
        strong = "processes" in container
        processes = LimitStatus("processes", "the container's control group" if strong else "nothing", strong)
    disk = LimitStatus("disk", "size of the slot's own file systems", True)
    if not inside:
        strong = "disk" in container
        disk = LimitStatus("disk", "size of the container's own file systems" if strong else "nothing", strong)
    return memory, processes, disk, LimitStatus("time and output", "slotd", True)
