"""OpenAI's responses."""

import asyncio
import json

import pytest

from ludus.models.scripted import ScriptedModel, call, join_calls, say
from ludus.types import Call, Completion, Finish, Message, Reasoning

ADD = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}


async def send(client, session, **body):
    response = await client.post(session.url + "/responses", body)
    assert response.status == 200, response.body
    return response


def item(role, text):
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


async def test_a_conversation_with_a_tool_as_items(kit):
    seen = []
    script = [join_calls(call("add", a=1), text="I add.", reasoning="Hm."), say("Two.")]

    def play(messages, tools, sampling):
        seen.append((messages, tools))
        return script[len(seen) - 1]

    async with kit.serve_model(ScriptedModel(play)) as client:
        session = client.gateway.open()
        opening = [item("developer", "Be brief."), item("user", "1 + 1?")]
        first = json.loads((await send(client, session, instructions="Work.", input=opening, tools=[ADD])).body)
        thought, words, made = first["output"]
        assert [i["type"] for i in first["output"]] == ["reasoning", "message", "function_call"]
        assert first["status"] == "completed" and first["tools"] == [ADD]
        result = {"type": "function_call_output", "call_id": made["call_id"], "output": "2"}
        later = [*opening, thought, words, made, result, item("developer", "Hurry.")]
        second = json.loads((await send(client, session, instructions="Work.", input=later, tools=[ADD])).body)
        assert second["output"][0]["content"][0]["text"] == "Two."
        record = await client.gateway.close(session)
    assert [e.follows for e in record.exchanges] == [None, 0]
    messages = seen[1][0]
    assert [m.role for m in messages] == ["system", "user", "assistant", "tool", "user"]
    assert messages[0].content == "Work.\n\nBe brief." and messages[4].content == "Hurry."
    assert messages[2] is record.exchanges[0].completion.message


async def test_a_conversation_by_the_id_of_the_response_before(kit):
    seen = []

    async with kit.serve_model(ScriptedModel(lambda m, *_: seen.append(m) or f"reply {len(m)}")) as client:
        session = client.gateway.open()
        first = json.loads((await send(client, session, input="one")).body)
        await send(client, session, input="two", previous_response_id=first["id"])
        wrong = await client.post(session.url + "/responses", {"input": "x", "previous_response_id": "resp_odd"})
        assert wrong.status == 400 and b"previous_response_id" in wrong.body
    assert [m.content for m in seen[1]] == ["one", "reply 1", "two"]


async def test_a_stream_ends_with_the_whole_response(kit):
    reply = join_calls(call("add", a=1), text="I add.", reasoning="Hm.")

    async with kit.serve_model(ScriptedModel(lambda *_: reply)) as client:
        session = client.gateway.open()
        response = await send(client, session, input="hi", tools=[ADD], stream=True)
    events = kit.read_events(response.body)
    assert all(name == value["type"] for name, value in events)
    assert [value["sequence_number"] for _, value in events] == list(range(len(events)))
    assert [name for name, _ in events[:2]] == ["response.created", "response.in_progress"]
    name, last = events[-1]
    assert name == "response.completed" and last["response"]["usage"]["output_tokens"] > 0
    done = [value["item"] for name, value in events if name == "response.output_item.done"]
    assert done == last["response"]["output"]
    text = "".join(value["delta"] for name, value in events if name == "response.output_text.delta")
    arguments = "".join(v["delta"] for name, v in events if name == "response.function_call_arguments.delta")
    assert (text, arguments) == ("I add.", '{"a":1}')


async def test_a_reply_that_was_cut_is_incomplete(kit):
    cut = Completion(Message("assistant", "I a"), Finish.LENGTH)

    async with kit.serve_model(ScriptedModel(lambda *_: cut)) as client:
        session = client.gateway.open()
        whole = json.loads((await send(client, session, input="hi")).body)
        assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        streamed = kit.read_events((await send(client, session, input="hi", stream=True)).body)
        assert streamed[-1][0] == "response.incomplete"


async def test_tools_of_other_kinds_are_called_in_their_own_form(kit):
    tools = [
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}},
        {"type": "local_shell"},
        {"type": "namespace", "name": "mcp__files", "tools": [{"type": "function", "name": "open"}]},
        {"type": "web_search"},
    ]
    reply = join_calls(
        call("patch", input="*** Begin"), call("local_shell", command=["ls"]), call("mcp__files__open", path="a")
    )
    seen = []

    def play(messages, tools, _):
        seen.append((messages, tools))
        return reply if len(seen) == 1 else "done"

    async with kit.serve_model(ScriptedModel(play)) as client:
        session = client.gateway.open()
        first = json.loads((await send(client, session, input="go", tools=tools)).body)
        custom, shell, spaced = first["output"]
        assert (custom["type"], custom["input"]) == ("custom_tool_call", "*** Begin")
        assert (shell["type"], shell["action"]["command"]) == ("local_shell_call", ["ls"])
        assert (spaced["namespace"], spaced["name"]) == ("mcp__files", "open")
        results = [
            {"type": "custom_tool_call_output", "call_id": custom["call_id"], "output": "ok"},
            {"type": "local_shell_call_output", "call_id": shell["call_id"], "output": "a"},
            {
                "type": "function_call_output",
                "call_id": spaced["call_id"],
                "output": [{"type": "input_text", "text": "text"}],
            },
        ]
        events = await send(client, session, input=[item("user", "go"), *first["output"], *results], stream=True)
        assert b"done" in events.body
        record = await client.gateway.close(session)
    assert [e.follows for e in record.exchanges] == [None, 0]
    assert [t.name for t in seen[0][1]] == ["patch", "local_shell", "mcp__files__open"]
    assert "start: X" in seen[0][1][0].description
    assert record.exchanges[0].ignored == ("tools: web_search",)
    assert [r.content for r in record.make_turns()[0].results] == ["ok", "a", "text"]


async def test_items_are_joined_into_replies(kit):
    seen = []
    items = [
        {"role": "user", "content": "go"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "First."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
        {"type": "function_call", "call_id": "1", "name": "x", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "y", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "one"},
        {"type": "function_call_output", "call_id": "2", "output": {"exit": 0}},
        {"type": "message", "role": "assistant", "content": "B"},
        {"type": "message", "role": "assistant", "content": "C"},
        {"type": "reasoning", "summary": [], "encrypted_content": "xyz"},
    ]

    async with kit.serve_model(ScriptedModel(lambda m, *_: seen.append(m) or "ok")) as client:
        await send(client, client.gateway.open(), input=items)
    assert seen[0] == [
        Message("user", "go"),
        Message(
            "assistant",
            "A",
            (Call("1", "x", "{}"), Call("2", "y", "{}")),
            reasoning=Reasoning("First.", "reasoning_content"),
        ),
        Message("tool", "one", call_id="1"),
        Message("tool", '{"exit":0}', call_id="2"),
        Message("assistant", "B"),
        Message("assistant", "C"),
        Message("assistant"),
    ]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input": []}, "input"),
        ({}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"type": "odd"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": "hi", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "hi", "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"input": "hi", "max_output_tokens": 0}, "max_output_tokens"),
    ],
)
async def test_a_bad_request_names_the_field(kit, body, words):
    async with kit.serve_model(ScriptedModel([])) as client:
        response = await client.post(client.gateway.open().url + "/responses", body)
        assert response.status == 400
        assert words in json.loads(response.body)["error"]["message"]


async def test_a_failure_in_the_middle_of_a_stream_is_a_failed_response(kit):
    gate = asyncio.Event()

    async def broken(*_):
        await gate.wait()
        raise ZeroDivisionError("oops")

    async with kit.serve_model(ScriptedModel(broken), ping_seconds=0.01) as client:
        session = client.gateway.open()
        reader, writer = await kit.send_raw(client, session, "/responses", {"input": "hi", "stream": True})
        begin = await reader.readuntil(b"event: response.in_progress")
        assert b"event: response.created" in begin
        gate.set()
        failed = await reader.readuntil(b"0\r\n\r\n")
        assert b"event: response.failed" in failed and b'"message":"ZeroDivisionError: oops"' in failed
        writer.close()
        await writer.wait_closed()
