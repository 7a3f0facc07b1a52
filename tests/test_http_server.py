"""HTTP as it is served, also to clients that do it badly. Most tests ask a gateway."""

import asyncio
import json
import socket

import pytest
from tests.gateway_kit import kit

from ludus.http_client import Client, ConnectionLost
from ludus.http_server import EVENTS, JSON, QUIET_SECONDS, Connection, Listener, Responder, close_connections
from ludus.models.scripted import ScriptedModel

__all__ = ["kit"]

HI = {"messages": [{"role": "user", "content": "hi"}]}


async def connect(client):
    return await asyncio.open_connection("127.0.0.1", int(client.gateway.url.rpartition(":")[2]))


async def closed(writer):
    writer.close()
    await writer.wait_closed()


def request(session, body, *headers, version="1.1"):
    data = json.dumps(body).encode()
    lines = [f"POST /s/{session.secret}/v1/chat/completions HTTP/{version}", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


async def read_reply(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length"))
    return head, await reader.readexactly(length)


def echo(messages, *_):
    return messages[-1].content


async def test_requests_sent_at_once_are_answered_in_order(kit):
    async with kit.serve_model(ScriptedModel(echo)) as client:
        session = client.gateway.open()
        reader, writer = await connect(client)
        bodies = [{"messages": [{"role": "user", "content": f"number {i}"}]} for i in range(30)]
        writer.write(b"".join(request(session, body) for body in bodies))
        for number in range(30):
            _, body = await read_reply(reader)
            assert json.loads(body)["choices"][0]["message"]["content"] == f"number {number}"
        await closed(writer)


async def test_a_request_that_comes_byte_by_byte_and_one_in_chunks(kit):
    async with kit.serve_model(ScriptedModel(echo)) as client:
        session = client.gateway.open()
        reader, writer = await connect(client)
        for byte in request(session, HI):
            writer.write(bytes([byte]))
            await writer.drain()
        assert b'"hi"' in (await read_reply(reader))[1]
        data = json.dumps(HI).encode()
        head = f"POST /s/{session.secret}/v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode() + b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (data[:5], len(data) - 5, data[5:]))
        assert b'"hi"' in (await read_reply(reader))[1]
        await closed(writer)


async def test_the_connection_is_closed_when_the_client_wants_that(kit):
    async with kit.serve_model(ScriptedModel(echo), ping_seconds=0.01) as client:
        session = client.gateway.open()
        for data in (request(session, HI, "Connection: close"), request(session, HI, version="1.0")):
            reader, writer = await connect(client)
            writer.write(data)
            assert b'"hi"' in await reader.read()
            await closed(writer)


async def test_an_old_client_gets_a_slow_stream_without_chunks(kit):
    async def slow(*_):
        await asyncio.sleep(0.03)
        return "late"

    async with kit.serve_model(ScriptedModel(slow), ping_seconds=0.01) as client:
        session = client.gateway.open()
        reader, writer = await connect(client)
        writer.write(request(session, {**HI, "stream": True}, version="1.0"))
        body = (await reader.read()).partition(b"\r\n\r\n")[2]
        assert body.startswith(b"data: {") and b'"late"' in body and body.endswith(b"data: [DONE]\n\n")
        await closed(writer)


async def test_a_body_that_is_too_long_is_refused(kit):
    async with kit.serve_model(ScriptedModel(echo), body_bytes=10_000) as client:
        session = client.gateway.open()
        long = {"messages": [{"role": "user", "content": "x" * 2_000_000}]}
        reader, writer = await connect(client)
        writer.write(request(session, long))
        head, body = await read_reply(reader)
        assert "413" in head and b"10,000 bytes" in body
        await closed(writer)
        assert (await client.chat(session, HI["messages"]))["choices"]


async def test_what_is_not_http_is_refused_and_the_others_go_on(kit):
    async with kit.serve_model(ScriptedModel(echo)) as client:
        session = client.gateway.open()
        wrong = (b"\x16\x03\x01 hello\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n", b"GET /" + b"a" * 100_000)
        for data in wrong:
            reader, writer = await connect(client)
            writer.write(data)
            assert (await reader.read()).startswith(b"HTTP/1.1 4")
            await closed(writer)
        assert (await client.chat(session, HI["messages"]))["choices"]


async def test_an_offer_of_http_2_is_answered_in_http_1(kit):
    async with kit.serve_model(ScriptedModel(echo)) as client:
        session = client.gateway.open()
        reader, writer = await connect(client)
        offer = "Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAA"
        writer.write(request(session, HI, offer))
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200") and answer.count(b"HTTP/1.1") == 1 and b'"hi"' in answer
        await closed(writer)
        reader, writer = await connect(client)
        writer.write(request(session, HI, "Connection: Upgrade\r\nUpgrade: h2c") + request(session, HI))
        answer = await reader.readuntil(b"hi")
        assert answer.startswith(b"HTTP/1.1 200")
        await closed(writer)


async def test_a_websocket_gets_one_response(kit):
    async with kit.serve_model(ScriptedModel(echo)) as client:
        session = client.gateway.open()
        reader, writer = await connect(client)
        head = f"GET /s/{session.secret}/v1/responses HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        writer.write(head.encode())
        answer = await reader.readuntil(b"}}")
        assert answer.startswith(b"HTTP/1.1 426") and b"over HTTP" in answer
        writer.write_eof()
        assert await reader.read() == b""
        await closed(writer)


async def test_head_has_no_body_and_a_compressed_body_is_named(kit):
    async with kit.serve_model(ScriptedModel(echo)) as client:
        session = client.gateway.open()
        reader, writer = await connect(client)
        writer.write(f"HEAD /s/{session.secret}/v1/models HTTP/1.1\r\n\r\n".encode())
        writer.write(request(session, HI))
        assert b"404" in await reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        await closed(writer)
        headers = [("Content-Encoding", "gzip")]
        packed = await client.post(session.url + "/chat/completions", b"\x1f\x8b\x08", headers)
        assert packed.status == 400 and b"Content-Encoding" in packed.body


async def test_a_client_that_expects_100_continue_gets_it(kit):
    async with kit.serve_model(ScriptedModel(echo)) as client:
        session = client.gateway.open()
        reader, writer = await connect(client)
        head, _, body = request(session, HI, "Expect: 100-continue").partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
        writer.write(body)
        assert b'"hi"' in (await read_reply(reader))[1]
        await closed(writer)


async def test_a_client_that_never_reads_blocks_only_itself(kit):
    async with kit.serve_model(ScriptedModel(lambda *_: "x" * 1_000_000)) as client:
        session = client.gateway.open()
        reader, writer = await connect(client)
        writer.write(request(session, HI) * 50)
        await writer.drain()
        assert (await client.chat(session, HI["messages"]))["choices"]
        await asyncio.sleep(0.05)
        assert session.requests < 40
        for _ in range(50):
            assert len((await read_reply(reader))[1]) > 1_000_000
        await closed(writer)


async def give_turns(turns: int = 20) -> None:
    """Let the server read what was sent."""
    for _ in range(turns):
        await asyncio.sleep(0)


@pytest.mark.parametrize("sent", [b"POST /s", b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n", b"0123456789"])
async def test_a_client_that_begins_a_request_and_sends_no_more_of_it_is_refused(kit, pass_time, sent):
    async with kit.serve_model(ScriptedModel(echo)) as client:
        session = client.gateway.open()
        reader, writer = await connect(client)
        writer.write(request(session, HI)[:-5] if sent.isdigit() else sent)
        await give_turns()
        pass_time(QUIET_SECONDS / 2)
        await give_turns()
        assert not reader.at_eof()
        pass_time(QUIET_SECONDS)
        head, body = await read_reply(reader)
        assert head.startswith("HTTP/1.1 408 ") and b"did not come" in body
        assert await reader.read() == b""
        await closed(writer)
        assert (await client.chat(session, HI["messages"]))["choices"]


@pytest.mark.parametrize(("part", "status"), [(20_000, "200"), (20, "408")])
async def test_an_upload_that_goes_on_may_take_long_and_one_that_hardly_does_not(kit, pass_time, part, status):
    async with kit.serve_model(ScriptedModel(echo)) as client:
        session = client.gateway.open()
        reader, writer = await connect(client)
        reply = asyncio.create_task(read_reply(reader))
        data = request(session, {"messages": [{"role": "user", "content": "x" * part * 7}]})
        for start in range(0, len(data), part):
            if not reply.done():
                writer.write(data[start : start + part])
                await give_turns()
                pass_time(QUIET_SECONDS * 0.9)
                await give_turns()
        assert (await reply)[0].startswith(f"HTTP/1.1 {status} ")
        await closed(writer)


async def test_a_connection_may_be_silent_between_requests_and_while_its_reply_is_made(kit, pass_time):
    go_on = asyncio.Event()

    async def wait(messages, *_):
        await go_on.wait()
        return messages[-1].content

    async with kit.serve_model(ScriptedModel(wait)) as client:
        session = client.gateway.open()
        reader, writer = await connect(client)
        data = request(session, HI)
        writer.write(data + data[:20])  # the next one is begun meanwhile
        await give_turns()
        for _ in range(3):
            pass_time(QUIET_SECONDS)
            await give_turns()
        go_on.set()
        assert b'"hi"' in (await read_reply(reader))[1]
        writer.write(data[20:])
        assert b'"hi"' in (await read_reply(reader))[1]
        pass_time(5 * QUIET_SECONDS)
        await give_turns()
        writer.write(data)
        assert b'"hi"' in (await read_reply(reader))[1]
        await closed(writer)


async def test_all_connections_that_wait_are_accepted_and_none_after_the_end(kit):
    async with kit.serve_model(ScriptedModel(echo)) as client:
        session = client.gateway.open()
        opened = [await connect(client) for _ in range(40)]
        for _, writer in opened:
            writer.write(request(session, HI))
        for reader, _ in opened:
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        assert client.gateway.connections == 40
        for _, writer in opened:
            await closed(writer)
        port = int(client.gateway.url.rpartition(":")[2])
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)


# ---- without a gateway --------------------------------------------------------------------------------------------


class Server:
    """Serves requests with a function, until the end of the block."""

    def __init__(self, serve, *, seconds=0.0):
        self.serve, self.seconds, self.connections = serve, seconds, set()

    async def __aenter__(self):
        make = lambda: Connection(self.connections, self.serve, lambda *_: b"", 1000)  # noqa: E731
        self.listener = Listener(socket.create_server(("127.0.0.1", 0)), make)
        self.url = f"http://127.0.0.1:{self.listener.socket.getsockname()[1]}/"
        return self

    async def __aexit__(self, *_):
        await self.listener.close()
        await close_connections(self.connections, self.seconds)


def test_parts_of_a_stream_without_data_do_not_end_it():
    def serve(responder: Responder):
        responder.begin(EVENTS, b"")
        for part in (b"data: a\n\n", b"", b"data: b\n\n"):
            responder.feed(part)
        assert not responder.is_answered and responder.end(b"") and responder.is_answered

    async def test():
        async with Server(serve) as server, Client() as client:
            for _ in range(2):
                assert (await client.request("GET", server.url)).body == b"data: a\n\ndata: b\n\n"
            assert len(server.connections) == 1

    asyncio.run(test())


@pytest.mark.parametrize(("seconds", "all_of_it"), [(0.0, False), (30.0, True)])
def test_clients_have_some_time_to_read_the_end(seconds: float, all_of_it: bool):
    long, served = b"x" * 30_000_000, asyncio.Event()

    def serve(responder: Responder):
        responder.send(200, JSON, long)
        served.set()

    async def test():
        async with Client() as client:
            async with Server(serve, seconds=seconds) as server:
                asking = asyncio.create_task(client.request("GET", server.url))
                await served.wait()
            assert not server.connections
            if all_of_it:
                assert (await asking).body == long
            else:
                with pytest.raises(ConnectionLost):
                    await asking

    asyncio.run(test())


def test_closing_without_connections_does_not_wait():
    asyncio.run(close_connections([], 3600.0))
