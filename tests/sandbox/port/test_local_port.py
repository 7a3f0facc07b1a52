"""A port in a slot of this machine: who reaches it, and that nothing else is reachable."""

import asyncio
import socket
import threading
from contextlib import AbstractAsyncContextManager

import pytest

from ludus.errors import SandboxError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.port import local_port
from ludus.sandbox.port.local_port import open_port
from ludus.sandbox.profiles import open_pool


class Greeter(asyncio.Protocol):
    """Sends the same data to every client."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._data)
        transport.close()


def serve(box: Sandbox, data: bytes) -> AbstractAsyncContextManager[int]:
    """Open a port that answers with `data`."""
    return open_port(box, lambda: Greeter(data))


def connect_to(port: int) -> str:
    """The command that connects to a port and prints what comes back."""
    return f"exec 3<>/dev/tcp/127.0.0.1/{port} && cat <&3"


async def test_a_port_leads_to_the_driver_and_nowhere_else(bwrap):
    spec = SandboxSpec()
    async with open_pool(bwrap) as pool, pool.lease(spec) as box, pool.lease(spec) as other:  # noqa: SIM117
        async with serve(box, b"mine") as port, serve(other, b"theirs") as other_port:
            assert (await box.exec(connect_to(port))).stdout == b"mine"
            assert (await other.exec(connect_to(other_port))).stdout == b"theirs"
            for slot, closed in ((box, other_port), (other, port)):
                if port != other_port:
                    assert (await slot.exec(connect_to(closed))).exit_code != 0
            with socket.create_server(("127.0.0.1", 0)) as host:
                assert (await box.exec(connect_to(host.getsockname()[1]))).exit_code != 0
            with pytest.raises(ConnectionRefusedError):  # the host cannot connect either
                socket.create_connection(("127.0.0.1", port), timeout=5)
            devices = await box.exec("cat /proc/net/dev | tail -n +3 | cut -d: -f1")
            assert devices.stdout.split() == [b"lo"]


async def test_a_slot_with_a_network_has_its_port_on_the_hosts_loopback(bwrap, in_box):
    async with in_box(bwrap, SandboxSpec(network=True)) as box, serve(box, b"shared") as port:
        assert (await box.exec(connect_to(port))).stdout == b"shared"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b"shared"
        writer.close()
        await writer.wait_closed()


async def test_a_slot_with_layers_can_have_a_port(bwrap):
    async with open_pool(bwrap) as pool, pool.lease(SandboxSpec()) as box:
        await box.write("file", b"x")
        async with pool.lease(await pool.snapshot(box)) as layered, serve(layered, b"layered") as port:
            assert (await layered.exec(connect_to(port))).stdout == b"layered"


async def test_a_slot_of_an_unknown_kind_has_no_port():
    class Unknown:
        """A slot of some other kind."""

    with pytest.raises(SandboxError, match="cannot have a port") as caught:
        async with serve(Unknown(), b""):  # pyright: ignore[reportArgumentType]
            pass
    assert not caught.value.retryable


async def test_a_closed_slot_has_no_port(bwrap):
    async with open_pool(bwrap) as pool, pool.lease(SandboxSpec()) as box:
        await box.close()
        with pytest.raises(SandboxError):
            async with serve(box, b""):
                pass


async def test_a_socket_that_is_made_after_its_opening_was_cancelled_is_closed(bwrap, in_box, monkeypatch):
    listen = local_port._listen_by_child
    is_started, may_listen, has_listened = threading.Event(), threading.Event(), threading.Event()
    made: list[socket.socket] = []

    def listen_late(pid: int) -> socket.socket:
        is_started.set()
        assert may_listen.wait(60)
        made.append(listen(pid))
        has_listened.set()
        return made[0]

    async with in_box(bwrap) as box:
        monkeypatch.setattr(local_port, "_listen_by_child", listen_late)
        opening = asyncio.ensure_future(serve(box, b"never").__aenter__())
        assert await asyncio.to_thread(is_started.wait, 60)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        may_listen.set()
        assert await asyncio.to_thread(has_listened.wait, 60)
    assert [each.fileno() for each in made] == [-1]


def test_a_handoff_closes_what_nobody_takes():
    handoff, late = local_port._SocketHandoff(), local_port._SocketHandoff()
    first, second = socket.socketpair()
    handoff.put(first)
    handoff.abandon()
    late.abandon()
    late.put(second)
    assert first.fileno() == second.fileno() == -1


async def test_cancelling_the_opening_leaves_nothing_open(bwrap, in_box):
    async with in_box(bwrap) as box:
        opening = asyncio.ensure_future(serve(box, b"never").__aenter__())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with serve(box, b"later") as port:
            assert (await box.exec(connect_to(port))).stdout == b"later"
