"""A port in a slot, on slotd's side. Here it listens on the host's own loopback."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from ludus.errors import SandboxError
from ludus.sandbox.slotd.slot_port import PIECE_BYTES, NumberedRequests, SlotPort, listen_in_slot


@asynccontextmanager
async def open_slot_port() -> AsyncGenerator[SlotPort]:
    port = listen_in_slot("name", None)
    try:
        yield port
    finally:
        await port.close()
        await asyncio.sleep(0)  # transports close their sockets in the next round of the loop


async def test_a_repeated_request_is_not_carried_out_again():
    requests: NumberedRequests[int] = NumberedRequests()
    runs = 0

    async def work() -> int:
        nonlocal runs
        runs += 1
        return runs

    first = requests.submit(1, work)
    assert requests.submit(1, work) is first
    with pytest.raises(ValueError, match="request 2 is out of turn"):
        requests.submit(2, work)  # the first is still running
    assert await first == 1
    assert await requests.submit(1, work) == 1
    assert await requests.submit(2, work) == 2
    for number in (1, 4):
        with pytest.raises(ValueError, match="out of turn"):
            requests.submit(number, work)


async def test_a_connection_is_read_in_pieces_and_its_directions_end_apart():
    async with open_slot_port() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
        await port.accept(1)
        stream = port.get_stream(1)
        writer.write(bytes(PIECE_BYTES + 1))
        writer.write_eof()
        received, turn = b"", 0
        while piece := await stream.receive(turn := turn + 1):
            assert len(piece) <= PIECE_BYTES
            received += piece
        assert received == bytes(PIECE_BYTES + 1)
        await stream.send(1, b"answer")
        await stream.send(1, b"answer")  # the same request again
        await stream.send(2, b"")
        assert await reader.read() == b"answer"
        await port.drop(1, abort=False)
        await port.drop(1, abort=False)
        with pytest.raises(SandboxError, match="no such connection"):
            port.get_stream(1)
        writer.close()
        await writer.wait_closed()


async def test_a_closed_port_aborts_its_connections_and_refuses_new_ones():
    async with open_slot_port() as port:
        number = port.number
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        await port.accept(1)
        waiting = port.accept(2)
        await port.close()
        assert waiting.cancelled()
        assert await reader.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", number)
        writer.close()
        await writer.wait_closed()


async def test_a_socket_of_the_slots_network_serves_one_port_after_another():
    with socket.socket() as network_socket:
        for name in ("one", "two"):
            port = listen_in_slot(name, network_socket)
            _, writer = await asyncio.open_connection("127.0.0.1", port.number)
            await port.accept(1)
            number = port.number
            await port.close()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", number)
            writer.close()
            await writer.wait_closed()
