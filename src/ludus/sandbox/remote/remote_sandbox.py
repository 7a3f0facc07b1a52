"""Slots on the other side of a link, and the servers (containers, hosts) that they live on.

`RemoteSandbox` has the same contract as every slot: files and background processes are commands, built in
`sandbox.base`; the command itself is run by slotd. A `Server` is one slotd with room for some slots.
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

from ludus.errors import SandboxError
from ludus.sandbox import WORKSPACE, ExecResult, SandboxSpec
from ludus.sandbox.local.limits import Held
from ludus.sandbox.port.local_port import Answer
from ludus.sandbox.port.remote_port import open_passage
from ludus.sandbox.remote.link import Link
from ludus.sandbox.settings import Mount
from ludus.sandbox.shell import Shell
from ludus.sandbox.shell_sandbox import Layout, ShellSandbox
from ludus.sandbox.slotd.frames import Message
from ludus.sandbox.teardown import to_the_end

MARGIN_SECONDS = 60.0
"""How much longer than a command's own time limit we wait for slotd, which enforces it."""
_PART_BYTES = 4 * 2**20
_OPEN_SECONDS = 90.0
_CLOSE_SECONDS = 60.0


class About(Struct, frozen=True):
    """What a slotd says of itself."""

    version: int
    python: str
    isolation: str
    """`namespaces`, `user` or `none`: see `slotd/enter.py`."""
    why: str = ""
    """Why it is not better."""


def demand(about: About, *, slots: int, trusted: bool, container: bool) -> None:
    """Refuse a server whose slots would not be kept apart as they must.

    `container`: slotd has a container to itself, which keeps a single slot from the host and from the network.
    """
    if about.isolation == "namespaces" or trusted or (about.isolation == "user" and container and slots == 1):
        return
    remedy = "set slots to 1" if about.isolation == "user" and container else "set trusted, for code that you trust"
    raise SandboxError(
        f"slots would not be isolated there: {about.why}. Allow namespaces, or {remedy}", retryable=False
    )


async def welcomed(link: Link, greeting: Awaitable[Message], *, slots: int, trusted: bool, container: bool) -> About:
    """What the slotd behind a new link says of itself, once it has answered the greeting. A link to one that does not
    answer, or that `demand` refuses, is closed."""
    try:
        about = msgspec.convert((await greeting).head, About)
        demand(about, slots=slots, trusted=trusted, container=container)
    except BaseException:
        await link.close()
        raise
    return about


class _RemoteShell:
    """The part of `Shell` that `ShellSandbox` uses, at a distance."""

    def __init__(self, link: Link, slot: str) -> None:
        self._link = link
        self._slot = slot
        self._turn = asyncio.Lock()
        self._closed = False
        self._executions = count(1)
        self._series = secrets.token_hex(4)

    @property
    def alive(self) -> bool:
        return self._link.alive and not self._closed

    @property
    def pid(self) -> int:
        """None that this host could number."""
        return 0

    async def run(self, command: bytes, *, seconds: float, keep: int, stdin: bytes | None = None) -> ExecResult:
        head = {"op": "run", "command": len(command), "seconds": seconds, "keep": keep, "stdin": stdin is not None}
        execution = f"{self._series}-{next(self._executions)}"
        async with self._turn:
            try:
                rest = await self._send_ahead(execution, stdin or b"")
                body, limit = command + rest, seconds + MARGIN_SECONDS
                reply = await self._call({**head, "execution": execution}, body, seconds=limit)
            except asyncio.CancelledError:
                with suppress(SandboxError):  # found by the next command; this caller has gone
                    await to_the_end(self._call({"op": "cancel", "execution": execution}, seconds=MARGIN_SECONDS))
                raise
        return _result(reply)

    async def _send_ahead(self, execution: str, stdin: bytes) -> bytes:
        """Send a long input in parts, so that slotd never holds more than one of them. What is left is the last."""
        offset = 0
        while len(stdin) - offset > _PART_BYTES:
            part = stdin[offset : offset + _PART_BYTES]
            head = {"op": "input", "execution": execution, "offset": offset}
            await self._call(head, part, seconds=MARGIN_SECONDS)
            offset += len(part)
        return stdin[offset:]

    async def fresh(self) -> None:
        async with self._turn:
            await to_the_end(self._call({"op": "fresh"}, seconds=MARGIN_SECONDS))

    async def reset(self) -> None:
        async with self._turn:
            await to_the_end(self._call({"op": "reset"}, seconds=_OPEN_SECONDS))

    def door(self, answer: Answer) -> AbstractAsyncContextManager[int]:
        if self._closed:
            raise SandboxError("the slot is closed")
        return open_passage(self._link, self._slot, answer)

    async def close(self) -> None:
        """End the slot. A command under way is told, and does not have to end first."""
        if not self._closed:
            closing = self._call({"op": "close"}, seconds=_CLOSE_SECONDS)
            self._closed = True
            with suppress(SandboxError):  # the server is gone, and the slot with it
                await closing

    def _call(self, head: dict[str, Any], body: bytes = b"", *, seconds: float) -> Coroutine[Any, Any, Message]:
        if self._closed:
            raise SandboxError("the slot is closed")
        return self._link.call({**head, "slot": self._slot}, body, seconds=seconds)


def _result(reply: Message) -> ExecResult:
    head, out = reply.head, int(reply.head["out"])
    return ExecResult(
        reply.body[:out], reply.body[out:], head["code"], head["timed_out"], head["truncated"], head["seconds"]
    )


def _layout(reply: Message) -> Layout:
    paths: dict[str, str] = reply.head["paths"]
    return Layout(**{name: paths[name] for name in ("workspace", "tmp", "io", "lib", "jobs", "bash")})


class RemoteSandbox(ShellSandbox):
    """A slot of a `Server`."""

    def __init__(self, spec: SandboxSpec, shell: _RemoteShell, layout: Layout, resources: AsyncExitStack) -> None:
        # `ShellSandbox` uses no more of a shell than this one has; the folder for input is on slotd's side.
        super().__init__(spec, cast(Shell, shell), Path("/"), layout, resources)
        self._remote = shell

    async def _run(self, command: str, *, seconds: float, keep: int, stdin: bytes | None = None) -> ExecResult:
        if "\0" in command:
            raise ValueError("a command cannot contain a NUL character")
        return await self._remote.run(command.encode(), seconds=seconds, keep=keep, stdin=stdin)

    async def reset(self) -> None:
        """Make the slot as it was when it was opened: its processes, files and shared memory are gone."""
        await self._remote.reset()
        self._jobs, self._results = {}, {}
        await self.lay_base()

    def door(self, answer: Answer) -> AbstractAsyncContextManager[int]:
        """For `doorway.open_door`."""
        return self._remote.door(answer)

    async def lay_base(self) -> None:
        """Copy what the workspace starts with into the slot."""
        for layer in self.spec.base:
            try:
                await self.upload(Path(layer), WORKSPACE)
            except OSError as error:
                raise SandboxError(f"sandbox.base '{layer}' cannot be used: {error}", retryable=False) from error


class Server:
    """One slotd, and the container or host it runs in. Made by a backend, used by a `Fleet`."""

    def __init__(
        self,
        link: Link,
        about: About,
        *,
        places: int,
        end: Callable[[], Awaitable[None]],
        held: Sequence[str] = (),
        env: Mapping[str, str] = MappingProxyType({}),
        mounts: Sequence[Mount] | None = None,
    ) -> None:
        """`held`: limits (memory, processes, disk) that a container holds for its slot. `mounts`: what slotd is to show
        to every slot, beside the caches of its spec; None where the container has them already."""
        self.about = about
        self.places = places
        """Slots that it can hold at once."""
        self._link = link
        self._end = end
        self._held = held
        self._env = env
        self._mounts = mounts
        self._names = count(1)

    @property
    def alive(self) -> bool:
        return self._link.alive

    @property
    def reusable(self) -> bool:
        """Whether a new slot finds nothing of those before it. Without namespaces, something might have stayed."""
        return self.about.isolation == "namespaces"

    def limits(self) -> tuple[Held, ...]:
        """Which limits hold for its slots, for people."""
        return limits_held(self.about, container=self._held)

    async def open(self, spec: SandboxSpec, given_back: Callable[[], Awaitable[None]]) -> RemoteSandbox:
        name = f"s{next(self._names)}_{secrets.token_hex(3)}"
        wanted = {
            "network": spec.network,
            "disk_mb": spec.disk_mb,
            "processes": spec.processes,
            "memory_mb": 0 if "memory" in self._held else spec.memory_mb,
            "env": {**self._env, **dict(spec.env)},
            "mounts": [] if self._mounts is None else [*((m.source, m.target) for m in self._mounts), *spec.caches],
        }
        call = self._link.call({"op": "open", "slot": name, "spec": wanted}, seconds=_OPEN_SECONDS)
        try:
            reply = await call
        except asyncio.CancelledError:
            with suppress(SandboxError):
                await to_the_end(self._link.call({"op": "close", "slot": name}, seconds=_CLOSE_SECONDS))
            raise
        shell, resources = _RemoteShell(self._link, name), AsyncExitStack()
        resources.push_async_callback(given_back)
        resources.push_async_callback(shell.close)
        box = RemoteSandbox(spec, shell, _layout(reply), resources)
        try:
            await box.lay_base()
        except BaseException:
            await box.close()
            raise
        return box

    async def close(self) -> None:
        await to_the_end(self._close())

    async def _close(self) -> None:
        try:
            await self._link.close()
        finally:
            await self._end()


def limits_held(about: About, *, container: Sequence[str]) -> tuple[Held, ...]:
    """Which limits hold for the slots of a server; `container` names those that its container enforces for all."""
    inside = about.isolation == "namespaces"
    memory = Held("memory", "resource limit: per process, not per slot", False)
    if "memory" in container:
        memory = Held("memory", "the container's control group", True)
    processes = Held("processes", "resource limit of the slot's own user", True)
    if about.isolation == "none":
        strong = "processes" in container
        processes = Held("processes", "the container's control group" if strong else "nothing", strong)
    disk = Held("disk", "size of the slot's own file systems", True)
    if not inside:
        strong = "disk" in container
        disk = Held("disk", "size of the container's own file systems" if strong else "nothing", strong)
    return memory, processes, disk, Held("time and output", "slotd", True)
