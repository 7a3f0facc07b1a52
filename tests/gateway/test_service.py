"""Sessions, secrets, sampling, budgets, pauses, and agents that misbehave."""

import asyncio
import json
import socket

import pytest

from ludus.errors import ConfigError, ModelError
from ludus.gateway.service import Gateway, enforce_sampling
from ludus.models.ledger import Budget, Ledger, MeteredModel
from ludus.models.scripted import ScriptedModel, call, say
from ludus.models.server import ServerFault
from ludus.types import Completion, Finish, Message, Sampling, Usage, to_json

HI = [{"role": "user", "content": "hi"}]


# ---- who is asking ------------------------------------------------------------------------------------------------


def test_a_session_is_found_by_its_path_or_by_its_key(kit):
    async def test():
        async with kit.serve_model(ScriptedModel(lambda *_: "ok")) as client:
            one, two = client.gateway.open(name="one"), client.gateway.open(name="two")
            await client.chat(one, HI)
            for header in (("Authorization", f"Bearer {two.api_key}"), ("x-api-key", two.api_key)):
                url = client.gateway.url + "/v1/chat/completions"
                assert (await client.post(url, {"messages": HI}, [header])).status == 200
            assert len((await client.gateway.close(one)).exchanges) == 1
            assert len((await client.gateway.close(two)).exchanges) == 2

    kit.run(test)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/models", "/"])
def test_an_unknown_secret_is_refused_in_the_words_of_the_api(kit, path):
    async def test():
        async with kit.serve_model(ScriptedModel(lambda *_: "ok")) as client:
            client.gateway.open()
            for url in (client.gateway.url + "/s/wrong" + path, client.gateway.url + path):
                response = await client.post(url, {"messages": HI, "input": "hi"})
                assert response.status == 401
                assert json.loads(response.body)["error"]["type"] == "authentication_error"

    kit.run(test)


def test_a_closed_session_is_refused(kit):
    async def test():
        async with kit.serve_model(ScriptedModel(lambda *_: "ok")) as client:
            session = client.gateway.open()
            await client.gateway.close(session)
            response = await client.post(session.url + "/chat/completions", {"messages": HI})
            assert response.status == 401

    kit.run(test)


def test_a_harness_that_never_calls_leaves_an_empty_record(kit):
    async def test():
        async with kit.serve_model(ScriptedModel(lambda *_: "ok")) as client:
            record = await client.gateway.close(client.gateway.open(name="silent"))
            assert (record.exchanges, record.requests, record.failure) == ((), 0, None)
            assert record.make_turns() == () and record.opening == ()

    kit.run(test)


def test_paths_and_methods_that_are_not_served(kit):
    async def test():
        async with kit.serve_model(ScriptedModel(lambda *_: "ok")) as client:
            session = client.gateway.open()
            assert (await client.post(session.url + "/embeddings", {})).status == 404
            assert (await client.get(session.url + "/chat/completions")).status == 405
            assert json.loads((await client.get(session.url + "/models")).body)["data"][0]["id"] == "scripted"
            assert json.loads((await client.get(session.url + "/models/scripted")).body)["id"] == "scripted"

    kit.run(test)


def test_an_address_that_is_taken_is_a_config_error(kit):
    async def test():
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="cannot listen"):
            async with Gateway(ScriptedModel([]), port=taken.getsockname()[1]):
                pass

    kit.run(test)


def test_a_further_socket_is_served_too(kit, tmp_path):
    async def test():
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

    kit.run(test)


# ---- what is recorded ---------------------------------------------------------------------------------------------


def test_a_conversation_is_recorded_once_however_often_it_is_sent(kit):
    script = [call("add", a=1, b=2), call("add", a=3, b=3), say("Six.")]

    async def test():
        async with kit.serve_model(ScriptedModel(script)) as client:
            session = client.gateway.open(name="sum")
            messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 2 + 3?"}]
            for _ in range(2):
                reply = (await client.chat(session, messages, tools=[kit.ADD]))["choices"][0]["message"]
                (made,) = reply["tool_calls"]
                made["function"]["arguments"] = json.dumps(json.loads(made["function"]["arguments"]), indent=1)
                messages += [reply, {"role": "tool", "tool_call_id": made["id"], "content": "so much"}]
            messages.append({"role": "user", "content": "Well?"})
            await client.chat(session, messages, tools=[kit.ADD])
            record = await client.gateway.close(session)
        assert [e.follows for e in record.exchanges] == [None, 0, 1]
        assert [len(e.messages) for e in record.exchanges] == [2, 1, 2]
        assert record.opening[1].content == "1 + 2 + 3?"
        turns = record.make_turns()
        assert [r.content for t in turns for r in t.results] == ["so much", "so much"]
        assert turns[1].notices == (Message("user", "Well?"),)
        assert record.exchanges[0].tools[0].name == "add"
        assert record.exchanges[0].tools is record.exchanges[2].tools
        assert not record.exact
        with pytest.raises(ValueError, match="token mode"):
            record.build_sequences()
        assert b'"name":"sum"' in to_json(record)

    kit.run(test)


def test_a_sub_agent_and_a_second_try_are_branches(kit):
    async def test():
        async with kit.serve_model(ScriptedModel(lambda messages, *_: f"reply {len(messages)}")) as client:
            session = client.gateway.open()
            main = [*HI, (await client.chat(session, HI))["choices"][0]["message"]]
            await client.chat(session, [{"role": "user", "content": "You are a helper."}])
            go_on = [*main, {"role": "user", "content": "more"}]
            await client.chat(session, go_on)
            await client.chat(session, go_on)
            record = await client.gateway.close(session)
        assert [e.follows for e in record.exchanges] == [None, None, 0, 0]

    kit.run(test)


def test_two_requests_at_once_are_both_recorded_behind_their_own_prompts(kit):
    async def test():
        gate = asyncio.Event()

        async def slow(messages, *_):
            await gate.wait()
            return f"to {messages[-1].content}"

        async with kit.serve_model(ScriptedModel(slow)) as client:
            session = client.gateway.open()
            asks = [asyncio.create_task(client.chat(session, [{"role": "user", "content": str(i)}])) for i in range(20)]
            await kit.until(lambda: session.requests == 20)
            gate.set()
            replies = [(await ask)["choices"][0]["message"]["content"] for ask in asks]
            record = await client.gateway.close(session)
        assert replies == [f"to {i}" for i in range(20)]
        assert {(e.messages[0].content, e.completion.message.content) for e in record.exchanges} == {
            (str(i), f"to {i}") for i in range(20)
        }

    kit.run(test)


# ---- sampling and budgets -----------------------------------------------------------------------------------------


def test_a_sessions_sampling_overrules_the_agents(kit):
    seen = []

    async def test():
        async with kit.serve_model(ScriptedModel(lambda m, t, s: seen.append(s) or "ok")) as client:
            rule = Sampling(temperature=0.7, max_tokens=100, seed=5)
            session, free = client.gateway.open(sampling=rule), client.gateway.open()
            wish = {"temperature": 0, "top_p": 0.5, "seed": 1, "max_tokens": 7, "stop": "END", "top_k": 3}
            await client.chat(session, HI, **wish)
            await client.chat(session, HI, max_completion_tokens=5000)
            await client.chat(free, HI, **wish)
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

    kit.run(test)


def test_the_rule_of_sampling():
    rule = Sampling(temperature=1.0, stop=("A",), tool_choice="auto", extra={"top_k": -1})
    asked = Sampling(temperature=0.0, max_tokens=9, stop=("B", "A"), tool_choice="required", extra={"min_p": 0.1})
    made = enforce_sampling(rule, asked, 1)
    assert made == Sampling(temperature=1.0, max_tokens=9, stop=("A", "B"), tool_choice="auto", extra={"top_k": -1})
    assert enforce_sampling(None, asked, 1) is asked
    assert enforce_sampling(None, Sampling(seed=4), 1, 2).seed == 6


@pytest.mark.parametrize(
    ("budget", "allowed"), [(Budget(calls=2), 2), (Budget(tokens=2100), 2), (Budget(dollars=0.35), 4)]
)
def test_a_spent_budget_is_said_once_and_recorded(kit, budget, allowed):
    reply = Completion(Message("assistant", "ok"), Finish.STOP, Usage(500, 500, dollars=0.1))

    async def test():
        async with kit.serve_model(ScriptedModel(lambda *_: reply)) as client:
            session = client.gateway.open(budget=budget, sampling=Sampling(max_tokens=200))
            for _ in range(allowed):
                await client.chat(session, HI)
            response = await client.post(session.url + "/chat/completions", {"messages": HI})
            assert response.status == 429
            assert response.get_header("x-should-retry") == "false"
            error = json.loads(response.body)["error"]
            assert error["code"] == "insufficient_quota" and "budget of" in error["message"]
            other = await client.post(session.anthropic_url + "/v1/messages", {"messages": HI, "max_tokens": 200})
            assert json.loads(other.body)["error"]["type"] == "rate_limit_error"
            record = await client.gateway.close(session)
        assert record.stop == "budget"
        assert record.failure is None
        assert (len(record.exchanges), record.failed) == (allowed, 2)

    kit.run(test)


def test_a_metered_model_stays_metered(kit):
    async def test():
        ledger = Ledger(Budget(calls=1))
        async with kit.serve_model(MeteredModel(ScriptedModel(lambda *_: "ok"), ledger, "agent")) as client:
            session = client.gateway.open()
            await client.chat(session, HI)
            assert (await client.post(session.url + "/chat/completions", {"messages": HI})).status == 429
            assert ledger.total.calls == 1
            assert (await client.gateway.close(session)).stop == "budget"

    kit.run(test)


# ---- pausing ------------------------------------------------------------------------------------------------------


def test_drain_waits_for_the_model_and_holds_back_the_rest(kit):
    async def test():
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

    kit.run(test)


# ---- what goes wrong ----------------------------------------------------------------------------------------------


def test_a_model_that_breaks_is_a_failure_of_the_record(kit):
    def broken(*_):
        raise ModelError("the server is down", retryable=False)

    def foreign(*_):
        raise ZeroDivisionError("oops")

    async def test():
        for script, words in ((broken, "the server is down"), (foreign, "oops")):
            async with kit.serve_model(ScriptedModel(script)) as client:
                session = client.gateway.open()
                response = await client.post(session.url + "/chat/completions", {"messages": HI})
                assert response.status == 502 and words in response.body.decode()
                assert response.get_header("x-should-retry") == "false"
                record = await client.gateway.close(session)
            assert record.failure is not None and words in record.failure.message
            assert record.failure.boundary == "model"

    kit.run(test)


def test_a_conversation_that_is_too_long_is_said_in_words_that_agents_know(kit):
    def full(*_):
        raise ServerFault("http://x: status 400: the context is 4096 tokens long", retryable=False, too_long=True)

    async def test():
        async with kit.serve_model(ScriptedModel(full)) as client:
            session = client.gateway.open()
            response = await client.post(session.url + "/chat/completions", {"messages": HI})
            assert response.status == 400
            assert json.loads(response.body)["error"]["code"] == "context_length_exceeded"
            other = await client.post(session.anthropic_url + "/v1/messages", {"messages": HI, "max_tokens": 1})
            assert json.loads(other.body)["error"]["message"].startswith("prompt is too long")
            record = await client.gateway.close(session)
        assert (record.stop, record.failure) == ("context", None)

    kit.run(test)


def test_a_client_that_goes_away_loses_its_reply_and_nothing_else(kit):
    async def test():
        for stream in (False, True):
            gate, begun = asyncio.Event(), asyncio.Event()

            async def slow(*_, begun=begun, gate=gate):
                begun.set()
                await gate.wait()
                return "for nobody"

            async with kit.serve_model(ScriptedModel(slow), ping_seconds=0.01) as client:
                session = client.gateway.open()
                port = int(client.gateway.url.rpartition(":")[2])
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                body = json.dumps({"messages": HI, "stream": stream}).encode()
                head = f"POST /s/{session.secret}/v1/chat/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                await begun.wait()
                if stream:
                    assert b"chunked" in await reader.readuntil(b"\r\n\r\n")
                    await reader.readuntil(b"waiting for the model")
                writer.transport.abort()
                await kit.until(lambda: not client.gateway.connections)
                gate.set()
                record = await client.gateway.close(session)
                (exchange,) = record.exchanges
                assert exchange.completion.message.content == "for nobody"
                assert not exchange.delivered
                assert not session.tasks

    kit.run(test)


def test_closing_a_session_does_not_wait_for_ever(kit):
    async def test():
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

    kit.run(test)


def test_waiting_requests_get_an_error_when_the_gateway_ends(kit):
    async def test():
        async with kit.serve_model(ScriptedModel(lambda *_: "ok")) as client:
            async with Gateway(client.gateway.model) as gateway:
                gateway.pause()
                urls = [gateway.open().url + "/chat/completions" for _ in range(3)]
                body = json.dumps({"messages": HI}).encode()
                asks = [asyncio.create_task(client.http.request("POST", url, (), body)) for url in urls]
                await kit.until(lambda: all(session.tasks for session in gateway.sessions))
            assert [(await ask).status for ask in asks] == [503] * 3

    kit.run(test)


# ---- exact tokens -------------------------------------------------------------------------------------------------


def test_in_token_mode_the_record_holds_exactly_what_the_engine_drew(kit):
    def reply(prompt: str) -> str:
        if prompt.count("<|im_start|>assistant") >= 4 or "helper" in prompt:
            return "The sum is 6, 世界."
        return 'I add.\n<tool_call>\n{"name": "add", "arguments": {"b": 2, "a": 1}}\n</tool_call>'

    async def test():
        model = kit.token_model(reply, scatter=0.5)
        async with kit.serve_model(MeteredModel(model, Ledger(), "agent")) as client:
            session = client.gateway.open(sampling=Sampling(max_tokens=500))
            messages = [{"role": "user", "content": "What is 1 + 2 + 3?"}]
            for _ in range(4):
                answer = (await client.chat(session, messages, tools=[kit.ADD]))["choices"][0]["message"]
                messages.append(json.loads(json.dumps(answer)))
                for made in answer.get("tool_calls", ()):
                    made["function"]["arguments"] = '{"a": 1, "b": 2}'
                    messages.append({"role": "tool", "tool_call_id": made["id"], "content": "3"})
            assert messages[-1]["content"] == "The sum is 6, 世界."
            await client.chat(session, [{"role": "user", "content": "You are a helper."}])
            await asyncio.gather(*(client.chat(session, messages[:3], tools=[kit.ADD], n=2) for _ in range(2)))
            record = await client.gateway.close(session)
        assert record.exact
        assert len(record.exchanges) == 9
        rows = record.build_sequences()
        assert len(rows) == 6
        assert kit.is_proven(rows, model.engine.log)

    kit.run(test)


def test_in_token_mode_a_tool_that_must_be_called_is_refused_with_the_reason(kit):
    async def test():
        async with kit.serve_model(kit.token_model(["x"])) as client:
            session = client.gateway.open()
            body = {"messages": HI, "tools": [kit.ADD], "tool_choice": "required"}
            response = await client.post(session.url + "/chat/completions", body)
            assert response.status == 400 and b"tool_choice" in response.body

    kit.run(test)
