"""A door in a slot elsewhere, over links that fail, and with agents that misbehave. What works is in the contract's
suite; here slotd is a child process."""

import asyncio
import base64
import json
import os
import random
import signal
import socket
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from ludus.errors import SandboxError
from ludus.http_client import Client
from ludus.sandbox import SandboxSpec
from ludus.sandbox.port import remote_port as passage
from ludus.sandbox.port.local_port import open_port
from ludus.sandbox.remote.bundle import build_bundle, build_file_command
from ludus.sandbox.remote.link import HttpLink
from ludus.sandbox.remote.remote_sandbox import SlotdInfo, SlotServer

PYTHON = "/usr/bin/python3"

pytestmark = pytest.mark.skipif(not Path(PYTHON).exists(), reason="no Python of the system")


async def nothing() -> None:
    pass


machinery = sys.modules["ludus_tests_machinery"]
run = machinery.finish


def door(box, handle):
    return open_port(box, lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(), handle))


@asynccontextmanager
async def in_slot(slotd, places: int = 1):
    async with slotd() as (link, about):
        server = SlotServer(link, about, capacity=places, end=nothing)
        boxes = [await server.open(SandboxSpec(disk_mb=32), nothing) for _ in range(places)]
        yield (link, *boxes)


def knocking(port: int) -> str:
    return f"exec 3<>/dev/tcp/127.0.0.1/{port} && cat <&3"


class Visit:
    """Somebody behind a door who says `words` and then listens for as long as the other end is there."""

    def __init__(self, words: bytes = b"") -> None:
        self._words = words
        self.came, self.left = asyncio.Event(), asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._words)
        self.came.set()
        with suppress(OSError):
            await reader.read()
        self.left.set()
        writer.close()


def test_a_door_leads_to_the_driver_and_nowhere_else(slotd):
    async def work() -> None:
        async with in_slot(slotd, 2) as (_, box, other):

            async def say(reader, writer) -> None:
                writer.write(b"mine")
                writer.close()

            async with door(box, say) as port:
                assert (await box.exec(knocking(port))).stdout == b"mine"
                assert (await other.exec(knocking(port))).exit_code != 0
                with socket.create_server(("127.0.0.1", 0)) as host:
                    assert (await box.exec(knocking(host.getsockname()[1]))).exit_code != 0
                with pytest.raises(ConnectionRefusedError):  # nor does the host have a way in
                    socket.create_connection(("127.0.0.1", port), timeout=5)
                files = await other.exec("ls -l /proc/self/fd")  # a socket of another's network would lead there
                assert files.exit_code == 0
                assert b"socket" not in files.stdout
                devices = await box.exec("tail -n +3 /proc/net/dev | cut -d: -f1")
                assert devices.stdout.split() == [b"lo"]

    run(work)


FLOOD = """
import socket, sys
door = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sent = 0
door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
door.settimeout(0.5)
try:
    while sent < 24 << 20:
        sent += door.send(bytes(1 << 16))
except TimeoutError:
    pass
open("stuck", "w").write(str(sent))
door.settimeout(300)
door.sendall(bytes((24 << 20) - sent))
door.close()
"""


def test_an_agent_that_sends_faster_than_it_is_read_is_held_up(slotd):
    async def work() -> None:
        async with in_slot(slotd) as (_, box):
            stuck: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            total: asyncio.Future[int] = asyncio.get_running_loop().create_future()

            async def listen_late(reader, writer) -> None:
                await stuck
                total.set_result(len(await reader.read()))
                writer.close()

            await box.write("flood.py", FLOOD.encode())
            async with door(box, listen_late) as port:
                await box.start(f"python3 flood.py {port}")
                while not (found := (await box.exec("cat stuck 2>/dev/null")).stdout):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                stuck.set_result(int(found))
                assert await total == 24 << 20
            assert stuck.result() < 22 << 20  # the kernel's buffers and a few pieces, not all of it

    run(work)


DEAF = """
import socket, sys
door = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
door.recv(1)
door.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
door.close()
"""


def test_an_agent_that_hangs_up_in_the_middle_ends_its_connection_and_no_other(slotd):
    async def work() -> None:
        async with in_slot(slotd) as (_, box):
            await box.write("deaf.py", DEAF.encode())
            visit = Visit(bytes(8 << 20))
            async with door(box, visit) as port:
                assert (await box.exec(f"python3 deaf.py {port}; python3 deaf.py {port}")).exit_code == 0
                await visit.left.wait()

    run(work)


def test_a_driver_that_hangs_up_is_noticed_in_the_slot(slotd):
    async def work() -> None:
        async with in_slot(slotd) as (_, box):

            async def hang_up(reader, writer) -> None:
                await reader.readexactly(1)
                writer.transport.abort()

            async with door(box, hang_up) as port:
                endless = f"exec 3<>/dev/tcp/127.0.0.1/{port}; yes >&3; echo ended"
                assert (await box.exec(endless)).stdout == b"ended\n"

    run(work)


def test_more_than_there_is_room_for_wait_at_the_door(slotd, monkeypatch):
    monkeypatch.setattr(passage, "STREAMS", 2)

    async def work() -> None:
        async with in_slot(slotd) as (_, box):
            inside = most = 0

            async def say(reader, writer) -> None:
                nonlocal inside, most
                inside += 1
                most = max(most, inside)
                await reader.readline()
                writer.write(b"x")
                inside -= 1
                writer.close()

            async with door(box, say) as port:
                knock = f"(exec 3<>/dev/tcp/127.0.0.1/{port}; echo >&3; cat <&3) &"
                assert (await box.exec(f"for i in {{1..12}}; do {knock} done; wait")).stdout == b"x" * 12
            assert most <= 2

    run(work)


def test_when_slotd_is_killed_connections_end_and_nothing_is_left(slotd):
    async def work() -> None:
        async with in_slot(slotd) as (link, box):
            visit = Visit()
            async with door(box, visit) as port:
                await box.start(f"exec 3<>/dev/tcp/127.0.0.1/{port}; sleep 600")
                await visit.came.wait()
                os.kill(link._channel.pid, signal.SIGKILL)
                await visit.left.wait()
            with pytest.raises(SandboxError):
                async with door(box, visit):
                    pass

    run(work)


def test_a_slot_that_is_closed_shuts_its_door(slotd):
    async def work() -> None:
        async with in_slot(slotd) as (_, box):
            visit = Visit()
            async with door(box, visit) as port:
                await box.start(f"exec 3<>/dev/tcp/127.0.0.1/{port}; sleep 600")
                await visit.came.wait()
                await box.close()
                await visit.left.wait()
            with pytest.raises(SandboxError, match="closed"):
                async with door(box, visit):
                    pass

    run(work)


def test_a_cancelled_owner_leaves_no_door(slotd):
    async def work() -> None:
        async with in_slot(slotd) as (_, box):
            visit, opened = Visit(), asyncio.get_running_loop().create_future()

            async def own() -> None:
                async with door(box, visit) as port:
                    opened.set_result(port)
                    await asyncio.Event().wait()

            owner = asyncio.create_task(own())
            port = await opened
            process = await box.start(f"exec 3<>/dev/tcp/127.0.0.1/{port}; cat <&3; echo ended")
            await visit.came.wait()
            owner.cancel()
            with pytest.raises(asyncio.CancelledError):
                await owner
            await visit.left.wait()
            assert (await box.exec(knocking(port))).exit_code != 0
            while await box.poll(process) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            async with door(box, visit) as port:
                pass
            assert (await box.exec(knocking(port))).exit_code != 0
            opening = asyncio.ensure_future(door(box, visit).__aenter__())
            await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait((opening,))
            async with door(box, Visit(b"later")) as port:
                assert (await box.exec(f"exec 3<>/dev/tcp/127.0.0.1/{port}; head -c 5 <&3")).stdout == b"later"

    run(work)


# ---- over HTTP ------------------------------------------------------------------------------------------------------


@pytest.fixture
def listening(tmp_path):
    """The port and token of a slotd that listens on loopback."""
    config = {"token": "0123456789abcdef", "host": "127.0.0.1", "view": "system"}
    (tmp_path / "slotd").write_bytes(base64.b64encode(build_bundle()))
    (tmp_path / "slotd.json").write_text(json.dumps(config))
    port = machinery.free_port()
    command = build_file_command(PYTHON, str(tmp_path / "slotd"), str(tmp_path / "slotd.json"), str(port))
    daemon = machinery.Daemon(command, tmp_path / "log")
    daemon.wait_until(lambda: machinery.listens(port))
    yield port, config["token"]
    daemon.stop()


TALK = """
import socket, sys
door = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
data = b"".join(b"%07d\\n" % number for number in range(50000))
door.sendall(data)
door.shutdown(socket.SHUT_WR)
assert door.makefile("rb").read() == data[::-1]
print("whole")
"""


def test_what_is_said_through_a_door_is_whole_although_answers_are_lost(listening, monkeypatch):
    """Between driver and slotd stands somebody who often hangs up in an answer; and no request waits for long."""
    monkeypatch.setattr("ludus.sandbox.remote.link._RETRY_PAUSES", (0.01,) * 30)
    monkeypatch.setattr("ludus.sandbox.remote.link._WAIT_SECONDS", 0.2)
    port, token = listening
    chance, lost = random.Random(7), 0

    def loses() -> bool:
        nonlocal lost
        losing = chance.random() < 0.2
        lost += losing
        return losing

    async def turn_round(reader, writer) -> None:
        data = await reader.read()
        writer.write(data[::-1])
        writer.close()

    async def work() -> None:
        proxy = await asyncio.start_server(machinery.hanging_up(port, loses), "127.0.0.1", 0)
        address = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        async with proxy, Client(response_bytes=1 << 24) as client:
            link = HttpLink(client, address, token)
            about = await link.start(seconds=30, lapse=30.0)
            server = SlotServer(link, msgspec.convert(about.head, SlotdInfo), capacity=1, end=nothing)
            box = await server.open(SandboxSpec(disk_mb=32), nothing)
            await box.write("talk.py", TALK.encode())
            async with door(box, turn_round) as inside:
                assert (await box.exec(f"python3 talk.py {inside}; python3 talk.py {inside}")).stdout == b"whole\n" * 2
            assert (await box.exec(knocking(inside))).exit_code != 0
            await box.close()
            await link.close()

    run(work)
    assert lost
