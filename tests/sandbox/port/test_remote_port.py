"""A port in a remote slot, over links that fail and with agents that misbehave. The conformance suite tests what works;
here slotd is a child process."""

import asyncio
import os
import random
import signal
import socket
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
from tests.sandbox.remote.machinery import make_lossy_proxy
from tests.slotd_kit import HttpSlotd, needs_python, open_boxes, start_slotd

from ludus.errors import SandboxError
from ludus.http_client import Client
from ludus.sandbox.port import remote_port
from ludus.sandbox.port.local_port import open_port
from ludus.sandbox.remote.link import HttpLink
from ludus.sandbox.remote.remote_sandbox import SlotdInfo

pytestmark = needs_python


def serve(box, handle):
    """Open a port of a slot, and handle each of its connections."""
    return open_port(box, lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(), handle))


@asynccontextmanager
async def open_slots(count: int = 1):
    async with start_slotd() as (link, info):
        yield (link, *await open_boxes(link, info, count))


def connect_to(port: int) -> str:
    """The command that connects to a port and prints what comes back."""
    return f"exec 3<>/dev/tcp/127.0.0.1/{port} && cat <&3"


class Handler:
    """Sends `data`, then reads until the other end closes the connection."""

    def __init__(self, data: bytes = b"") -> None:
        self._data = data
        self.connected, self.ended = asyncio.Event(), asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._data)
        self.connected.set()
        with suppress(OSError):
            await reader.read()
        self.ended.set()
        writer.close()


async def test_a_port_leads_to_the_driver_and_nowhere_else():
    async with open_slots(2) as (_, box, other):

        async def answer(reader, writer) -> None:
            writer.write(b"mine")
            writer.close()

        async with serve(box, answer) as port:
            assert (await box.exec(connect_to(port))).stdout == b"mine"
            assert (await other.exec(connect_to(port))).exit_code != 0
            with socket.create_server(("127.0.0.1", 0)) as host:
                assert (await box.exec(connect_to(host.getsockname()[1]))).exit_code != 0
            with pytest.raises(ConnectionRefusedError):  # the host cannot connect either
                socket.create_connection(("127.0.0.1", port), timeout=5)
            files = await other.exec(
                "ls -l /proc/self/fd"
            )  # a socket of another slot's network would give access to it
            assert files.exit_code == 0
            assert b"socket" not in files.stdout
            devices = await box.exec("tail -n +3 /proc/net/dev | cut -d: -f1")
            assert devices.stdout.split() == [b"lo"]


FLOOD = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sent = 0
connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
connection.settimeout(0.5)
try:
    while sent < 24 << 20:
        sent += connection.send(bytes(1 << 16))
except TimeoutError:
    pass
open("stuck", "w").write(str(sent))
connection.settimeout(300)
connection.sendall(bytes((24 << 20) - sent))
connection.close()
"""


async def test_an_agent_that_sends_faster_than_it_is_read_blocks():
    async with open_slots() as (_, box):
        stuck: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        total: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def read_late(reader, writer) -> None:
            await stuck
            total.set_result(len(await reader.read()))
            writer.close()

        await box.write("flood.py", FLOOD.encode())
        async with serve(box, read_late) as port:
            await box.start(f"python3 flood.py {port}")
            while not (found := (await box.exec("cat stuck 2>/dev/null")).stdout):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            stuck.set_result(int(found))
            assert await total == 24 << 20
        assert stuck.result() < 22 << 20  # the kernel's buffers and a few pieces, not all of it


HANG_UP = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.recv(1)
connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
connection.close()
"""


async def test_an_agent_that_hangs_up_in_the_middle_ends_its_connection_and_no_other():
    async with open_slots() as (_, box):
        await box.write("hang_up.py", HANG_UP.encode())
        handler = Handler(bytes(8 << 20))
        async with serve(box, handler) as port:
            assert (await box.exec(f"python3 hang_up.py {port}; python3 hang_up.py {port}")).exit_code == 0
            await handler.ended.wait()


async def test_a_driver_that_hangs_up_is_noticed_in_the_slot():
    async with open_slots() as (_, box):

        async def hang_up(reader, writer) -> None:
            await reader.readexactly(1)
            writer.transport.abort()

        async with serve(box, hang_up) as port:
            endless = f"exec 3<>/dev/tcp/127.0.0.1/{port}; yes >&3; echo ended"
            assert (await box.exec(endless)).stdout == b"ended\n"


async def test_connections_above_the_limit_wait_at_the_port(monkeypatch):
    monkeypatch.setattr(remote_port, "STREAMS", 2)

    async with open_slots() as (_, box):
        open_now = most = 0

        async def answer(reader, writer) -> None:
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            await reader.readline()
            writer.write(b"x")
            open_now -= 1
            writer.close()

        async with serve(box, answer) as port:
            connect = f"(exec 3<>/dev/tcp/127.0.0.1/{port}; echo >&3; cat <&3) &"
            assert (await box.exec(f"for i in {{1..12}}; do {connect} done; wait")).stdout == b"x" * 12
        assert most <= 2


async def test_when_slotd_is_killed_connections_end():
    async with open_slots() as (link, box):
        handler = Handler()
        async with serve(box, handler) as port:
            await box.start(f"exec 3<>/dev/tcp/127.0.0.1/{port}; sleep 600")
            await handler.connected.wait()
            os.kill(link._channel.pid, signal.SIGKILL)
            await handler.ended.wait()
        with pytest.raises(SandboxError):
            async with serve(box, handler):
                pass


async def test_closing_a_slot_closes_its_port():
    async with open_slots() as (_, box):
        handler = Handler()
        async with serve(box, handler) as port:
            await box.start(f"exec 3<>/dev/tcp/127.0.0.1/{port}; sleep 600")
            await handler.connected.wait()
            await box.close()
            await handler.ended.wait()
        with pytest.raises(SandboxError, match="closed"):
            async with serve(box, handler):
                pass


async def test_a_cancelled_owner_leaves_no_port_open():
    async with open_slots() as (_, box):
        handler, opened = Handler(), asyncio.get_running_loop().create_future()

        async def own() -> None:
            async with serve(box, handler) as port:
                opened.set_result(port)
                await asyncio.Event().wait()

        owner = asyncio.create_task(own())
        port = await opened
        process = await box.start(f"exec 3<>/dev/tcp/127.0.0.1/{port}; cat <&3; echo ended")
        await handler.connected.wait()
        owner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner
        await handler.ended.wait()
        assert (await box.exec(connect_to(port))).exit_code != 0
        while await box.poll(process) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        async with serve(box, handler) as port:
            pass
        assert (await box.exec(connect_to(port))).exit_code != 0
        opening = asyncio.ensure_future(serve(box, handler).__aenter__())
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait((opening,))
        async with serve(box, Handler(b"later")) as port:
            assert (await box.exec(f"exec 3<>/dev/tcp/127.0.0.1/{port}; head -c 5 <&3")).stdout == b"later"


# ---- over HTTP ------------------------------------------------------------------------------------------------------


@pytest.fixture
def http_slotd(tmp_path):
    found = HttpSlotd(tmp_path)
    yield found
    found.daemon.stop()


TALK = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
data = b"".join(b"%07d\\n" % number for number in range(50000))
connection.sendall(data)
connection.shutdown(socket.SHUT_WR)
assert connection.makefile("rb").read() == data[::-1]
print("whole")
"""


async def test_data_is_complete_although_replies_are_lost(http_slotd, monkeypatch):
    """A proxy between driver and slotd often hangs up during a reply, and no request waits for long."""
    monkeypatch.setattr("ludus.sandbox.remote.link._RETRY_PAUSES", (0.01,) * 30)
    monkeypatch.setattr("ludus.sandbox.remote.link._WAIT_SECONDS", 0.2)
    chance, lost = random.Random(7), 0

    def loses() -> bool:
        nonlocal lost
        losing = chance.random() < 0.2
        lost += losing
        return losing

    async def reverse(reader, writer) -> None:
        data = await reader.read()
        writer.write(data[::-1])
        writer.close()

    proxy = await asyncio.start_server(make_lossy_proxy(http_slotd.port, loses), "127.0.0.1", 0)
    address = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    async with proxy, Client(response_bytes=1 << 24) as client:
        link = HttpLink(client, address, http_slotd.token)
        reply = await link.start(seconds=30, lapse=30.0)
        (box,) = await open_boxes(link, msgspec.convert(reply.head, SlotdInfo))
        await box.write("talk.py", TALK.encode())
        async with serve(box, reverse) as port:
            assert (await box.exec(f"python3 talk.py {port}; python3 talk.py {port}")).stdout == b"whole\n" * 2
        assert (await box.exec(connect_to(port))).exit_code != 0
        await box.close()
        await link.close()
    assert lost
