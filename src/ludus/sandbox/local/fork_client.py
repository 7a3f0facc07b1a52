"""The driver's side of the fork server (`fork_server`), and the starters of local slots that use it.

Requests and replies are JSON, one per packet. Descriptors go along with a request. The options of a start are in a
file in memory, which is the first of them, because a slot's variables may be larger than a packet.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from ludus.errors import SandboxError, SlotEvidence
from ludus.sandbox.shell_starter import ShellEnds, ShellProcess

_PACKAGE = Path(__file__).parent.parent.parent
_PACKAGES = {"ludus": _PACKAGE, "ludus.sandbox": _PACKAGE / "sandbox", "ludus.sandbox.local": Path(__file__).parent}
_BOOT = f"""\
import sys, types
for name, path in {[(name, str(path)) for name, path in _PACKAGES.items()]!r}:
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from ludus.sandbox.local.fork_server import main
main(int(sys.argv[1]))
"""
"""Imports the program without what the packages themselves import: it starts in a fraction of the time."""
_REPLY_BYTES = 65_536
_START_SECONDS = 60.0
_END_SECONDS = 30.0
_GONE = SlotEvidence(outside="the program that starts the slots' processes has ended")


class _StartFailed(SandboxError):
    """The slot could not be entered."""


class SlotProgram(Struct, frozen=True, kw_only=True):
    """What runs in a slot, and how."""

    program: tuple[str, ...]
    """The shell and its first arguments; its folder and home follow."""
    home: str
    environment: Mapping[str, str]
    limits: Mapping[str, int]
    """Values of resource limits, by their names in Python's `resource`."""
    keeper: int = 0
    """The pid of the process that keeps the slot's namespaces; 0 if the slot has none."""
    user: int | None = None
    """The user who owns the namespaces, if it is not the driver's."""
    init: tuple[str, ...] = ()
    """A copy of `cat` in the slot, and its arguments from its name on."""
    filter: bytes = b""
    """The system-call filter."""
    inodes: Mapping[str, int] = {}
    """How many files each of the slot's own file systems may have, by mount point."""
    may_be_broken: bool = False
    """Whether the slot can change the libraries that its shell and its init need."""


class ForkServer:
    """A connection to a fork server. Create it in the event loop that uses it."""

    def __init__(self, link: socket.socket, process: subprocess.Popen[bytes] | None) -> None:
        self._link = link
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._requests = 0
        self._slots = 0
        self._starting: dict[int, asyncio.Future[ShellProcess]] = {}
        self._ending: dict[int, asyncio.Future[None]] = {}
        self._exits: dict[int, asyncio.Future[int]] = {}
        self._serving: asyncio.Future[int] = self._loop.create_future()
        self._is_gone = False
        self._reactions: dict[int, Callable[[SandboxError], None]] = {}
        self._sending = asyncio.Lock()
        self._loop.add_reader(link.fileno(), self._on_reply)

    @classmethod
    def launch(cls) -> "ForkServer":
        """Start the program."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _BOOT, str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # its children inherit it, and so would the slots' shells
                    start_new_session=True,
                    env={},
                )
            except OSError as error:
                ours.close()
                raise SandboxError(f"the fork server did not start: {error}") from error
        return cls(ours, process)

    @property
    def alive(self) -> bool:
        return not self._is_gone

    def make_slot(self) -> int:
        """Return the number of a new slot. A copy's own slot has the number 0."""
        self._slots += 1
        return self._slots

    def on_end(self, react: Callable[[SandboxError], None]) -> Callable[[], None]:
        """Call `react` with the error when the program has ended. Returns what to call if that is of no interest any
        more."""
        key = id(react)
        self._reactions[key] = react
        return lambda: self._reactions.pop(key, None) and None

    async def copy(self) -> "ForkServer":
        """Make a fork server for one slot without namespaces."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            await self._send({"do": "serve"}, [theirs.fileno()])
        return ForkServer(ours, None)

    async def find_pid(self) -> int:
        """Wait until the program serves, and return its pid."""
        async with asyncio.timeout(_START_SECONDS):
            return await asyncio.shield(self._serving)

    async def start_shell(
        self, slot: int, options: SlotProgram, folder: bytes, ends: ShellEnds, groups: Sequence[int]
    ) -> ShellProcess:
        self._requests += 1
        started = self._starting[self._requests] = self._loop.create_future()
        with _open_options(options, folder) as fd:
            request = {"do": "start", "request": self._requests, "slot": slot, "keeper": options.keeper}
            await self._send(request, [fd, *ends, *groups])
        try:
            async with asyncio.timeout(_START_SECONDS):
                return await started
        except TimeoutError:
            raise SandboxError(f"the fork server did not answer within {_START_SECONDS:g} s", evidence=_GONE) from None

    async def end_processes(self, slot: int) -> None:
        ended = self._ending[slot] = self._loop.create_future()
        await self._send({"do": "end", "slot": slot}, [])
        try:
            async with asyncio.timeout(_END_SECONDS):
                await ended
        except TimeoutError:
            raise SandboxError(
                "the slot's processes could not be ended",
                evidence=SlotEvidence(inside=f"its processes did not end within {_END_SECONDS:g} s of being killed"),
            ) from None

    def close(self) -> None:
        """End the program and every process that it has started. Does not wait."""
        self._mark_gone()

    def wait(self) -> None:
        """Wait for the end of the program. This blocks."""
        if self._process is not None:
            self._process.wait()

    async def _send(self, request: Mapping[str, object], fds: Sequence[int]) -> None:
        data = json.dumps(request).encode()
        async with self._sending:
            while not self._is_gone:
                try:
                    socket.send_fds(self._link, [data], fds)
                    return
                except BlockingIOError:
                    await self._wait_writable()
                except OSError:
                    self._mark_gone()
        raise SandboxError("the fork server has ended", evidence=_GONE)

    async def _wait_writable(self) -> None:
        writable: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(self._link.fileno(), lambda: writable.done() or writable.set_result(None))
        try:
            await writable
        finally:
            self._loop.remove_writer(self._link.fileno())

    def _on_reply(self) -> None:
        while not self._is_gone:
            try:
                data = self._link.recv(_REPLY_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._mark_gone()
                return
            self._handle_reply(json.loads(data))

    def _handle_reply(self, reply: dict[str, Any]) -> None:
        if "started" in reply:
            exited = self._exits[reply["pid"]] = self._loop.create_future()
            _resolve(self._starting.pop(reply["started"], None), ShellProcess(reply["pid"], exited))
        elif "failed" in reply:
            failed = self._starting.pop(reply["failed"], None)
            if failed is not None and not failed.done():
                words = f"no shell could be started in the slot: {reply['message']}"
                failed.set_exception(_StartFailed(words, evidence=SlotEvidence(outside=reply["message"])))
        elif "exited" in reply:
            _resolve(self._exits.pop(reply["exited"], None), reply["code"])
        elif "serving" in reply:
            _resolve(self._serving, reply["serving"])
        elif "ended" in reply:
            _resolve(self._ending.pop(reply["ended"], None), None)

    def _mark_gone(self) -> None:
        if self._is_gone:
            return
        self._is_gone = True
        self._loop.remove_reader(self._link.fileno())
        self._link.close()
        for react in tuple(self._reactions.values()):
            react(SandboxError("the slot ended: the fork server has ended", evidence=_GONE))
        for exited in self._exits.values():
            _resolve(exited, 137)
        for waiting in (self._serving, *self._starting.values(), *self._ending.values()):
            if not waiting.done():
                waiting.set_exception(SandboxError("the fork server has ended", evidence=_GONE))
                waiting.exception()  # mark it as retrieved: maybe nobody waits for it


class ForkServers:
    """The fork server of a backend: started when it is needed, and again if it has ended."""

    def __init__(self) -> None:
        self._launched: list[ForkServer] = []

    def get(self) -> ForkServer:
        if not self._launched or not self._launched[-1].alive:
            self._launched.append(ForkServer.launch())
        return self._launched[-1]

    async def close(self) -> None:
        """End the server and every process that it has started."""
        while self._launched:
            server = self._launched.pop()
            server.close()
            await asyncio.to_thread(server.wait)


def _resolve(future: "asyncio.Future[Any] | None", value: object) -> None:
    if future is not None and not future.done():
        future.set_result(value)


class _open_options(AbstractContextManager[int]):
    """The options of one start in a file in memory."""

    def __init__(self, options: SlotProgram, folder: bytes) -> None:
        self._data = json.dumps(
            {
                "keeper": options.keeper,
                "user": options.user,
                "init": options.init,
                "program": [*options.program, os.fsdecode(folder), options.home],
                "environment": dict(options.environment),
                "limits": dict(options.limits),
                "filter": options.filter.hex(),
                "inodes": dict(options.inodes),
            }
        ).encode()

    def __enter__(self) -> int:
        try:
            self._fd = os.memfd_create("options", os.MFD_CLOEXEC)
        except OSError as error:
            raise SandboxError(f"no shell could be started in the slot: {error}") from error
        view = memoryview(self._data)
        while view:
            view = view[os.write(self._fd, view) :]
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


class ForkStarter:
    """Starts and ends the processes of one slot through a fork server. A `ShellStarter`."""

    def __init__(
        self,
        server: ForkServer,
        slot: int,
        options: SlotProgram,
        open_groups: Callable[[], AbstractContextManager[tuple[int, ...]]],
    ) -> None:
        self._server = server
        self._slot = slot
        self._options = options
        self._open_groups = open_groups

    async def start_shell(self, ends: ShellEnds, folder: bytes) -> ShellProcess:
        with self._open_groups() as groups:
            try:
                return await self._server.start_shell(self._slot, self._options, folder, ends, groups)
            except _StartFailed:  # the kernel may be ending the slot's init right now, since it was out of memory
                await self._server.end_processes(self._slot)
            try:
                return await self._server.start_shell(self._slot, self._options, folder, ends, groups)
            except _StartFailed as error:
                if self._options.may_be_broken:  # then nothing is known about whose fault it is
                    raise SandboxError(str(error)) from error
                raise

    async def end_processes(self) -> None:
        await self._server.end_processes(self._slot)

    async def close(self) -> None:
        """End what is left, if the server still answers."""
        with suppress(SandboxError):
            await self._server.end_processes(self._slot)
