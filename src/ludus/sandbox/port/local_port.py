"""A door in a slot without a network: one port on its own loopback, behind which the driver answers.

    agent in the slot ── 127.0.0.1:PORT ──> a socket made inside the slot's network ──> the driver

A slot whose network is denied still has a loopback device of its own. With `bwrap` and `local`, a short-lived child of
the driver (`doorstep.py`) enters that network, makes a socket that listens there, hands it over and ends: no program
relays anything. It takes root, or a normal user whose slot it is. Slots of the other backends live in networks that
this process cannot enter: there slotd has the socket, and the link carries its connections (`passage.py`).

Either way no wall gets a hole: a process in the slot reaches whoever answers behind this port, and nothing else. In a
slot that shares a network with others (`local`, a network that is allowed, several slots without namespaces), they can
reach the port as well.
"""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from ludus.errors import SandboxError
from ludus.sandbox import Sandbox
from ludus.sandbox.processes import descendants, number_within
from ludus.sandbox.shell_sandbox import ShellSandbox

Answer = Callable[[], asyncio.BaseProtocol]
"""Makes the protocol that answers one connection."""
_OPEN_SECONDS = 30.0
_CHILD = Path(__file__).with_name("port_child.py")
_GUIDE = "read -r pid < <(exec /bin/bash -c 'echo $$; exec >&- 2>&-; exec sleep 60') && echo $pid"
"""Leaves a process that other users than root may look at. The slot's own shells are closed to them."""


@runtime_checkable
class Distant(Protocol):
    """A slot that is not on this machine, and has a door of its own kind."""

    def door(self, answer: Answer) -> AbstractAsyncContextManager[int]: ...


@asynccontextmanager
async def open_door(box: Sandbox, answer: Answer) -> AsyncGenerator[int, None]:
    """A free port of the slot's own 127.0.0.1, whose connections are answered here until the block is left.

    A slot has one door at a time. From the end of the block on nobody gets through, and connections that are still open
    may be cut. After a `reset` of the slot it takes a new door.

    Raises:
        SandboxError: the slot is gone, or of a kind that has no doors.
    """
    if isinstance(box, Distant):
        async with box.door(answer) as port:
            yield port
        return
    listening = await _listening_in(box)
    server = await asyncio.get_running_loop().create_server(answer, sock=listening)
    try:
        yield listening.getsockname()[1]
    finally:
        server.close()


async def _listening_in(box: Sandbox) -> socket.socket:
    """A socket that listens on a free port of the slot's own 127.0.0.1. The caller closes it."""
    pid = await _process_in(box)
    work = asyncio.create_task(asyncio.to_thread(_listen_inside, pid))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(_close_unwanted)  # bounded in time, and nobody waits for it
        raise


def _close_unwanted(work: "asyncio.Task[socket.socket]") -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().close()


async def _process_in(box: Sandbox) -> int:
    """A process of the slot whose namespaces may be looked up, as the host numbers it."""
    if not isinstance(box, ShellSandbox) or not (first := box.first_process):
        raise SandboxError("the slot is gone, or of a kind that has no door to the driver", retryable=False)
    if _may_look(first):
        return first
    guide = await box.exec(_GUIDE, timeout=_OPEN_SECONDS)
    number = int(guide.stdout) if guide.stdout.strip().isdigit() else -1
    for pid in descendants([first]):
        if number_within(pid) == number:
            return pid
    raise SandboxError(f"the slot's network was not found: {guide.text.strip() or 'its processes are gone'}")


def _may_look(pid: int) -> bool:
    try:
        Path(f"/proc/{pid}/ns/net").stat()
    except OSError:
        return False
    return True


def _listen_inside(pid: int) -> socket.socket:
    """Have a child enter the network of a process and make the socket there: a thread cannot enter all it must."""
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
            raise SandboxError(f"no door into the slot: {error}") from error
        if done.returncode != 0:
            raise SandboxError(f"no door into the slot: {done.stderr.decode(errors='replace').strip()}")
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    return socket.socket(fileno=fds[0])
