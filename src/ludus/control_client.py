"""Talk to a run that runs: what can be asked, and what it answers.

    ask_run(Path("runs/first"), SetRequest(concurrency=32)) ──> control/socket in the run directory ──> ControlReply

One connection is one request and one reply, each a line of JSON. The socket is in a folder that only its owner may
enter, so nobody else can ask. `ludus ctl` is this and a few words; a program may call it too.
"""

import os
import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ludus.activity import ActivityReport
from ludus.errors import StoreError

FOLDER = "control"
SOCKET = "socket"
LONGEST_REQUEST = 64 * 1024
LONGEST_REPLY = 4 * 1024 * 1024
LONGEST_PATH = 100
"""A socket's address has room for about this many bytes."""
SECONDS = 10.0
"""How long a reply may take. A run that is busy answers between two steps."""


class _Request(Struct, frozen=True, kw_only=True, tag_field="do", forbid_unknown_fields=True, omit_defaults=True):
    """What is asked of a run."""

    via: Annotated[str, Meta(max_length=40)] = ""
    """What asks, if it is not `ludus ctl`: it is recorded."""


class StatusRequest(_Request, frozen=True, tag="status"):
    """How does it go?"""


class PauseRequest(_Request, frozen=True, tag="pause"):
    """Start nothing new for now."""


class ResumeRequest(_Request, frozen=True, tag="resume"):
    """Go on."""


class StopRequest(_Request, frozen=True, tag="stop"):
    """Drain: finish what runs, then end. The run can be resumed."""


class SetRequest(_Request, frozen=True, tag="set"):
    """Run this many rollouts at a time."""

    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)]


class RequeueRequest(_Request, frozen=True, tag="requeue"):
    """Run rollouts again that have no score: `TASK`, `TASK#2` or a content address."""

    ids: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=1000)], ...], Meta(min_length=1, max_length=1000)]


class NoteRequest(_Request, frozen=True, tag="note"):
    """Record what a person did beside the run, such as writing tags."""

    text: Annotated[str, Meta(min_length=1, max_length=1000)]


ControlRequest = StatusRequest | NoteRequest | PauseRequest | ResumeRequest | StopRequest | SetRequest | RequeueRequest


class RunStatus(Struct, frozen=True, kw_only=True):
    """How a run goes now."""

    run: str
    kind: str
    pid: int
    paused: bool
    stopping: bool
    reason: str
    """Why it is stopping, if somebody said."""
    concurrency: int
    """Rollouts at a time, at most."""
    stored: int
    """Outcomes in its directory, with those of earlier parts of the run."""
    planned: int
    """How many there are when it is complete; 0: not known."""
    requeued: int
    """Rollouts that were asked for again and have not begun."""
    activity: ActivityReport


class ControlReply(Struct, frozen=True, kw_only=True):
    """What a run answers."""

    ok: bool
    text: str
    """What was done, or why not."""
    status: RunStatus | None = None


_REPLY = msgspec.json.Decoder(ControlReply)


def ask_run(path: Path, request: ControlRequest, seconds: float = SECONDS) -> ControlReply:
    """Ask a run that runs on this machine.

    Raises:
        StoreError: no run answers there.
    """
    with ExitStack() as stack:
        found = stack.enter_context(socket.socket(socket.AF_UNIX))
        found.settimeout(seconds)
        address = stack.enter_context(name_socket(path / FOLDER))
        try:
            found.connect(address)
            found.sendall(msgspec.json.encode(request) + b"\n")
            return _REPLY.decode(_read_line(found))
        except PermissionError:
            raise StoreError(f"{path}: the run belongs to another user, who alone can control it") from None
        except TimeoutError:
            raise StoreError(f"{path}: the run did not answer within {seconds:g} s; try again") from None
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise StoreError(
                f"{path}: no run answers there ({why}): it is not running, or runs on another machine; see: ludus runs"
            ) from None


@contextmanager
def name_socket(folder: Path) -> Generator[str]:
    """An address of the socket in a folder while the block runs: a longer path than an address has room for is named by
    an open folder."""
    plain = str(folder / SOCKET)
    if len(os.fsencode(plain)) <= LONGEST_PATH:
        yield plain
        return
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield f"/proc/self/fd/-1/{SOCKET}"  # whoever uses it gets the error
        return
    try:
        yield f"/proc/self/fd/{opened}/{SOCKET}"
    finally:
        os.close(opened)


def _read_line(found: socket.socket) -> bytes:
    data = bytearray()
    while not data.endswith(b"\n") and len(data) < LONGEST_REPLY:
        piece = found.recv(64 * 1024)
        if not piece:
            raise ConnectionResetError("the connection was closed without a reply")
        data += piece
    return bytes(data)
