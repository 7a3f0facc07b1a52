"""A real slotd for tests: as a child process over stdio, or as a daemon that listens on loopback."""

import asyncio
import base64
import json
import re
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.sandbox.remote.machinery import Daemon, find_free_port, is_listening

from ludus.sandbox import SandboxSpec
from ludus.sandbox.remote.bundle import build_bundle, build_file_command, build_receive_command
from ludus.sandbox.remote.link import Link, StdioLink
from ludus.sandbox.remote.program import run_program
from ludus.sandbox.remote.remote_sandbox import RemoteSandbox, SlotdInfo, SlotServer
from ludus.sandbox.slotd.frames import Frame

PYTHON = "/usr/bin/python3"
SPEC = {"network": False, "disk_mb": 32, "processes": 200, "memory_mb": 0, "env": {}, "mounts": []}
"""The spec of a slot, as it is sent to slotd."""

needs_python = pytest.mark.skipif(not Path(PYTHON).exists(), reason="no Python of the system")


@asynccontextmanager
async def start_slotd(
    *prefix: str, python: str = PYTHON, lapse: float = 30.0, **settings: Any
) -> AsyncGenerator[tuple[StdioLink, SlotdInfo]]:
    """Start a slotd as a child process. Yields the link to it and what it says of itself."""
    link = StdioLink(await run_program([*prefix, *build_receive_command(python)]))
    try:
        reply = await link.start({"view": "system", **settings}, seconds=30, lapse=lapse)
        yield link, msgspec.convert(reply.head, SlotdInfo)
    finally:
        await link.close()


async def open_boxes(link: Link, info: SlotdInfo, count: int = 1, **spec: Any) -> list[RemoteSandbox]:
    """Open slots of a slotd, through the driver's own classes."""
    server = SlotServer(link, info, end=do_nothing)
    return [await server.open(SandboxSpec(**{"disk_mb": 32, **spec}), do_nothing) for _ in range(count)]


def find_folder(link: StdioLink) -> Path:
    """The folder of a slotd on this machine, by the lock that it holds there."""
    opened = [each.readlink() for each in Path(f"/proc/{link._channel.pid}/fd").iterdir()]
    return next(path.parent for path in opened if path.match("ludus-*/lock"))


async def do_nothing() -> None:
    pass


async def call(link: Link, head: dict[str, Any], body: bytes = b"") -> Frame:
    return await link.call(head, body, seconds=30)


def make_run(
    slot: str, execution: str, command: bytes, stdin: bytes | None = None, **more: Any
) -> tuple[dict[str, Any], bytes]:
    """Make the head and the body of a request that runs a command."""
    head = {"op": "run", "slot": slot, "execution": execution, "command": len(command), "seconds": 20, "keep": 100_000}
    return {**head, "stdin": stdin is not None, **more}, command + (stdin or b"")


class HttpSlotd:
    """A slotd that listens on loopback."""

    def __init__(self, folder: Path, **settings: object) -> None:
        (folder / "slotd").write_bytes(base64.b64encode(build_bundle()))
        self.token = "0123456789abcdef"
        config = {"token": self.token, "host": "127.0.0.1", "view": "system", **settings}
        (folder / "slotd.json").write_text(json.dumps(config))
        self.port = find_free_port()
        command = build_file_command(PYTHON, str(folder / "slotd"), str(folder / "slotd.json"), str(self.port))
        self.daemon = Daemon(command, folder / "log")
        self.daemon.wait_until(lambda: is_listening(self.port))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def wait_exit(self) -> None:
        async with asyncio.timeout(120):
            while self.daemon._process.poll() is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def wait_gone(pid: int) -> None:
    """Wait until a process is gone."""
    async with asyncio.timeout(120):
        while Path(f"/proc/{pid}").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def find_sleepers(word: str) -> list[str]:
    """Find processes `sleep WORD…`. Other programs on the machine may have the word in their arguments."""
    line = f"^sleep {re.escape(word)}"
    found = subprocess.run(["pgrep", "-f", line], capture_output=True, text=True, check=False).stdout
    return found.split()
