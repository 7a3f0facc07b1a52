"""The start of slotd.

stdio             the first message on stdin is the greeting, with the settings; messages follow
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
from ludus.sandbox.slotd import frames as wire
from ludus.sandbox.slotd import requests as serve
from ludus.sandbox.slotd.frames import Message
from ludus.sandbox.slotd.slots import Settings, Slots


def main() -> int:
    if sys.argv[1:] == ["stdio"]:
        return asyncio.run(_stdio())
    if len(sys.argv) == 4 and sys.argv[1] == "http":
        with open(sys.argv[2], encoding="utf-8") as file:
            return asyncio.run(_http(json.load(file), int(sys.argv[3])))
    serve.say(f"usage: {__doc__}")
    return 2


async def _stdio() -> int:
    reader, writer = await serve.stdio_streams()
    greeting = await _greeting(reader)
    reply: dict[str, Any] = {"id": greeting.get("id")}
    try:
        if greeting.get("version") != wire.VERSION:
            raise SandboxError(f"the driver speaks version {greeting.get('version')}, slotd {wire.VERSION}")
        slots = Slots(_settings(greeting))
    except SandboxError as error:
        writer.write(wire.pack(Message({**reply, "error": str(error), "retryable": error.retryable})))
        await writer.drain()
        return 1
    desk = _desk(slots, greeting)
    writer.write(wire.pack(Message({**reply, **desk.about()})))
    listening = asyncio.ensure_future(serve.serve_stdio(reader, writer, desk.answer))
    listening.add_done_callback(lambda task: (task.cancelled() or task.exception(), desk.leave()))
    await _until_gone(desk, slots)
    listening.cancel()
    return 0


async def _greeting(reader: asyncio.StreamReader) -> dict[str, Any]:
    unpacker = wire.Unpacker()
    while True:
        data = await reader.read(4096)
        if not data:
            raise SystemExit("slotd: the driver left without a greeting")
        for message in unpacker.feed(data):
            return message.head


async def _http(config: dict[str, Any], port: int) -> int:
    slots = Slots(_settings(config))
    desk = _desk(slots, config)
    server = await serve.serve_http(desk, config.get("host", "0.0.0.0"), port, config["token"])
    serve.say(f"listens on port {port}; isolation: {slots.way.isolation} {slots.way.why}")
    await _until_gone(desk, slots)
    server.close()
    return 0


def _settings(fields: dict[str, Any]) -> Settings:
    return Settings(*(type(default)(fields.get(name, default)) for name, default in Settings()._asdict().items()))


def _desk(slots: Slots, fields: dict[str, Any]) -> serve.Desk:
    desk = serve.Desk(slots, _settings(fields).lapse)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # connections of all slots' agents are open here
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, slots.reap)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, desk.leave)
    return desk


async def _until_gone(desk: serve.Desk, slots: Slots) -> None:
    await desk.gone()
    serve.say("the driver is gone, or asked for the end: ending all slots")
    await slots.close_all()
