"""Tools whose input is one text."""

import json

import pytest

from ludus.gateway.custom_tools import make_custom_tool, read_custom_input, write_custom_arguments
from ludus.models.scripted import ScriptedModel, call
from ludus.types import Call


def test_a_custom_tool_is_a_function_with_one_text():
    tool = make_custom_tool("patch", "Edits.", {"syntax": "lark", "definition": "start: X"})
    assert tool.parameters["required"] == ["input"]
    assert "lark grammar:\nstart: X" in tool.description


@pytest.mark.parametrize("text", ["", 'a "b"\n', "\x00é"])
def test_an_input_is_read_as_it_was_written(text):
    assert read_custom_input(Call("c", "patch", write_custom_arguments(text))) == text


def test_arguments_of_another_form_are_the_input():
    assert read_custom_input(Call("c", "patch", "plain")) == "plain"
    assert read_custom_input(Call("c", "patch", '{"x": 1}')) == '{"x": 1}'
    assert read_custom_input(Call("c", "patch", "[1]")) == "[1]"


@pytest.mark.parametrize("stream", [False, True])
async def test_custom_tools_of_the_chat_api(kit, stream):
    seen = []
    tool = {"type": "custom", "custom": {"name": "patch", "description": "Edits.", "format": {"type": "text"}}}

    def play(messages, tools, _):
        seen.append((messages, tools))
        return call("patch", input="*** Begin") if len(messages) == 1 else "Done."

    async def test():
        async with kit.serve_model(ScriptedModel(play)) as client:
            session = client.gateway.open()
            first = {"role": "user", "content": "go"}
            body = {"messages": [first], "tools": [tool, kit.ADD], "stream": stream}
            response = await client.post(session.url + "/chat/completions", body)
            if stream:
                deltas = [v["choices"][0]["delta"] for _, v in kit.read_events(response.body) if v != "[DONE]"]
                (made,) = [made for delta in deltas for made in delta.get("tool_calls", ())]
            else:
                (made,) = json.loads(response.body)["choices"][0]["message"]["tool_calls"]
            assert made["type"] == "custom" and made["custom"] == {"name": "patch", "input": "*** Begin"}
            reply = {"role": "assistant", "tool_calls": [made]}
            result = {"role": "tool", "tool_call_id": made["id"], "content": "ok"}
            await client.chat(session, [first, reply, result], tools=[tool, kit.ADD])
            record = await client.gateway.close(session)
        assert [exchange.follows for exchange in record.exchanges] == [None, 0]
        assert [tool.name for tool in seen[0][1]] == ["patch", "add"]

    await test()
