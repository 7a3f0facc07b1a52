"""The start of slotd.

stdio             the first frame on stdin is the hello, with the settings; requests follow
http FILE PORT    FILE is JSON with `token`, `host` and the settings
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import sys
from typing import Any

from ludus.errors import SandboxError
from ludus.sandbox.slotd import frames, requests
from ludus.sandbox.slotd.children import Children
from ludus.sandbox.slotd.frames import Frame
from ludus.sandbox.slotd.shell_program import lower_oom_score
from ludus.sandbox.slotd.slots import SlotdSettings, Slots, open_slots


def main() -> int:
    lower_oom_score()
    if sys.argv[1:] == ["stdio"]:
        return asyncio.run(_run_stdio())
    if len(sys.argv) == 4 and sys.argv[1] == "http":
        with open(sys.argv[2], encoding="utf-8") as file:
            return asyncio.run(_run_http(json.load(file), int(sys.argv[3])))
    requests.log(f"usage: {__doc__}")
    return 2


async def _run_stdio() -> int:
    reader, writer = await requests.open_stdio()
    hello = await _read_hello(reader)
    reply: dict[str, Any] = {"id": hello.get("id")}
    try:
        if hello.get("version") != frames.VERSION:
            raise SandboxError(f"the driver speaks version {hello.get('version')}, slotd {frames.VERSION}")
        slots = await open_slots(_parse_settings(hello), _watch_children())
    except SandboxError as error:
        writer.write(frames.pack(Frame({**reply, **requests.encode_error(error)})))
        await writer.drain()
        return 1
    handler = _make_handler(slots, hello)
    writer.write(frames.pack(Frame({**reply, **handler.describe()})))
    serving = asyncio.ensure_future(requests.serve_stdio(reader, writer, handler.handle))
    serving.add_done_callback(lambda task: (task.cancelled() or task.exception(), handler.stop()))
    await _wait_and_close(handler, slots)
    serving.cancel()
    return 0


async def _read_hello(reader: asyncio.StreamReader) -> dict[str, Any]:
    unpacker = frames.Unpacker()
    while True:
        data = await reader.read(4096)
        if not data:
            raise SystemExit("slotd: the driver closed the connection before its hello")
        for frame in unpacker.feed(data):
            return frame.head


async def _run_http(config: dict[str, Any], port: int) -> int:
    slots = await open_slots(_parse_settings(config), _watch_children())
    handler = _make_handler(slots, config)
    server = await requests.serve_http(handler, config.get("host", "0.0.0.0"), port, config["token"])
    requests.log(f"listens on port {port}; isolation: {slots.isolation.level} {slots.isolation.reason}")
    await _wait_and_close(handler, slots)
    server.close()
    return 0


def _parse_settings(fields: dict[str, Any]) -> SlotdSettings:
    defaults = SlotdSettings()._asdict()
    return SlotdSettings(*(type(default)(fields.get(name, default)) for name, default in defaults.items()))


def _watch_children() -> Children:
    children = Children()
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, children.reap)
    return children


def _make_handler(slots: Slots, fields: dict[str, Any]) -> requests.RequestHandler:
    """Make the request handler, raise the limit of open files and install the signal handlers."""
    handler = requests.RequestHandler(slots, _parse_settings(fields).lapse)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # slotd holds the connections of all slots' ports
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, handler.stop)
    return handler


async def _wait_and_close(handler: requests.RequestHandler, slots: Slots) -> None:
    await handler.wait_gone()
    requests.log("the driver is gone or asked slotd to exit: closing all slots")
    await slots.close_all()
