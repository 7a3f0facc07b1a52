"""Anthropic's messages."""

import json

import pytest

from ludus.models.anthropic import build_request, parse_reply
from ludus.models.scripted import ScriptedModel, call, join_calls, say
from ludus.types import Call, Completion, Finish, Message, Reasoning, Sampling, Usage

HI = [{"role": "user", "content": "hi"}]
ADD = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}


async def send(client, session, **body):
    response = await client.post(session.anthropic_url + "/v1/messages", {"max_tokens": 100, "messages": HI, **body})
    assert response.status == 200, response.body
    return response


async def test_a_conversation_with_a_tool(kit):
    seen = []
    script = [join_calls(call("add", a=1), text="I add.", reasoning="Let me see."), say("Two.")]

    def play(messages, tools, sampling):
        seen.append((messages, tools, sampling))
        return script[len(seen) - 1]

    async with kit.serve_model(ScriptedModel(play)) as client:
        session = client.gateway.open()
        shared = {
            "system": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}],
            "tools": [ADD],
            "thinking": {"type": "enabled", "budget_tokens": 99},
            "stop_sequences": ["END"],
        }
        reply = json.loads((await send(client, session, **shared)).body)
        thinking, text, used = reply["content"]
        assert (thinking["thinking"], text["text"], used["input"]) == ("Let me see.", "I add.", {"a": 1})
        assert reply["stop_reason"] == "tool_use" and reply["usage"]["output_tokens"] > 0
        result = {"type": "tool_result", "tool_use_id": used["id"], "content": [{"type": "text", "text": "2"}]}
        sent = [result, {"type": "text", "text": "Hurry."}]
        messages = [
            *HI,
            {"role": "assistant", "content": reply["content"]},
            {"role": "user", "content": sent},
        ]
        end = json.loads((await send(client, session, messages=messages, **shared)).body)
        assert end["content"] == [{"type": "text", "text": "Two."}] and end["stop_reason"] == "end_turn"
        record = await client.gateway.close(session)
    assert [e.follows for e in record.exchanges] == [None, 0]
    messages, tools, sampling = seen[1]
    assert [m.role for m in messages] == ["system", "user", "assistant", "tool", "user"]
    assert messages[0].content == "One.\n\nTwo." and messages[3].content == "2" and messages[4].content == "Hurry."
    assert messages[2] is record.exchanges[0].completion.message
    assert (tools[0].name, sampling.stop, sampling.max_tokens) == ("add", ("END",), 100)


async def test_a_stream_has_the_same_content(kit):
    reply = join_calls(call("add", a=1), text="I add.", reasoning="Let me see.")

    async with kit.serve_model(ScriptedModel(lambda *_: reply)) as client:
        session = client.gateway.open()
        plain = json.loads((await send(client, session, tools=[ADD], thinking={"type": "adaptive"})).body)
        response = await send(client, session, tools=[ADD], thinking={"type": "adaptive"}, stream=True)
        quiet = json.loads((await send(client, session, tools=[ADD])).body)
    assert [block["type"] for block in quiet["content"]] == ["text", "tool_use"]
    events = kit.read_events(response.body)
    assert all(name == value["type"] for name, value in events)
    assert events[0][0] == "message_start" and [n for n, _ in events[-2:]] == ["message_delta", "message_stop"]
    blocks = {}
    for name, value in events:
        if name == "content_block_start":
            blocks[value["index"]] = dict(value["content_block"])
        elif name == "content_block_delta":
            block, delta = blocks[value["index"]], value["delta"]
            match delta["type"]:
                case "text_delta":
                    block["text"] += delta["text"]
                case "thinking_delta":
                    block["thinking"] += delta["thinking"]
                case "signature_delta":
                    block["signature"] += delta["signature"]
                case "input_json_delta":
                    block["input"] = json.loads(delta["partial_json"])
    assert list(blocks.values()) == plain["content"]
    assert events[-2][1]["delta"]["stop_reason"] == "tool_use"
    assert events[-2][1]["usage"]["output_tokens"] == plain["usage"]["output_tokens"]


async def test_the_anthropic_client_of_ludus_works_with_the_gateway(kit):
    """The dialect that `ludus.models.anthropic` speaks as a client, spoken as a server."""
    thought = [{"type": "thinking", "thinking": "Hm.", "signature": "abc"}]
    reply = Message(
        "assistant", "I add.", (Call("t1", "add", '{"a":1}'),), reasoning=Reasoning("Hm.", "thinking", thought)
    )

    done = Completion(reply, Finish.CALLS, Usage(30, 5, 10))
    async with kit.serve_model(ScriptedModel(lambda *_: done)) as client:
        session = client.gateway.open()
        history = [Message("system", "Be brief."), Message("user", "hi"), reply, Message("tool", "2", call_id="t1")]
        body = json.loads(build_request(history, [], Sampling(), "m"))
        url = session.anthropic_url + "/v1/messages"
        response = await client.post(url, {**body, "thinking": {"type": "enabled"}})
        assert parse_reply(response.body) == Completion(reply, Finish.CALLS, Usage(30, 5, 10), "scripted")
        record = await client.gateway.close(session)
    assert record.opening == tuple(history)


async def test_arguments_that_are_no_json_come_back_as_they_were_written(kit):
    broken = Message("assistant", "", (Call("t1", "add", '{"a": '),))

    async with kit.serve_model(ScriptedModel(lambda *_: broken)) as client:
        session = client.gateway.open()
        reply = json.loads((await send(client, session, tools=[ADD])).body)
        assert reply["content"][0]["input"] == {"invalid_json": '{"a": '}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": "no", "is_error": True}
        sent = [*HI, {"role": "assistant", "content": reply["content"]}, {"role": "user", "content": [result]}]
        await send(client, session, messages=sent, tools=[ADD])
        record = await client.gateway.close(session)
    assert record.exchanges[1].follows == 0


async def test_what_is_left_out_is_listed(kit):
    async with kit.serve_model(ScriptedModel(lambda *_: "ok")) as client:
        session = client.gateway.open()
        for number in range(2):
            hidden = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={number};"}
            system = [hidden, {"type": "text", "text": "Be brief."}]
            web = {"type": "web_search_20250305", "name": "web_search"}
            await send(client, session, system=system, tools=[ADD, web])
        record = await client.gateway.close(session)
    assert record.exchanges[0].ignored == ("system: a billing header", "tools: web_search_20250305")
    assert record.exchanges[0].messages == record.exchanges[1].messages
    assert [tool.name for tool in record.exchanges[0].tools] == ["add"]


async def test_tokens_are_counted(kit):
    async with kit.serve_model(ScriptedModel([])) as client:
        url = client.gateway.open().anthropic_url + "/v1/messages/count_tokens"
        few = json.loads((await client.post(url, {"messages": HI})).body)["input_tokens"]
        long = [{"role": "user", "content": "hi " * 500}]
        assert json.loads((await client.post(url, {"messages": long})).body)["input_tokens"] > few + 300
        assert (await client.post(url, {"messages": 5})).status == 400
    model = kit.token_model([])
    async with kit.serve_model(model) as client:
        url = client.gateway.open().anthropic_url + "/v1/messages/count_tokens"
        exact = json.loads((await client.post(url, {"messages": HI})).body)["input_tokens"]
        assert exact == len(model.codec.encode_prompt([Message("user", "hi")], ())[1])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image"}]}]}]},
            "messages[0].content[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": 5}]}]}, "content[0].content"),
        ({"messages": HI, "system": [{"type": "text"}]}, "system[0].text"),
        ({"messages": HI, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"messages": HI, "tool_choice": {"type": "odd"}}, "tool_choice.type"),
        ({"messages": HI, "max_tokens": 0}, "max_tokens"),
        (b"{", "not JSON"),
    ],
)
async def test_a_bad_request_names_the_field(kit, body, words):
    async with kit.serve_model(ScriptedModel([])) as client:
        response = await client.post(client.gateway.open().anthropic_url + "/v1/messages", body)
        error = json.loads(response.body)
        assert response.status == 400 and error["type"] == "error"
        assert error["error"]["type"] == "invalid_request_error" and words in error["error"]["message"]
