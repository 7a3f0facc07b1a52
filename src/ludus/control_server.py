"""Let the owner of a run change it while it runs: a socket in its directory, `control/socket`.

    ludus ctl ──> control/socket ──> ControlServer ──> RunControl ──> the engine, wherever it runs
                                          └──> events.jsonl: who did what, when

The folder is the owner's alone (0700), and so is the socket (0600); the user at the other end is asked of the kernel.
A request is one short line, which must come within seconds. What is wrong with it is the error of that request: no
client can end a run, other than by asking for it, or hold it up.
"""

import asyncio
import os
import pwd
import socket
import struct
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from ludus.control_client import (
    FOLDER,
    LONGEST_REQUEST,
    SOCKET,
    ControlReply,
    ControlRequest,
    NoteRequest,
    PauseRequest,
    RequeueRequest,
    ResumeRequest,
    RunStatus,
    SetRequest,
    StatusRequest,
    name_socket,
)
from ludus.errors import LudusError, StoreError
from ludus.run_events import append_event
from ludus.run_info import Tell, read_info
from ludus.runner import Runner
from ludus.store import RunDir
from ludus.types import Rollout

MOST_CLIENTS = 32
"""Connections at a time. Further ones are closed at once."""
CLIENT_SECONDS = 5.0
"""How long a client may take to send its request, and to take the reply."""

_DECODER: msgspec.json.Decoder[ControlRequest] = msgspec.json.Decoder(ControlRequest)


@asynccontextmanager
async def serve_control(runner: Runner, directory: RunDir, tell: Tell) -> AsyncGenerator[None, None]:
    """Answer requests while the block runs. Where there can be no socket, the run goes on without one, and says so."""
    try:
        listening = _listen(directory.path / FOLDER)
    except OSError as error:
        tell(f"this run cannot be controlled with `ludus ctl`: {directory.path / FOLDER}: {error.strerror or error}")
        yield
        return
    control = _ControlServer(runner, directory, tell)
    server = await asyncio.start_unix_server(control.serve, sock=listening, limit=LONGEST_REQUEST)
    try:
        yield
    finally:
        server.close()
        await control.close()
        _remove(directory.path / FOLDER)


def _listen(folder: Path) -> socket.socket:
    """A socket that only the owner can reach. The caller has the lock of the run, so an old one is a dead process's."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    folder.chmod(0o700)
    (folder / SOCKET).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    try:
        with name_socket(folder) as address:
            listening.bind(address)
        (folder / SOCKET).chmod(0o600)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _remove(folder: Path) -> None:
    with suppress(OSError):  # somebody else's file in it, or a directory that is gone
        (folder / SOCKET).unlink(missing_ok=True)
        folder.rmdir()


class _ControlServer:
    """Answers the requests to one run."""

    def __init__(self, runner: Runner, directory: RunDir, tell: Tell) -> None:
        self._runner = runner
        self._control = runner.options.control
        self._directory = directory
        self._tell = tell
        self._clients: set[asyncio.Task[None]] = set()
        self._closed = False

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= MOST_CLIENTS or self._closed:
            writer.transport.abort()
            return

        def end(task: "asyncio.Task[None]") -> None:  # also of a task that was cancelled before it began
            self._clients.discard(task)
            writer.close() if not writer.transport.get_write_buffer_size() else writer.transport.abort()

        task = asyncio.create_task(self._serve(reader, writer))
        self._clients.add(task)
        task.add_done_callback(end)

    async def close(self) -> None:
        self._closed = True
        for task in (clients := tuple(self._clients)):
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CLIENT_SECONDS):
                line = await reader.readuntil(b"\n")
                writer.write(msgspec.json.encode(self._answer(line, _find_peer(writer))) + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is slow, gone or sends too much: its connection is closed, nobody else is concerned

    def _answer(self, line: bytes, who: str | None) -> ControlReply:
        if who is None:
            return ControlReply(ok=False, text="only the user who runs it can control a run")
        try:
            return self._act(_DECODER.decode(line), who)
        except (LudusError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            return ControlReply(ok=False, text=str(error))

    def _act(self, request: ControlRequest, who: str) -> ControlReply:
        if not isinstance(request, StatusRequest):
            text = self._change(request)
            if not isinstance(request, NoteRequest):
                self._tell(f"{text} ({request.via or 'ludus ctl'}, {who})")
            by = f"{request.via}, {who}" if request.via else who
            append_event(self._directory, "control", text, who=by, facts=request)
        else:
            text = ""
        return ControlReply(ok=True, text=text, status=self._read_status())

    def _change(self, request: ControlRequest) -> str:
        """Do what is asked. Returns what was done, in words."""
        control = self._control
        if isinstance(request, PauseRequest):
            if control.is_stopping:
                raise StoreError("the run is stopping: there is nothing to pause")
            control.pause()
            return "paused: what runs is finished, nothing new starts"
        if isinstance(request, NoteRequest):
            return request.text
        if isinstance(request, ResumeRequest):
            control.resume()
            return "resumed"
        if isinstance(request, SetRequest):
            control.set_concurrency(request.concurrency)
            return f"concurrency set to {request.concurrency}"
        if isinstance(request, RequeueRequest):
            keys = find_failed(self._directory.read_failed(), request.ids)
            control.requeue(keys)
            return f"{len(keys)} rollouts without a score are run again, after what is planned"
        control.stop("stopped by ludus ctl")
        return "stopping: what runs is finished, then the run ends"

    def _read_status(self) -> RunStatus:
        control, info = self._control, read_info(self._directory.path)
        return RunStatus(
            run=str(self._directory.path),
            kind=info.kind if info else "",
            pid=os.getpid(),
            paused=control.paused,
            stopping=control.is_stopping,
            reason=control.reason,
            concurrency=self._runner.options.at_once,
            stored=self._directory.measure_scores()[0],
            planned=info.planned if info else 0,
            requeued=len(control.requeued),
            activity=self._runner.activity.report(),
        )


def _find_peer(writer: asyncio.StreamWriter) -> str | None:
    """The user at the other end and the process; None if it is neither the owner of this process nor root."""
    found: socket.socket = writer.get_extra_info("socket")
    if not hasattr(socket, "SO_PEERCRED"):  # the folder alone protects the socket there
        return f"user {os.getuid()}"
    pid, user, _ = struct.unpack("3i", found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if user not in (os.getuid(), 0):
        return None
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = f"user {user}"
    return f"{name}, process {pid}"


def find_failed(failed: Iterable[tuple[str, Rollout]], ids: Sequence[str]) -> list[str]:
    """The content addresses of the rollouts without a score that are asked for.

    Raises:
        StoreError: there is none for one of the ids. Then none is run again.
    """
    wanted, found = set(ids), dict[str, set[str]]()
    for key, rollout in failed:
        task = rollout.task.id
        for name in wanted & {key, task, f"{task}#{rollout.provenance.replicate + 1}"}:
            found.setdefault(name, set()).add(key)
    unknown = [id for id in ids if id not in found]
    if unknown:
        raise StoreError(
            f"no rollout of '{unknown[0]}' has failed in this run: only those without a score are run again, because "
            "a second chance for the others would change the mean"
        )
    return sorted({key for keys in found.values() for key in keys})
