"""Many slots on few servers: the `create` that a pool needs, over backends that start containers.

A slot goes to a server that has room for its kind, else to one that is being started, else a new one is started for
it. A server that still keeps its slots apart after many (`Server.reusable`) is kept for `idle_seconds` after its last
slot, for the next; any other is ended with it. A server that died is ended at once: its slots have failed, and new ones
go elsewhere. Where there can only be so many slots (`room`), the next one waits until another is closed.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from ludus.errors import SandboxError
from ludus.sandbox import WORKSPACE, Sandbox, SandboxSpec
from ludus.sandbox.archive import extract_entries, read_entries
from ludus.sandbox.local.host_dir import HostDir
from ludus.sandbox.owner import OwnedResource
from ludus.sandbox.remote.remote_sandbox import SlotServer
from ludus.sandbox.teardown import run_shielded

T = TypeVar("T")


class Backend(Protocol):
    """Starts servers."""

    def kind(self, spec: SandboxSpec) -> Hashable:
        """Specs of one kind can share a server."""
        ...

    async def launch(self, spec: SandboxSpec) -> SlotServer:
        """Raises SandboxError, and leaves nothing behind, if there can be none."""
        ...

    async def holdings(self) -> list[OwnedResource]:
        """What drivers have there, this one and others, as far as it would outlive them."""
        ...

    async def drop(self, holding: OwnedResource) -> None:
        """Remove it, in use or not."""
        ...

    async def close(self) -> None:
        """Called once, when all servers are ended."""
        ...


class Once(Generic[T]):
    """Work that is done once, when it is first needed, by whoever comes first; if it fails, by the next as well."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None

    async def run(self) -> T:
        task = self._task
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._task = asyncio.create_task(self._work())
        return await asyncio.shield(task)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))


class _ServerEntry:
    """A server, ready or not yet, and who is on it."""

    def __init__(self, kind: Hashable, starting: "asyncio.Task[SlotServer]", places: int) -> None:
        self.kind = kind
        self.starting = starting
        self.places = places
        self.taken = 0
        self.retired = False
        self.idle: asyncio.TimerHandle | None = None

    @property
    def server(self) -> SlotServer | None:
        done = self.starting.done() and not self.starting.cancelled() and self.starting.exception() is None
        return self.starting.result() if done else None

    def has_room(self, kind: Hashable) -> bool:
        server = self.server
        usable = not self.retired and (server is None or server.alive)
        return usable and self.kind == kind and self.taken < self.places


class Fleet:
    """Slots on the servers of one backend. Close it when its slots are closed."""

    def __init__(
        self, backend: Backend, *, slots: int = 1, idle_seconds: float = 60.0, room: int | None = None
    ) -> None:
        self._room = None if room is None else asyncio.Semaphore(room)
        self._backend = backend
        self._slots = slots
        self._idle_seconds = idle_seconds
        self._berths: list[_ServerEntry] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._host: HostDir | None = None
        """For snapshots."""
        self._layers = 0

    async def create(self, spec: SandboxSpec) -> Sandbox:
        if self._room is not None:
            await self._room.acquire()
        kind = self._backend.kind(spec)
        berth = next((berth for berth in self._berths if berth.has_room(kind)), None) or self._launch(kind, spec)
        berth.taken += 1
        if berth.idle is not None:
            berth.idle.cancel()
            berth.idle = None
        left = False

        async def leave() -> None:
            nonlocal left
            if not left:
                left = True
                try:
                    await self._leave(berth)
                finally:
                    if self._room is not None:
                        self._room.release()

        try:
            server = await asyncio.shield(berth.starting)
            return await server.open(spec, leave)
        except BaseException:
            await run_shielded(leave())
            raise

    async def snapshot(self, box: Sandbox) -> SandboxSpec:
        """The spec of slots that start with a copy of what the workspace is in `box` now. The copy is the driver's."""
        packed = await box.pack(WORKSPACE)
        if self._host is None:
            self._host = HostDir()
        self._layers += 1
        layer = self._host.path / f"layer-{self._layers}"
        try:
            await asyncio.to_thread(lambda: extract_entries(read_entries(packed), layer, all_links=True))
        except (OSError, ValueError) as error:
            raise SandboxError(f"no snapshot could be made: {error}") from error
        return msgspec.structs.replace(box.spec, base=(str(layer),))

    def list_servers(self) -> list[SlotServer]:
        """Those that run now."""
        return [server for berth in self._berths if (server := berth.server) is not None and server.alive]

    async def close(self) -> None:
        await run_shielded(self._close())

    async def _close(self) -> None:
        for berth in tuple(self._berths):
            self._retire(berth)
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._backend.close()
        if self._host is not None:
            self._host.close()
            self._host = None

    # ---- one server -----------------------------------------------------------------------------------------------

    def _launch(self, kind: Hashable, spec: SandboxSpec) -> _ServerEntry:
        berth = _ServerEntry(kind, asyncio.create_task(self._backend.launch(spec)), self._slots)
        berth.starting.add_done_callback(lambda task: self._note_start(berth, task))
        self._berths.append(berth)
        return berth

    def _note_start(self, berth: _ServerEntry, task: "asyncio.Task[SlotServer]") -> None:
        if task.cancelled() or task.exception() is not None:
            if berth in self._berths:
                self._berths.remove(berth)
        elif not berth.taken:  # those who waited for it have gone
            self._start_idle_timer(berth)

    async def _leave(self, berth: _ServerEntry) -> None:
        berth.taken -= 1
        server = berth.server
        if server is None:
            if not berth.taken and not berth.starting.done():
                self._retire(berth)
        elif not server.alive or not server.reusable:
            berth.retired = True
            if not berth.taken and (ending := self._retire(berth)) is not None:
                await asyncio.wait((ending,))
        elif not berth.taken:
            self._start_idle_timer(berth)

    def _start_idle_timer(self, berth: _ServerEntry) -> None:
        loop = asyncio.get_running_loop()
        berth.idle = loop.call_later(self._idle_seconds, self._retire, berth)

    def _retire(self, berth: _ServerEntry) -> "asyncio.Task[None] | None":
        """Begin to end a server, unless that has begun."""
        if berth not in self._berths:
            return None
        self._berths.remove(berth)
        berth.retired = True
        if berth.idle is not None:
            berth.idle.cancel()
        task = asyncio.create_task(_end(berth))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _end(berth: _ServerEntry) -> None:
    """End a server, or its start. Nobody waits for what may go wrong: the backend's own sweep finds what is left."""
    berth.starting.cancel()
    await asyncio.wait((berth.starting,))
    server = berth.server
    if server is not None:
        try:
            await server.close()
        except SandboxError:
            return
