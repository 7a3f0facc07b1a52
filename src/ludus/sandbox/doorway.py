"""A door in a slot without a network: one port on its own loopback, behind which the driver answers.

    agent in the slot ── 127.0.0.1:PORT ──> a socket of the driver, made inside the slot's network

A slot whose network is denied still has a loopback device of its own. A short-lived child of the driver (`doorstep.py`)
enters that network, makes a socket that listens there, hands it over and ends. No program in the slot relays anything
and no wall gets a hole: a process in the slot reaches whoever accepts on this socket, and nothing else. In a slot that
shares the host's network, it is the host's loopback, which every program of the host can reach as well.

Works for `bwrap` and `local` slots, with the driver as root or as a normal user. Slots of the other backends live in
networks that this process cannot enter.
"""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

from ludus.errors import SandboxError
from ludus.sandbox import Sandbox
from ludus.sandbox.base import ShellSandbox
from ludus.sandbox.processes import descendants, number_within

_OPEN_SECONDS = 30.0
_CHILD = Path(__file__).with_name("doorstep.py")
_GUIDE = "read -r pid < <(exec /bin/bash -c 'echo $$; exec >&- 2>&-; exec sleep 60') && echo $pid"
"""Leaves a process that other users than root may look at. The slot's own shells are closed to them."""


async def open_door(box: Sandbox) -> socket.socket:
    """A socket that listens on a free port of the slot's own 127.0.0.1. The caller closes it.

    Raises:
        SandboxError: the slot is gone, or of a kind that has no doors.
    """
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
        raise SandboxError(
            "agents that bring their own loop need a slot on this machine, with a door to the driver: "
            "set sandbox.backend to 'bwrap'",
            retryable=False,
        )
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
