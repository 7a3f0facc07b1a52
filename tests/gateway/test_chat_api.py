"""OpenAI's chat completions, and requests that are not."""

import asyncio
import json

import pytest

from ludus.models.scripted import ScriptedModel, call, join_calls, say
from ludus.types import Completion, Finish, Message, Reasoning, Usage

HI = [{"role": "user", "content": "hi"}]


async def test_a_text_reply(kit):
    async with kit.serve_model(ScriptedModel([say("Hello.", reasoning="Be kind.")])) as client:
        reply = await client.chat(client.gateway.open(), HI)
    assert reply["object"] == "chat.completion" and reply["id"].startswith("chatcmpl-")
    (choice,) = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello.", "reasoning_content": "Be kind."}
    assert choice["finish_reason"] == "stop"
    assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]


async def test_what_the_model_gets(kit):
    seen = []

    def script(messages, tools, sampling):
        seen.append((messages, tools, sampling))
        return "ok"

    async with kit.serve_model(ScriptedModel(script)) as client:
        made = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
        messages = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1?"}]},
            {"role": "assistant", "content": None, "tool_calls": [made], "reasoning_content": "Hm."},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ]
        await client.chat(client.gateway.open(), messages, tools=[kit.ADD], tool_choice="required", top_p=0.9)
    ((messages, tools, sampling),) = seen
    assert [m.role for m in messages] == ["system", "user", "assistant", "tool"]
    assert messages[1].content == "1 + 1?"
    assert messages[2].calls[0].arguments == '{"a":1}'
    assert messages[2].reasoning == Reasoning("Hm.", "reasoning_content")
    assert messages[3].call_id == "c1"
    assert tools[0].description == "Adds."
    assert (sampling.tool_choice, sampling.top_p, sampling.temperature) == ("required", 0.9, None)


async def test_a_tool_that_must_be_called_is_offered_alone(kit):
    offered = []
    other = {"type": "function", "function": {"name": "other"}}

    async with kit.serve_model(ScriptedModel(lambda m, t, s: offered.append((t, s.tool_choice)) or "ok")) as client:
        session = client.gateway.open()
        choice = {"type": "function", "function": {"name": "other"}}
        await client.chat(session, HI, tools=[kit.ADD, other], tool_choice=choice)
    ((tools, chosen),) = offered
    assert [tool.name for tool in tools] == ["other"] and chosen == "required"


async def test_a_stream_has_the_same_content(kit):
    reply = join_calls(call("add", a=1, b=2), call("add", a=3, b=4), text="I add.", reasoning="Two sums.")

    async with kit.serve_model(ScriptedModel([reply])) as client:
        session = client.gateway.open()
        body = {"messages": HI, "tools": [kit.ADD], "stream": True, "stream_options": {"include_usage": True}}
        response = await client.post(session.url + "/chat/completions", body)
    assert response.get_header("content-type").startswith("text/event-stream")
    *chunks, usage, end = [value for _, value in kit.read_events(response.body)]
    assert end == "[DONE]" and usage["choices"] == [] and usage["usage"]["completion_tokens"] > 0
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content", "") for delta in deltas) == "I add."
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Two sums."
    calls = {}
    for piece in (piece for delta in deltas for piece in delta.get("tool_calls", ())):
        known = calls.setdefault(piece["index"], {"arguments": ""})
        known.update({key: piece[key] for key in ("id",) if key in piece})
        known["arguments"] += piece["function"]["arguments"]
    assert [json.loads(made["arguments"]) for made in calls.values()] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert len({made["id"] for made in calls.values()}) == 2
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_a_stream_that_has_begun_may_still_fail(kit):
    gate = asyncio.Event()

    async def broken(*_):
        await gate.wait()
        raise ZeroDivisionError("oops")

    async with kit.serve_model(ScriptedModel(broken), ping_seconds=0.01) as client:
        session = client.gateway.open()
        reader, writer = await kit.send_raw(client, session, "/chat/completions", {"messages": HI, "stream": True})
        await reader.readuntil(b'"delta":{}')  # a ping
        gate.set()
        events = await reader.readuntil(b"[DONE]")
        assert b'"error":{"message":"ZeroDivisionError: oops"' in events
        writer.close()
        await writer.wait_closed()


async def test_several_choices(kit):
    numbers = iter(range(10))

    async with kit.serve_model(ScriptedModel(lambda *_: f"reply {next(numbers)}")) as client:
        session = client.gateway.open()
        reply = await client.chat(session, HI, n=3)
        assert sorted(c["message"]["content"] for c in reply["choices"]) == ["reply 0", "reply 1", "reply 2"]
        assert [c["index"] for c in reply["choices"]] == [0, 1, 2]
        assert len((await client.gateway.close(session)).exchanges) == 3


async def test_one_choice_that_fails_fails_the_request_but_the_others_are_recorded(kit):
    numbers = iter(range(10))

    def script(*_):
        if next(numbers) == 1:
            raise ZeroDivisionError("oops")
        return "ok"

    async with kit.serve_model(ScriptedModel(script)) as client:
        session = client.gateway.open()
        response = await client.post(session.url + "/chat/completions", {"messages": HI, "n": 3})
        assert response.status == 502
        record = await client.gateway.close(session)
    assert len(record.exchanges) == 2 and record.failure is not None


@pytest.mark.parametrize(
    ("finish", "reason"),
    [(Finish.LENGTH, "length"), (Finish.FILTER, "content_filter"), (Finish.OTHER, "stop")],
)
async def test_why_a_reply_ended(kit, finish, reason):
    reply = Completion(Message("assistant", ""), finish, Usage(7, 3, 2))
    async with kit.serve_model(ScriptedModel([reply])) as client:
        answer = await client.chat(client.gateway.open(), HI)
    assert answer["choices"][0]["finish_reason"] == reason
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


# ---- bad requests -------------------------------------------------------------------------------------------------

IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "the body: expected object"),
        (b'{"messages": "hi"}', "messages: expected array"),
        (b'{"model": "m"}', "messages: this field is needed"),
        ({"messages": []}, "messages: at least one"),
        ({"messages": [{"content": "x"}]}, "messages[0].role: this field is needed"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": IMAGE}, "messages[0].content[0].image_url: expected an address"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "messages[0].tool_calls[0].function"),
        ({"messages": HI, "functions": []}, "functions: this form is deprecated"),
        ({"messages": HI, "temperature": "hot"}, "temperature: expected float"),
        ({"messages": HI, "n": 0}, "n: 0"),
        ({"messages": HI, "max_tokens": 0}, "max_tokens: 0"),
        ({"messages": HI, "tools": [{"type": "custom", "custom": {}}]}, "tools[0].custom.name: this field"),
        ({"messages": HI, "tools": [{"type": "web_search"}]}, "tools[0]: only functions"),
        ({"messages": HI, "tools": [{"type": "function", "function": {}}]}, "tools[0].function.name: this field"),
        ({"messages": HI, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"messages": HI, "tool_choice": "maybe"}, "tool_choice"),
        pytest.param(b'{"messages":[{"role":"user","content":' + b"[" * 100_000, "not JSON", id="deep"),
    ],
)
async def test_a_bad_request_names_the_field_and_is_no_failure(kit, body, words):
    async with kit.serve_model(ScriptedModel([])) as client:
        session = client.gateway.open()
        response = await client.post(session.url + "/chat/completions", body)
        assert response.status == 400
        assert words in json.loads(response.body)["error"]["message"]
        record = await client.gateway.close(session)
    assert (record.failure, record.failed, record.exchanges) == (None, 1, ())
