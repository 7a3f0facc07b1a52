"""Streams: pieces as they are sampled, the same record as without a stream, hang-ups, and signs of life."""

import asyncio
import json

import msgspec
import pytest

from ludus.models.ledger import Budget, Ledger, MeteredModel
from ludus.models.openai import ChatModel
from ludus.models.reply_pieces import Piece
from ludus.models.server import ServerSettings
from ludus.models.settings import OpenAISettings
from ludus.types import Completion, Finish, Message, Sampling

HI = [{"role": "user", "content": "hi"}]
PATHS = {
    "/chat/completions": {"messages": HI},
    "/completions": {"prompt": "hi", "max_tokens": 400},
    "/messages": {"messages": HI, "max_tokens": 400, "thinking": {"type": "enabled"}},
    "/responses": {"input": "hi"},
}
REPLY = "<think>\nI think, 世界.\n</think>\n\nThe \U0001f600 sum is 6."


async def never():
    await asyncio.Event().wait()


def vllm(server):
    pytest.importorskip("tokenizers")
    from ludus.tokens.engines.vllm import VllmEngine

    return VllmEngine(ServerSettings(base_url=f"{server.url}/v1", name="toy"))


def llamacpp(server):
    pytest.importorskip("tokenizers")
    from ludus.tokens.engines.llamacpp import LlamaCppEngine

    return LlamaCppEngine(ServerSettings(base_url=server.url, name="toy"))


def make_model(kind, server, codec):
    """A model of each kind that streams, behind the stand-in server."""
    from ludus.tokens.capture import CapturedChatModel
    from ludus.tokens.model import TokenModel

    settings = OpenAISettings(base_url=f"{server.url}/v1", name="toy")
    match kind:
        case "chat":
            return ChatModel(settings)
        case "capture":
            return CapturedChatModel(settings)
        case "toy":
            return TokenModel(server.toy, codec)
        case "vllm":
            return TokenModel(vllm(server), codec)
        case _:
            return TokenModel(llamacpp(server), codec)


KINDS = ("chat", "capture", "toy", "vllm", "llamacpp")


def read_text(kit, path, body):
    """The text of the reply in a stream."""
    values = [value for _, value in kit.read_events(body) if value != "[DONE]"]
    match path:
        case "/chat/completions":
            return "".join(value["choices"][0]["delta"].get("content") or "" for value in values)
        case "/completions":
            return "".join(value["choices"][0]["text"] for value in values)
        case "/messages":
            return "".join(value["delta"].get("text", "") for value in values if "content_block_delta" in value["type"])
        case _:
            return "".join(value["delta"] for value in values if value["type"] == "response.output_text.delta")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
async def test_the_record_of_a_stream_is_that_of_a_whole_reply(kit, kind, path):
    pytest.importorskip("tokenizers")
    from ludus.tokens.engine_standin import StandIn

    async def sample(stream):
        toy = kit.token_model(lambda _: REPLY, scatter=0.0 if kind in ("chat", "capture") else 0.4)
        server = StandIn(toy.engine, codec=toy.codec)
        async with server, kit.serve_model(make_model(kind, server, toy.codec)) as client:
            session = client.gateway.open(sampling=Sampling(max_tokens=500))
            response = await client.post(f"{session.url}{path}", {**PATHS[path], "stream": stream})
            assert response.status == 200, response.body
            record = await client.gateway.close(session)
        exchanges = [msgspec.structs.replace(exchange, seconds=0.0) for exchange in record.exchanges]
        return msgspec.json.encode(exchanges), response.body

    (whole, body), (streamed, events) = await sample(False), await sample(True)
    assert streamed == whole
    text = read_text(kit, path, events)
    if path == "/completions":
        assert text == json.loads(body)["choices"][0]["text"]
    else:
        assert text == "The \U0001f600 sum is 6."


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_reads_text_before_the_engine_has_drawn_the_rest(kit, kind):
    pytest.importorskip("tokenizers")
    from ludus.tokens.engine_standin import StandIn

    gate = kit.Gate()
    toy = kit.token_model(lambda _: "abc " * 50, scatter=1.0)
    server = StandIn(toy.engine, codec=toy.codec, pace=gate.wait)
    async with server, kit.serve_model(make_model(kind, server, toy.codec)) as client:
        session = client.gateway.open(sampling=Sampling(max_tokens=500))
        body = {"messages": HI, "stream": True}
        reader, writer = await kit.send_raw(client, session, "/chat/completions", body)
        gate.open(3)
        await reader.readuntil(b'"content":"a"')
        if kind != "toy":
            assert session.replies == 0
        gate.open()
        await reader.readuntil(b"[DONE]")
        writer.close()
        await writer.wait_closed()
        assert session.replies == 1


@pytest.mark.parametrize("kind", ["vllm", "llamacpp", "capture", "toy"])
async def test_a_client_that_hangs_up_ends_the_draw_and_what_was_drawn_is_recorded(kit, kind):
    pytest.importorskip("tokenizers")
    from ludus.tokens.engine_standin import StandIn

    gate = kit.Gate()
    toy = kit.token_model(lambda _: "abc " * 5000, scatter=1.0)
    async with StandIn(toy.engine, codec=toy.codec, pace=gate.wait) as server:
        ledger = Ledger()
        model = MeteredModel(make_model(kind, server, toy.codec), ledger, "agent")
        async with kit.serve_model(model) as client:
            session = client.gateway.open(sampling=Sampling(max_tokens=30_000), budget=Budget(tokens=10**9))
            body = {"messages": HI, "stream": True}
            reader, writer = await kit.send_raw(client, session, "/chat/completions", body)
            gate.open(20)
            await reader.readuntil(b'"delta":{"content":"a')
            writer.transport.abort()
            await kit.until(lambda: not session.tasks)
            if kind != "toy":
                await kit.until(lambda: server.cancelled == 1)
            record = await client.gateway.close(session)
            (exchange,) = record.exchanges
            tokens = exchange.completion.tokens
            drawn = [number for number, own in zip(tokens.ids, tokens.sampled, strict=True) if own]
            whole = toy.engine.log[-1].ids
            assert len(drawn) > 0 and tuple(drawn) == whole[: len(drawn)]
            assert len(drawn) < 20_000 and exchange.completion.finish is Finish.OTHER
            assert not exchange.delivered and record.exact and record.failure is None
            assert record.build_sequences()
            assert ledger.total.calls == 1 and ledger.reserved.calls == 0


async def test_a_client_that_hangs_up_before_anything_is_drawn_leaves_no_reply(kit):
    model = kit.PiecedModel(Completion(Message("assistant", "x")), [Piece("x")], never)
    async with kit.serve_model(model, ping_seconds=0.01) as client:
        session = client.gateway.open()
        reader, writer = await kit.send_raw(client, session, "/responses", {"input": "hi", "stream": True})
        await reader.readuntil(b"response.created")
        writer.transport.abort()
        await kit.until(lambda: not session.tasks)
        record = await client.gateway.close(session)
        assert (record.exchanges, record.failed, record.failure) == ((), 1, None)


@pytest.mark.parametrize(
    ("path", "first", "ping"),
    [
        ("/chat/completions", b'"role":"assistant"', b'"delta":{}'),
        ("/completions", b'"text":""', b'"text":""'),
        ("/messages", b"event: message_start", b"event: ping\ndata: "),
        ("/responses", b"event: response.created", b"event: response.in_progress\ndata: "),
    ],
)
async def test_the_first_sign_of_life_comes_at_once_and_pings_are_events(kit, path, first, ping):
    model = kit.PiecedModel(Completion(Message("assistant", "x")), [Piece("x")], never)
    async with kit.serve_model(model, ping_seconds=0.01) as client:
        session = client.gateway.open()
        reader, writer = await kit.send_raw(client, session, path, {**PATHS[path], "stream": True})
        await reader.readuntil(first)
        for _ in range(3):
            assert b"\n:" not in await reader.readuntil(ping)
        writer.transport.abort()
        await kit.until(lambda: not session.tasks)


async def test_an_error_before_the_first_sign_of_life_has_a_status(kit):
    async with kit.serve_model(kit.token_model(lambda _: "ok")) as client:
        session = client.gateway.open(budget=Budget(calls=1))
        url = session.url + "/chat/completions"
        assert (await client.post(url, {"messages": HI, "stream": True})).status == 200
        assert (await client.post(url, {"messages": HI, "stream": True})).status == 429


async def test_a_server_that_breaks_in_the_middle_ends_the_stream_with_an_error(kit):
    """It is not asked again: the client has read the beginning of another reply."""

    asked = 0

    async def answer(reader, writer):
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        event = b'data: {"choices":[{"index":0,"delta":{"content":"Half"}}]}\n\n'
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%b\r\n" % (len(event), event))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    model = ChatModel(OpenAISettings(base_url=f"http://127.0.0.1:{port}/v1", name="m"))
    async with server, kit.serve_model(model) as client:
        session = client.gateway.open()
        response = await client.post(session.url + "/chat/completions", {"messages": HI, "stream": True})
        values = [value for _, value in kit.read_events(response.body)]
        assert values[1]["choices"][0]["delta"] == {"content": "Half"}
        assert "closed" in values[-2]["error"]["message"]
        record = await client.gateway.close(session)
        assert asked == 1 and record.failure is not None and record.failure.retryable
