"""Requests to slotd, and the two ways they come in: frames over stdio, or HTTP with a token."""

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
from ludus.sandbox.slotd import frames as wire
from ludus.sandbox.slotd.frames import Message
from ludus.sandbox.slotd.slots import Slot, Slots, Spec

_READ_BYTES = 1 << 18
_HEAD_BYTES = 16_384
_IDLE_SECONDS = 120.0
"""How long an HTTP connection may be silent."""


class Desk:
    """Answers requests, and knows when the driver was last heard."""

    def __init__(self, slots: Slots, lapse: float) -> None:
        self._slots = slots
        self._lapse = lapse
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._gone = asyncio.Event()
        self._loop.call_later(lapse, self._watch)

    async def gone(self) -> None:
        """Until the driver is gone, or says goodbye."""
        await self._gone.wait()

    def leave(self) -> None:
        self._gone.set()

    def _watch(self) -> None:
        silent = self._loop.time() - self._heard
        if silent >= self._lapse:
            self.leave()
        else:
            self._loop.call_later(self._lapse - silent, self._watch)

    async def answer(self, message: Message) -> Message:
        self._heard = self._loop.time()
        head: dict[str, Any] = {"id": message.head.get("id")}
        try:
            answer = await self._act(message)
        except SandboxError as error:
            return Message({**head, "error": str(error), "retryable": error.retryable})
        except (KeyError, TypeError, ValueError, OSError) as error:
            return Message({**head, "error": f"{type(error).__name__}: {error}", "retryable": False})
        return Message({**head, **answer.head}, answer.body)

    async def _act(self, message: Message) -> Message:
        head, operation = message.head, message.head["op"]
        if operation == "run":
            return await self._run(head, message.body)
        if operation == "input":
            self._slots.get(head["slot"]).take_input(str(head["execution"]), int(head["offset"]), message.body)
        elif operation == "cancel":
            await self._cancel(head)
        elif operation == "fresh":
            await self._slots.get(head["slot"]).shell.fresh()
        elif operation == "open":
            return Message(_paths(await self._slots.open(head["slot"], _spec(head["spec"]))))
        elif operation == "reset":
            return Message(_paths(await self._slots.reset(head["slot"])))
        elif operation == "close":
            await self._slots.close(head["slot"])
        elif operation == "bye":
            self._loop.call_later(0.05, self.leave)  # after the answer is out
        elif operation == "hello":
            return Message(self.about())
        elif operation in _AT_A_DOOR:
            return await self._at_door(operation, head, message.body)
        elif operation != "beat":
            raise ValueError(f"unknown operation {operation!r}")
        return Message({})

    def about(self) -> dict[str, Any]:
        way = self._slots.way
        return {
            "version": wire.VERSION,
            "python": platform.python_version(),
            "isolation": way.isolation,
            "why": way.why,
            "slots": len(self._slots),
            "user": os.geteuid(),
        }

    async def _run(self, head: dict[str, Any], body: bytes) -> Message:
        """Run a command, or wait for one that runs. With `wait`, "pending" is the answer if it takes longer."""
        slot, execution = self._slots.get(head["slot"]), str(head["execution"])
        if head.get("again"):
            task = slot.execution(execution)
            if task is None:
                raise SandboxError("the execution is not known here any more")
        else:
            length = int(head["command"])
            stdin = body[length:] if head.get("stdin") else None
            task = slot.execute(execution, body[:length], stdin, float(head["seconds"]), int(head["keep"]))
        return _result(task.result()) if await _ended(task, head) else _PENDING

    async def _cancel(self, head: dict[str, Any]) -> None:
        """Have a command killed, and wait until its shell is ready again."""
        task = self._slots.get(head["slot"]).execution(str(head["execution"]))
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    async def _at_door(self, operation: str, head: dict[str, Any], body: bytes) -> Message:
        """A request about the door of a slot, or one about a connection through it: see `door.py`."""
        slot, name = self._slots.get(head["slot"]), str(head["door"])
        if operation == "door":
            return Message({"port": (await slot.open_door(name)).port})
        if operation == "shut":
            await slot.shut_door(name)
            return Message({})
        door, number = slot.door(name), int(head["stream"])
        if operation == "hear":
            heard = door.stream(number).hear(int(head["turn"]))
            return Message({}, heard.result()) if await _ended(heard, head) else _PENDING
        if operation == "drop":
            await door.drop(number, cut=bool(head["cut"]))
            return Message({})
        said = door.accept(number) if operation == "accept" else door.stream(number).say(int(head["turn"]), body)
        if not await _ended(said, head):
            return _PENDING
        said.result()
        return Message({})


_AT_A_DOOR = ("door", "accept", "hear", "say", "drop", "shut")
_PENDING = Message({"pending": True})


async def _ended(task: asyncio.Future[Any], head: dict[str, Any]) -> bool:
    """Whether it has ended. With `wait` in the request, there is an answer after that time in any case."""
    done, _ = await asyncio.wait([task], timeout=head.get("wait"))
    if done and task.cancelled():
        raise SandboxError("what was asked for was cancelled")
    return bool(done)


def _spec(fields: dict[str, Any]) -> Spec:
    return Spec(
        bool(fields["network"]),
        int(fields["disk_mb"]),
        int(fields["processes"]),
        int(fields["memory_mb"]),
        {str(name): str(value) for name, value in fields["env"].items()},
        tuple((str(source), str(target)) for source, target in fields["mounts"]),
    )


def _paths(slot: Slot) -> dict[str, Any]:
    return {"paths": slot.paths._asdict()}


def _result(result: ExecResult) -> Message:
    head = {
        "code": result.exit_code,
        "timed_out": result.timed_out,
        "truncated": result.truncated,
        "seconds": result.seconds,
        "out": len(result.stdout),
    }
    return Message(head, result.stdout + result.stderr)


# ---- stdio --------------------------------------------------------------------------------------------------------


async def stdio_streams() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Stdin and stdout, which from now on carry messages only."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_READ_BYTES)
    source, target = os.fdopen(os.dup(0), "rb", 0), os.fdopen(os.dup(1), "wb", 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, target)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


async def serve_stdio(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Callable[[Message], Awaitable[Message]]
) -> None:
    """Answer messages, each in its own time, until the driver closes its end."""
    tasks: set[asyncio.Future[None]] = set()
    turn = asyncio.Lock()  # older Pythons let only one wait for room

    async def respond(message: Message) -> None:
        reply = await answer(message)
        async with turn:
            writer.write(wire.pack(reply))
            await writer.drain()

    unpacker = wire.Unpacker()
    while True:
        data = await reader.read(_READ_BYTES)
        if not data:
            return
        for message in unpacker.feed(data):
            task = asyncio.ensure_future(respond(message))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


# ---- HTTP ---------------------------------------------------------------------------------------------------------


class Web:
    """A small HTTP/1.1 server: `POST /call` with a token, and `GET /health` without."""

    def __init__(self, desk: Desk, token: str) -> None:
        self._desk = desk
        self._token = token.encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._exchange(reader, writer):
                pass
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):  # noqa: UP041
            pass  # the other end is gone, silent, or does not speak HTTP
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection can be used again."""
        raw = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _IDLE_SECONDS)
        try:
            method, path, headers = _parse(raw)
            length = int(headers.get(b"content-length", b"0"))
        except ValueError:
            await _reply(writer, 400, b"")
            return False
        if (method, path) == (b"GET", b"/health"):
            await _reply(writer, 200, b"ok")
            return True
        if (method, path) != (b"POST", b"/call"):
            await _reply(writer, 404, b"")
            return False
        if not hmac.compare_digest(headers.get(b"authorization", b""), b"Bearer " + self._token):
            await _reply(writer, 401, b"")
            return False
        if length > wire.MAX_BYTES:
            await _reply(writer, 413, b"")
            return False
        body = await asyncio.wait_for(reader.readexactly(length), _IDLE_SECONDS)
        try:
            message = wire.unpack(body)
        except wire.Garbled:
            await _reply(writer, 400, b"")
            return False
        await _reply(writer, 200, wire.pack(await self._desk.answer(message)))
        return True


def _parse(raw: bytes) -> tuple[bytes, bytes, dict[bytes, bytes]]:
    first, *lines = raw.split(b"\r\n")
    method, path, _ = first.split(b" ")
    pairs = (line.split(b":", 1) for line in lines if line)
    return method, path, {name.strip().lower(): value.strip() for name, value in pairs}


async def _reply(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    head = f"HTTP/1.1 {status} -\r\nContent-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


async def serve_http(desk: Desk, host: str, port: int, token: str) -> asyncio.AbstractServer:
    web = Web(desk, token)
    return await asyncio.start_server(web.serve, host, port, limit=_HEAD_BYTES)


def say(words: str) -> None:
    """For people who look into the container's log."""
    print(f"slotd: {words}", file=sys.stderr, flush=True)
