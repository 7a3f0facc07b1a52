"""Requests to slotd, and its two transports: frames over stdio, or HTTP with a token."""

from __future__ import annotations

import asyncio
import hmac
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from ludus.errors import SandboxError
from ludus.sandbox import ExecResult
from ludus.sandbox.slotd import frames
from ludus.sandbox.slotd.frames import Frame
from ludus.sandbox.slotd.slots import Slot, Slots, SlotSpec

_READ_BYTES = 1 << 18
_HEAD_BYTES = 16_384
_IDLE_SECONDS = 120.0
"""How long an HTTP connection may be silent."""


class RequestHandler:
    """Handles requests, and notices when the driver has been silent for `lapse` seconds."""

    def __init__(self, slots: Slots, lapse: float) -> None:
        self._slots = slots
        self._lapse = lapse
        self._loop = asyncio.get_running_loop()
        self._last_request = self._loop.time()
        self._gone = asyncio.Event()
        self._loop.call_later(lapse, self._check_silence)

    async def wait_gone(self) -> None:
        """Wait until the driver is gone or has asked slotd to exit."""
        await self._gone.wait()

    def stop(self) -> None:
        self._gone.set()

    def _check_silence(self) -> None:
        silent = self._loop.time() - self._last_request
        if silent >= self._lapse:
            self.stop()
        else:
            self._loop.call_later(self._lapse - silent, self._check_silence)

    async def handle(self, request: Frame) -> Frame:
        """Carry out a request and return the reply. An error becomes a reply too, whatever it is."""
        self._last_request = self._loop.time()
        head: dict[str, Any] = {"id": request.head.get("id")}
        try:
            reply = await self._dispatch(request)
        except SandboxError as error:
            return Frame({**head, **encode_error(error)})
        except Exception as error:
            return Frame({**head, "error": f"{type(error).__name__}: {error}", "retryable": False})
        return Frame({**head, **reply.head}, reply.body)

    async def _dispatch(self, request: Frame) -> Frame:
        head, operation = request.head, request.head["op"]
        if operation == "run":
            return await self._run(head, request.body)
        if operation == "input":
            self._slots.get(head["slot"]).write_input(str(head["execution"]), int(head["offset"]), request.body)
        elif operation == "cancel":
            await self._cancel(head)
        elif operation == "restart":
            await self._slots.get(head["slot"]).shell.restart()
        elif operation == "open":
            return Frame(_encode_paths(await self._slots.open(head["slot"], _parse_spec(head["spec"]))))
        elif operation == "reset":
            return Frame(_encode_paths(await self._slots.reset(head["slot"])))
        elif operation == "close":
            await self._slots.close(head["slot"])
        elif operation == "exit":
            self._loop.call_later(0.05, self.stop)  # after the reply is sent
        elif operation == "hello":
            return Frame(self.describe())
        elif operation in _PORT_OPERATIONS:
            return await self._handle_port(operation, head, request.body)
        elif operation != "beat":
            raise ValueError(f"unknown operation {operation!r}")
        return Frame({})

    def describe(self) -> dict[str, Any]:
        """Describe this slotd, as the reply to `hello`."""
        isolation = self._slots.isolation
        return {
            "version": frames.VERSION,
            "python": platform.python_version(),
            "isolation": isolation.level,
            "why": isolation.reason,
            "slots": len(self._slots),
            "user": os.geteuid(),
        }

    async def _run(self, head: dict[str, Any], body: bytes) -> Frame:
        """Run a command, or wait for a running one. With `wait`, the reply is "pending" if that takes longer."""
        slot, execution = self._slots.get(head["slot"]), str(head["execution"])
        if head.get("again"):
            task = slot.find_execution(execution)
            if task is None:
                raise SandboxError("slotd no longer knows this execution")
        else:
            length = int(head["command"])
            stdin = body[length:] if head.get("stdin") else None
            task = slot.execute(execution, body[:length], stdin, float(head["seconds"]), int(head["keep"]))
        return _encode_result(task.result()) if await _wait_done(task, head) else _PENDING

    async def _cancel(self, head: dict[str, Any]) -> None:
        """Kill a command, and wait until its shell is ready again."""
        task = self._slots.get(head["slot"]).find_execution(str(head["execution"]))
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    async def _handle_port(self, operation: str, head: dict[str, Any], body: bytes) -> Frame:
        """Handle a request about a slot's port or one of its connections. See `slot_port.py`."""
        slot, name = self._slots.get(head["slot"]), str(head["port"])
        if operation == "open_port":
            return Frame({"number": (await slot.open_port(name)).number})
        if operation == "close_port":
            await slot.close_port(name)
            return Frame({})
        port, number = slot.get_port(name), int(head["stream"])
        if operation == "drop":
            await port.drop(number, abort=bool(head["abort"]))
            return Frame({})
        if operation == "receive":
            received = port.get_stream(number).receive(int(head["turn"]))
            return Frame({}, received.result()) if await _wait_done(received, head) else _PENDING
        task = port.accept(number) if operation == "accept" else port.get_stream(number).send(int(head["turn"]), body)
        if not await _wait_done(task, head):
            return _PENDING
        task.result()
        return Frame({})


def encode_error(error: SandboxError) -> dict[str, Any]:
    """The fields of a reply that refuses a request."""
    evidence = {"inside": error.evidence.inside, "outside": error.evidence.outside}
    return {
        "error": str(error),
        "retryable": error.retryable,
        **{name: text for name, text in evidence.items() if text},
    }


_PORT_OPERATIONS = ("open_port", "accept", "receive", "send", "drop", "close_port")
_PENDING = Frame({"pending": True})


async def _wait_done(task: asyncio.Future[Any], head: dict[str, Any]) -> bool:
    """Wait for a task, at most `wait` seconds if the request has that field. Returns whether the task is done."""
    done, _ = await asyncio.wait([task], timeout=head.get("wait"))
    if done and task.cancelled():
        raise SandboxError("the request was cancelled")
    return bool(done)


def _parse_spec(fields: dict[str, Any]) -> SlotSpec:
    return SlotSpec(
        bool(fields["network"]),
        int(fields["disk_mb"]),
        int(fields["processes"]),
        int(fields["memory_mb"]),
        {str(name): str(value) for name, value in fields["env"].items()},
        tuple((str(source), str(target)) for source, target in fields["mounts"]),
        tuple(map(str, fields.get("folders", ()))),
    )


def _encode_paths(slot: Slot) -> dict[str, Any]:
    return {"paths": slot.paths._asdict()}


def _encode_result(result: ExecResult) -> Frame:
    head = {
        "code": result.exit_code,
        "timed_out": result.timed_out,
        "truncated": result.truncated,
        "seconds": result.seconds,
        "out": len(result.stdout),
    }
    return Frame(head, result.stdout + result.stderr)


# ---- stdio --------------------------------------------------------------------------------------------------------


async def open_stdio() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Take over stdin and stdout for frames. From then on, prints go to stderr and stdin reads nothing."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_READ_BYTES)
    source, target = os.fdopen(os.dup(0), "rb", 0), os.fdopen(os.dup(1), "wb", 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, target)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


async def serve_stdio(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Callable[[Frame], Awaitable[Frame]]
) -> None:
    """Handle requests concurrently until the driver closes its end. Each reply is sent as soon as it is ready."""
    tasks: set[asyncio.Future[None]] = set()
    write_lock = asyncio.Lock()  # before Python 3.10 only one task may wait in `drain`

    async def respond(request: Frame) -> None:
        reply = await handle(request)
        async with write_lock:
            writer.write(frames.pack(reply))
            await writer.drain()

    unpacker = frames.Unpacker()
    while True:
        data = await reader.read(_READ_BYTES)
        if not data:
            return
        for request in unpacker.feed(data):
            task = asyncio.ensure_future(respond(request))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


# ---- HTTP ---------------------------------------------------------------------------------------------------------


class HttpServer:
    """A small HTTP/1.1 server: `POST /call` with a token, and `GET /health` without."""

    def __init__(self, handler: RequestHandler, token: str) -> None:
        self._handler = handler
        self._token = token.encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            while await self._exchange(reader, writer):
                pass
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):  # noqa: UP041
            pass  # the client is gone, silent, or does not speak HTTP
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handle one request. Returns whether the connection can be used again."""
        raw = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _IDLE_SECONDS)
        try:
            method, path, headers = _parse_head(raw)
            length = int(headers.get(b"content-length", b"0"))
        except ValueError:
            await _send_response(writer, 400, b"")
            return False
        if (method, path) == (b"GET", b"/health"):
            await _send_response(writer, 200, b"ok")
            return True
        if (method, path) != (b"POST", b"/call"):
            await _send_response(writer, 404, b"")
            return False
        if not hmac.compare_digest(headers.get(b"authorization", b""), b"Bearer " + self._token):
            await _send_response(writer, 401, b"")
            return False
        if length > frames.MAX_BYTES:
            await _send_response(writer, 413, b"")
            return False
        body = await asyncio.wait_for(reader.readexactly(length), _IDLE_SECONDS)
        try:
            request = frames.unpack(body)
        except frames.FrameError:
            await _send_response(writer, 400, b"")
            return False
        await _send_response(writer, 200, frames.pack(await self._handler.handle(request)))
        return True


def _parse_head(raw: bytes) -> tuple[bytes, bytes, dict[bytes, bytes]]:
    """Parse the head of an HTTP request into method, path and headers."""
    first, *lines = raw.split(b"\r\n")
    method, path, _ = first.split(b" ")
    pairs = (line.split(b":", 1) for line in lines if line)
    return method, path, {name.strip().lower(): value.strip() for name, value in pairs}


async def _send_response(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    head = f"HTTP/1.1 {status} -\r\nContent-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


async def serve_http(handler: RequestHandler, host: str, port: int, token: str) -> asyncio.AbstractServer:
    server = HttpServer(handler, token)
    return await asyncio.start_server(server.serve, host, port, limit=_HEAD_BYTES)


def log(text: str) -> None:
    """Print a line to the container's log."""
    print(f"slotd: {text}", file=sys.stderr, flush=True)
