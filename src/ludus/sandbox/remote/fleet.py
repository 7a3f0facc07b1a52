"""Many slots on few servers: the slots of a backend that starts containers or reaches hosts.

A slot goes to a server that has room for its kind, else to one that is being started, else a new server is started for
it. A server that still isolates its slots after many (`SlotServer.reusable`) is kept for `idle_seconds` after its last
slot, for the next one. Any other server is ended with its slot. A server that died is ended at once: its slots have
failed, and new ones go elsewhere. Where the number of slots is limited (`room`), the next one waits until another is
closed. So does one for which no further server can be started (`NoServerLeft`), while others run.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

import msgspec

from ludus.errors import SandboxError
from ludus.sandbox import WORKSPACE, Sandbox, SandboxSpec
from ludus.sandbox.archive import extract_entries, read_entries
from ludus.sandbox.backend import Backend, BackendFinding, RemoteSettings, check_image
from ludus.sandbox.local.host_dir import HostDir
from ludus.sandbox.remote.remote_sandbox import SlotServer
from ludus.sandbox.teardown import run_shielded

T = TypeVar("T")
R = TypeVar("R", bound=RemoteSettings)

_ISOLATION_WORDS = {"namespaces": "namespaces", "user": "a user of their own", "none": "nothing"}


class NoServerLeft(SandboxError):
    """No further server can be started now: what could run one is in use or does not answer."""


class RemoteBackend(Backend[R]):
    """A backend that starts servers: containers, jobs or hosts that hold one or more slots each."""

    @classmethod
    def isolates(cls, settings: RemoteSettings) -> bool:
        """Slots that would not be isolated are refused, unless the setting `trusted` accepts them."""
        return not getattr(settings, "trusted", False)

    @property
    def room(self) -> int | None:
        """The number of slots that can exist at once; None if only the pool limits it."""
        return None

    def get_kind(self, spec: SandboxSpec) -> Hashable:
        """The kind of server that a spec needs. Specs of one kind can share a server."""
        raise NotImplementedError(f"{type(self).__name__}.get_kind")

    async def launch(self, spec: SandboxSpec) -> SlotServer:
        """Start a server. Raises SandboxError, and leaves nothing behind, if that fails; `NoServerLeft` if a slot may
        wait for one of those that run."""
        raise NotImplementedError(f"{type(self).__name__}.launch")


class Once(Generic[T]):
    """Work that is done once, when it is first needed. If it fails, the next caller tries again."""

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
    """A server, running or starting, and how many slots are on it."""

    def __init__(self, kind: Hashable, starting: "asyncio.Task[SlotServer]", capacity: int) -> None:
        self.kind = kind
        self.starting = starting
        self.capacity = capacity
        self.used = 0
        self.retired = False
        self.idle_timer: asyncio.TimerHandle | None = None

    @property
    def server(self) -> SlotServer | None:
        done = self.starting.done() and not self.starting.cancelled() and self.starting.exception() is None
        return self.starting.result() if done else None

    def has_room(self, kind: Hashable) -> bool:
        server = self.server
        usable = not self.retired and (server is None or server.alive)
        return usable and self.kind == kind and self.used < self.capacity


class Fleet:
    """The slots of one remote backend. Close it when its slots are closed; that closes the backend too."""

    def __init__(
        self, backend: RemoteBackend[Any], *, slots: int = 1, idle_seconds: float = 60.0, room: int | None = None
    ) -> None:
        """`slots`: how many a server holds. `room`: how many there can be at once; None for no limit."""
        self._room = None if room is None else asyncio.Semaphore(room)
        self._backend = backend
        self._slots = slots
        self._idle_seconds = idle_seconds
        self._servers: list[_ServerEntry] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._left = asyncio.Event()
        """Set, and replaced, when a slot has left its server, or when there is none that could be waited for."""
        self._host: HostDir | None = None
        """Holds snapshots."""
        self._layers = 0

    async def check(self) -> None:
        """Nothing can be checked without starting a server."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        check_image(self._backend, spec)
        if self._room is not None:
            await self._room.acquire()
        try:
            entry = await self._find_place(spec)
        except BaseException:
            if self._room is not None:
                self._room.release()
            raise
        left = False

        async def leave() -> None:
            nonlocal left
            if not left:
                left = True
                try:
                    await self._leave(entry)
                finally:
                    if self._room is not None:
                        self._room.release()

        try:
            return await entry.starting.result().open(spec, leave)
        except BaseException:
            await run_shielded(leave())
            raise

    async def _find_place(self, spec: SandboxSpec) -> _ServerEntry:
        """A place on a server that runs. Waits while there can be none but on the servers that are full."""
        while True:
            left = self._left
            try:
                return await self._join(spec)
            except NoServerLeft:
                if not self._has_server(self._backend.get_kind(spec)):
                    raise
            await left.wait()

    async def _join(self, spec: SandboxSpec) -> _ServerEntry:
        kind = self._backend.get_kind(spec)
        entry = next((entry for entry in self._servers if entry.has_room(kind)), None) or self._launch(kind, spec)
        entry.used += 1
        if entry.idle_timer is not None:
            entry.idle_timer.cancel()
            entry.idle_timer = None
        try:
            await asyncio.shield(entry.starting)
        except SandboxError:
            entry.used -= 1
            raise
        except BaseException:
            await run_shielded(self._leave(entry))
            raise
        return entry

    def _note_left(self) -> None:
        """Wake those who wait for a place."""
        self._left.set()
        self._left = asyncio.Event()

    def _has_server(self, kind: Hashable) -> bool:
        return any(entry.kind == kind and (entry.used or entry.has_room(kind)) for entry in self._servers)

    async def snapshot(self, box: Sandbox) -> SandboxSpec:
        """The spec of slots that start with a copy of the present workspace of `box`. The driver keeps the copy."""
        if box.spec.image is not None:
            raise SandboxError("a slot with an image has no snapshots", retryable=False)
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

    async def try_out(self) -> BackendFinding:
        """Make a slot, run a command in it and close it. Raises SandboxError if that fails."""
        box = await self.create(SandboxSpec(disk_mb=64))
        try:
            await box.exec("true")
            server = self.list_servers()[0]
        finally:
            await box.close()
        isolation = _ISOLATION_WORDS[server.info.isolation]
        message = f"a slot ran; slots are isolated by {isolation} (Python {server.info.python} there)"
        return BackendFinding(self._backend.name, "works", message, limits=server.describe_limits())

    def list_servers(self) -> list[SlotServer]:
        """The servers that run now."""
        return [server for entry in self._servers if (server := entry.server) is not None and server.alive]

    async def close(self) -> None:
        await run_shielded(self._close())

    async def _close(self) -> None:
        for entry in tuple(self._servers):
            self._retire(entry)
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._backend.close()
        if self._host is not None:
            self._host.close()
            self._host = None

    # ---- one server -----------------------------------------------------------------------------------------------

    def _launch(self, kind: Hashable, spec: SandboxSpec) -> _ServerEntry:
        slots = self._slots if spec.image is None else 1  # so that the limits of a container are those of its slot
        entry = _ServerEntry(kind, asyncio.create_task(self._backend.launch(spec)), slots)
        entry.starting.add_done_callback(lambda task: self._note_start(entry, task))
        self._servers.append(entry)
        return entry

    def _note_start(self, entry: _ServerEntry, task: "asyncio.Task[SlotServer]") -> None:
        if task.cancelled() or task.exception() is not None:
            if entry in self._servers:
                self._servers.remove(entry)
            if not self._has_server(entry.kind):
                self._note_left()
        elif not entry.used:  # the callers that waited for it have gone
            self._start_idle_timer(entry)

    async def _leave(self, entry: _ServerEntry) -> None:
        entry.used -= 1
        self._note_left()
        server = entry.server
        if server is None:
            if not entry.used and not entry.starting.done():
                self._retire(entry)
        elif not server.alive or not server.reusable:
            entry.retired = True
            if not entry.used and (ending := self._retire(entry)) is not None:
                await asyncio.wait((ending,))
        elif not entry.used:
            self._start_idle_timer(entry)

    def _start_idle_timer(self, entry: _ServerEntry) -> None:
        loop = asyncio.get_running_loop()
        entry.idle_timer = loop.call_later(self._idle_seconds, self._retire, entry)

    def _retire(self, entry: _ServerEntry) -> "asyncio.Task[None] | None":
        """Start to end a server, unless that has started already."""
        if entry not in self._servers:
            return None
        self._servers.remove(entry)
        entry.retired = True
        if entry.idle_timer is not None:
            entry.idle_timer.cancel()
        task = asyncio.create_task(_end(entry))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _end(entry: _ServerEntry) -> None:
    """End a server, or its start. Errors are ignored: the backend finds what is left when it next starts."""
    entry.starting.cancel()
    await asyncio.wait((entry.starting,))
    server = entry.server
    if server is not None:
        try:
            await server.close()
        except SandboxError:
            return


def open_fleet(backend: RemoteBackend[Any]) -> Fleet:
    """The slots of a remote backend. Nothing is started yet."""
    settings: RemoteSettings = backend.settings
    return Fleet(backend, slots=settings.slots, idle_seconds=settings.idle_seconds, room=backend.room)
