"""Sessions, secrets, sampling, budgets, pauses, and agents that misbehave."""

import asyncio
import json
import socket

import pytest

from ludus.errors import ConfigError, ModelError
from ludus.gateway.service import Gateway, enforce_sampling
from ludus.models.scripted import ScriptedModel
from ludus.models.server import ServerFault
from ludus.types import Sampling

HI = [{"role": "user", "content": "hi"}]


# ---- sessions -----------------------------------------------------------------------------------------------------


async def test_a_session_is_found_by_its_path_or_by_its_key(kit):
    async with kit.serve_model(ScriptedModel(lambda *_: "ok")) as client:
        one, two = client.gateway.open(name="one"), client.gateway.open(name="two")
        await client.chat(one, HI)
        for header in (("Authorization", f"Bearer {two.api_key}"), ("x-api-key", two.api_key)):
            url = client.gateway.url + "/v1/chat/completions"
            assert (await client.post(url, {"messages": HI}, [header])).status == 200
        assert len((await client.gateway.close(one)).exchanges) == 1
        assert len((await client.gateway.close(two)).exchanges) == 2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/models", "/"])
async def test_an_unknown_secret_is_refused_in_the_form_of_the_api(kit, path):
    async with kit.serve_model(ScriptedModel(lambda *_: "ok")) as client:
        client.gateway.open()
        for url in (client.gateway.url + "/s/wrong" + path, client.gateway.url + path):
            response = await client.post(url, {"messages": HI, "input": "hi"})
            assert response.status == 401
            assert json.loads(response.body)["error"]["type"] == "authentication_error"


async def test_a_closed_session_is_refused(kit):
    async with kit.serve_model(ScriptedModel(lambda *_: "ok")) as client:
        session = client.gateway.open()
        await client.gateway.close(session)
        response = await client.post(session.url + "/chat/completions", {"messages": HI})
        assert response.status == 401


async def test_paths_and_methods_that_are_not_served(kit):
    async with kit.serve_model(ScriptedModel(lambda *_: "ok")) as client:
        session = client.gateway.open()
        for path, words in (("/embeddings", "no embeddings"), ("/audio/speech", "serves /chat/completions")):
            missing = await client.post(session.url + path, {})
            assert missing.status == 404 and words in json.loads(missing.body)["error"]["message"]
        stored = await client.get(session.url + "/responses/resp_1")
        assert stored.status == 404 and b"previous_response_id" in stored.body
        assert (await client.get(session.url + "/chat/completions")).status == 405
        assert json.loads((await client.get(session.url + "/models")).body)["data"][0]["id"] == "scripted"
        assert json.loads((await client.get(session.url + "/models/scripted")).body)["id"] == "scripted"


async def test_azures_paths_and_its_header_for_the_key(kit):
    async with kit.serve_model(ScriptedModel(lambda *_: "ok")) as client:
        session = client.gateway.open()
        for path in (
            "/openai/deployments/m/chat/completions?api-version=2024-10-21",
            "/openai/v1/chat/completions",
        ):
            response = await client.post(client.gateway.url + path, {"messages": HI}, [("api-key", session.secret)])
            assert response.status == 200, response.body
        response = await client.post(f"{session.anthropic_url}/openai/deployments/m/responses", {"input": "hi"})
        assert response.status == 200, response.body


async def test_the_tokens_of_a_prompt_are_counted_in_both_apis(kit):
    async with kit.serve_model(ScriptedModel([])) as client:
        session = client.gateway.open()
        one = await client.post(session.url + "/responses/input_tokens", {"input": "hi there"})
        two = await client.post(session.url + "/messages/count_tokens", {"messages": HI})
        assert json.loads(one.body)["object"] == "response.input_tokens"
        assert json.loads(one.body)["input_tokens"] > 0 and json.loads(two.body)["input_tokens"] > 0
        assert (await client.post(session.url + "/responses/input_tokens", {})).status == 400


async def test_an_address_that_is_taken_is_a_config_error(kit):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="cannot listen"):
        async with Gateway(ScriptedModel([]), port=taken.getsockname()[1]):
            pass


async def test_a_further_socket_is_served_too(kit, tmp_path):
    async with kit.serve_model(ScriptedModel(lambda *_: "ok")) as client:
        session = client.gateway.open()
        extra = socket.create_server(("127.0.0.1", 0))
        await client.gateway.serve(extra)
        base = session.make_base_url(f"http://127.0.0.1:{extra.getsockname()[1]}")
        assert (await client.post(base + "/v1/chat/completions", {"messages": HI})).status == 200
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(str(tmp_path / "gateway.sock"))
        unix.listen()
        await client.gateway.serve(unix)
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "gateway.sock"))
        writer.write(f"GET /s/{session.secret}/v1/models HTTP/1.0\r\n\r\n".encode())
        assert b"scripted" in await reader.read()
        writer.close()
        await writer.wait_closed()


# ---- sampling -----------------------------------------------------------------------------------------------------


async def test_a_sessions_sampling_overrules_the_agents(kit):
    seen = []

    async with kit.serve_model(ScriptedModel(lambda m, t, s: seen.append(s) or "ok")) as client:
        rule = Sampling(temperature=0.7, max_tokens=100, seed=5)
        session, free = client.gateway.open(sampling=rule), client.gateway.open()
        fields = {"temperature": 0, "top_p": 0.5, "seed": 1, "max_tokens": 7, "stop": "END", "top_k": 3}
        await client.chat(session, HI, **fields)
        await client.chat(session, HI, max_completion_tokens=5000)
        await client.chat(free, HI, **fields)
        record = await client.gateway.close(session)
    first, second, third = seen
    assert (first.temperature, first.top_p, first.max_tokens, first.stop, first.extra) == (
        0.7,
        None,
        7,
        ("END",),
        {},
    )
    assert second.max_tokens == 100
    assert first.seed != second.seed and first.seed != 1
    assert (third.temperature, third.top_p, third.seed, third.extra) == (0, 0.5, 1, {"top_k": 3})
    assert record.exchanges[0].sampling == first
    assert record.exchanges[0].requested_sampling.temperature == 0


def test_the_rule_of_sampling():
    rule = Sampling(temperature=1.0, stop=("A",), tool_choice="auto", extra={"top_k": -1})
    requested = Sampling(temperature=0.0, max_tokens=9, stop=("B", "A"), tool_choice="required", extra={"min_p": 0.1})
    made = enforce_sampling(rule, requested, 1)
    assert made == Sampling(temperature=1.0, max_tokens=9, stop=("A", "B"), tool_choice="auto", extra={"top_k": -1})
    assert enforce_sampling(None, requested, 1) is requested
    assert enforce_sampling(None, Sampling(seed=4), 1, 2).seed == 6


# ---- pausing ------------------------------------------------------------------------------------------------------


async def test_drain_waits_for_the_model_and_holds_back_the_rest(kit):
    gate, begun = asyncio.Event(), []

    async def slow(messages, *_):
        begun.append(messages[-1].content)
        await gate.wait()
        return "ok"

    async with kit.serve_model(ScriptedModel(slow)) as client:
        session = client.gateway.open()
        first = asyncio.create_task(client.chat(session, [{"role": "user", "content": "first"}]))
        await kit.until(lambda: begun)
        drained = asyncio.create_task(client.gateway.drain())
        await asyncio.sleep(0)
        second = asyncio.create_task(client.chat(session, [{"role": "user", "content": "second"}]))
        await kit.until(lambda: session.requests == 2)
        assert not drained.done()
        gate.set()
        await drained
        await first
        assert begun == ["first"] and not second.done()
        client.gateway.resume()
        await second
        assert begun == ["first", "second"]


# ---- failures -----------------------------------------------------------------------------------------------------


async def test_a_model_that_breaks_is_a_failure_of_the_record(kit):
    def broken(*_):
        raise ModelError("the server is down", retryable=False)

    def foreign(*_):
        raise ZeroDivisionError("oops")

    for script, words in ((broken, "the server is down"), (foreign, "oops")):
        async with kit.serve_model(ScriptedModel(script)) as client:
            session = client.gateway.open()
            response = await client.post(session.url + "/chat/completions", {"messages": HI})
            assert response.status == 502 and words in response.body.decode()
            assert response.get_header("x-should-retry") == "false"
            record = await client.gateway.close(session)
        assert record.failure is not None and words in record.failure.message
        assert record.failure.boundary == "model"


async def test_a_conversation_that_is_too_long_gets_an_error_that_agents_know(kit):
    def full(*_):
        raise ServerFault("http://x: status 400: the context is 4096 tokens long", retryable=False, too_long=True)

    async with kit.serve_model(ScriptedModel(full)) as client:
        session = client.gateway.open()
        response = await client.post(session.url + "/chat/completions", {"messages": HI})
        assert response.status == 400
        assert json.loads(response.body)["error"]["code"] == "context_length_exceeded"
        other = await client.post(session.anthropic_url + "/v1/messages", {"messages": HI, "max_tokens": 1})
        assert json.loads(other.body)["error"]["message"].startswith("prompt is too long")
        record = await client.gateway.close(session)
    assert (record.stop, record.failure) == ("context", None)


async def test_a_client_that_goes_away_loses_its_reply_and_nothing_else(kit):
    gate, begun = asyncio.Event(), asyncio.Event()

    async def slow(*_):
        begun.set()
        await gate.wait()
        return "for nobody"

    async with kit.serve_model(ScriptedModel(slow)) as client:
        session = client.gateway.open()
        _, writer = await kit.send_raw(client, session, "/chat/completions", {"messages": HI})
        await begun.wait()
        writer.transport.abort()
        await kit.until(lambda: not client.gateway.connections)
        gate.set()
        record = await client.gateway.close(session)
        (exchange,) = record.exchanges
        assert exchange.completion.message.content == "for nobody"
        assert not exchange.delivered
        assert not session.tasks


async def test_closing_a_session_does_not_wait_for_ever(kit):
    async def never(*_):
        await asyncio.Event().wait()

    async with kit.serve_model(ScriptedModel(never)) as client:
        session = client.gateway.open()
        ask = asyncio.create_task(client.post(session.url + "/chat/completions", {"messages": HI}))
        await kit.until(lambda: session.requests)
        record = await client.gateway.close(session, grace=0.01)
        assert record.exchanges == ()
        reply = await ask
        assert reply.status == 503 and b"the session was closed" in reply.body


async def test_waiting_requests_get_an_error_when_the_gateway_ends(kit):
    async with kit.serve_model(ScriptedModel(lambda *_: "ok")) as client:
        async with Gateway(client.gateway.model) as gateway:
            gateway.pause()
            urls = [gateway.open().url + "/chat/completions" for _ in range(3)]
            body = json.dumps({"messages": HI}).encode()
            asks = [asyncio.create_task(client.http.request("POST", url, (), body)) for url in urls]
            await kit.until(lambda: all(session.tasks for session in gateway.sessions))
        assert [(await ask).status for ask in asks] == [503] * 3
