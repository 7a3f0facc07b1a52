"""The record of a session."""

import asyncio
import json

import msgspec
import pytest

from ludus.encoding import to_json
from ludus.gateway.session import Exchange, SessionRecord
from ludus.models.scripted import ScriptedModel, call, say
from ludus.types import Call, Completion, Message, Sampling, ToolResult, Usage

HI = [{"role": "user", "content": "hi"}]


async def test_a_harness_that_never_calls_leaves_an_empty_record(kit):
    async with kit.serve_model(ScriptedModel(lambda *_: "ok")) as client:
        record = await client.gateway.close(client.gateway.open(name="silent"))
        assert (record.exchanges, record.requests, record.failure) == ((), 0, None)
        assert record.make_turns() == () and record.opening == ()


async def test_a_conversation_is_recorded_once_however_often_it_is_sent(kit):
    script = [call("add", a=1, b=2), call("add", a=3, b=3), say("Six.")]

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


async def test_a_sub_agent_and_a_second_try_are_branches(kit):
    async with kit.serve_model(ScriptedModel(lambda messages, *_: f"reply {len(messages)}")) as client:
        session = client.gateway.open()
        main = [*HI, (await client.chat(session, HI))["choices"][0]["message"]]
        await client.chat(session, [{"role": "user", "content": "You are a helper."}])
        go_on = [*main, {"role": "user", "content": "more"}]
        await client.chat(session, go_on)
        await client.chat(session, go_on)
        record = await client.gateway.close(session)
    assert [e.follows for e in record.exchanges] == [None, None, 0, 0]


async def test_requests_at_the_same_time_are_recorded_after_their_own_prompts(kit):
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


def record(*exchanges: Exchange) -> SessionRecord:
    return SessionRecord(name="s", model="m", exchanges=exchanges)


def test_a_turn_has_the_results_of_its_calls_and_other_messages_as_notices():
    asks = Completion(Message("assistant", "", (Call("1", "add", "{}"), Call("2", "add", "{}"))), usage=Usage(3, 2))
    ends = Completion(Message("assistant", "Done."), usage=Usage(5, 1))
    sent = (Message("tool", "three", call_id="1"), Message("tool", "?", call_id="9"), Message("user", "Well?"))
    made = record(
        Exchange(api="chat", messages=(Message("user", "hi"),), completion=asks),
        Exchange(api="chat", follows=0, messages=sent, completion=ends),
    )
    first, last = made.make_turns()
    assert first.results == (ToolResult(Call("1", "add", "{}"), "three"),)
    assert first.notices == sent[1:]
    assert (last.results, last.notices) == ((), ())
    assert made.opening == (Message("user", "hi"),)
    assert made.usage == Usage(8, 3)


def test_the_requested_sampling_is_stored_as_asked():
    exchange = Exchange(
        api="chat", requested_sampling=Sampling(temperature=0.0), completion=Completion(Message("user"))
    )
    stored = json.loads(to_json(record(exchange)))
    assert stored["exchanges"][0]["asked"]["temperature"] == 0.0
    assert msgspec.convert(stored, SessionRecord) == record(exchange)


async def test_a_session_can_be_reached_from_another_root(kit):
    async with kit.serve_model(ScriptedModel(lambda *_: "ok")) as client:
        session = client.gateway.open(secret="abc")
        assert session.url == f"{client.gateway.url}/s/abc/v1"
        assert session.make_base_url("http://127.0.0.1:9000/") == "http://127.0.0.1:9000/s/abc"
        assert session.api_key == "abc" and "abc" not in repr(session)
