"""Opens a port in a slot: one port on the slot's own loopback, answered by the driver.

    agent in the slot ── 127.0.0.1:PORT ──> a socket made inside the slot's network ──> the driver

A slot without network access still has a loopback device of its own. With `bwrap` and `local`, a short-lived child of
the driver (`port_child.py`) enters that network, makes a listening socket there, passes it to the driver and exits. No
program relays anything. This needs root, or a normal user who owns the slot. The driver cannot enter the networks of
the other backends' slots: there slotd has the socket, and the link relays its connections (`remote_port.py`).

The port does not weaken the isolation: a process in the slot reaches the protocol behind this port and nothing else. In
a slot that shares a network with others (`local`, a slot with network access, several slots without namespaces), the
others can reach the port too.
"""

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from ludus.errors import SandboxError
from ludus.sandbox import Sandbox
from ludus.sandbox.shell_sandbox import ShellSandbox

ProtocolFactory = Callable[[], asyncio.BaseProtocol]
"""Makes the protocol that answers one connection."""
_OPEN_SECONDS = 30.0
_CHILD = Path(__file__).with_name("port_child.py")


@runtime_checkable
class RemoteSlot(Protocol):
    """A slot on another machine. It opens its port itself."""

    def open_port(self, make_protocol: ProtocolFactory) -> AbstractAsyncContextManager[int]: ...


@asynccontextmanager
async def open_port(box: Sandbox, make_protocol: ProtocolFactory) -> AsyncGenerator[int, None]:
    """Open a free port on the slot's own 127.0.0.1, and answer its connections here until the block is left.

    A slot has one port at a time. When the block ends, no new connections are accepted, and open ones may be aborted.
    After a `reset` of the slot, open a new port.

    Raises:
        SandboxError: the slot is gone, or this kind of slot cannot have a port.
    """
    if isinstance(box, RemoteSlot):
        async with box.open_port(make_protocol) as port:
            yield port
        return
    listening = await _listen_in_slot(box)
    server = await asyncio.get_running_loop().create_server(make_protocol, sock=listening)
    try:
        yield listening.getsockname()[1]
    finally:
        server.close()


async def _listen_in_slot(box: Sandbox) -> socket.socket:
    """Make a socket that listens on a free port of the slot's own 127.0.0.1. The caller closes it."""
    pid = _find_process(box)
    handoff = _SocketHandoff()
    try:
        await asyncio.to_thread(lambda: handoff.put(_listen_by_child(pid)))
        return handoff.take()
    except asyncio.CancelledError:
        handoff.abandon()  # the thread ends on its own, within its time limit
        raise


class _SocketHandoff:
    """Passes a socket from a thread to its caller, and closes it if the caller is gone. The event loop may be gone too,
    so that a callback in the loop would not be enough."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: socket.socket | None = None
        self._is_abandoned = False

    def put(self, made: socket.socket) -> None:
        with self._lock:
            if self._is_abandoned:
                made.close()
            else:
                self._made = made

    def take(self) -> socket.socket:
        assert self._made is not None
        return self._made

    def abandon(self) -> None:
        with self._lock:
            self._is_abandoned = True
            if self._made is not None:
                self._made.close()


def _find_process(box: Sandbox) -> int:
    """Find the process that keeps the slot's network. Returns its pid on the host."""
    if not isinstance(box, ShellSandbox) or not (first := box.first_process):
        raise SandboxError("the slot is gone, or this kind of slot cannot have a port", retryable=False)
    return first


def _listen_by_child(pid: int) -> socket.socket:
    """Make a listening socket in the network of a process.

    A child process does it: entering a user namespace is not possible from a process with several threads.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-I", "-S", str(_CHILD), str(pid), str(theirs.fileno())]
        try:
            done = subprocess.run(
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=_OPEN_SECONDS,
                env={},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxError(f"no port could be opened in the slot: {error}") from error
        if done.returncode != 0:
            message = done.stderr.decode(errors="replace").strip()
            raise SandboxError(f"no port could be opened in the slot: {message}")
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    return socket.socket(fileno=fds[0])
