"""OpenAI's dicts and objects, and the nouns of Ludus."""

import pytest

from ludus.compat.atropos_env.chat_forms import make_chat_reply, read_messages, read_sampling, read_tools
from ludus.types import Call, Completion, Finish, Message, Reasoning, Sampling, Usage


def test_messages_are_read_in_the_forms_that_files_write():
    calls = [{"id": "c", "function": {"name": "f", "arguments": {"x": 1}}}]
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    found = read_messages(
        [
            {"role": "developer", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, picture]},
            {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "hm"},
            {"role": "tool", "tool_call_id": "c", "content": "7"},
        ]
    )
    assert [message.role for message in found] == ["system", "user", "assistant", "tool"]
    assert found[1].content == "a" and found[1].images[0].url.startswith("data:")
    assert found[2].calls == (Call("c", "f", '{"x": 1}'),) and found[2].reasoning is not None
    assert found[3].call_id == "c"
    again = read_messages([make_chat_reply([Completion(found[2])], "m").choices[0].message])
    assert again[0].calls == found[2].calls
    with pytest.raises(ValueError, match="input_audio"):
        read_messages([{"role": "user", "content": [{"type": "input_audio"}]}])


def test_sampling_has_what_a_call_says_over_the_settings():
    base = Sampling(top_p=0.5, extra={"a": 1, "b": 1})
    given = {"max_completion_tokens": 7, "stop": "x", "split": "eval", "n": 3, "extra_body": {"b": 2}, "min_p": 0.1}
    found = read_sampling({**given, "temperature": 0, "tool_choice": "auto", "messages": []}, base)
    assert (found.max_tokens, found.stop, found.temperature, found.top_p) == (7, ("x",), 0.0, 0.5)
    assert found.extra == {"a": 1, "b": 2, "min_p": 0.1} and found.tool_choice == "auto"


def test_a_reply_can_be_read_as_object_and_as_mapping():
    message = Message("assistant", "yes", reasoning=Reasoning("hm", "think", "<think>hm</think>"))
    reply = make_chat_reply([Completion(message, Finish.LENGTH, Usage(3, 2))], "m")
    assert reply.choices[0].message.content == "<think>hm</think>yes" and reply.usage.total_tokens == 5
    assert reply["choices"][0].get("finish_reason") == "length" and reply.model_dump()["model"] == "m"


def test_tools_are_read_with_and_without_their_frame():
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert read_tools([{"type": "function", "function": function}]) == read_tools([function])
