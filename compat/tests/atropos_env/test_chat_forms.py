"""OpenAI's dicts and objects, and the nouns of Ludus."""

import pytest

from ludus.chat_form import read_messages
from ludus.compat.atropos_env.chat_forms import make_chat_reply, read_sampling
from ludus.errors import ConfigError
from ludus.types import Call, Completion, Finish, Message, Reasoning, Sampling, Usage


def test_sampling_has_what_a_call_says_over_the_settings():
    base = Sampling(top_p=0.5, extra={"a": 1, "b": 1})
    given = {"max_completion_tokens": 7, "stop": "x", "split": "eval", "n": 3, "extra_body": {"b": 2}, "min_p": 0.1}
    found = read_sampling({**given, "temperature": 0, "tool_choice": "auto", "messages": []}, base)
    assert (found.max_tokens, found.stop, found.temperature, found.top_p) == (7, ("x",), 0.0, 0.5)
    assert found.extra == {"a": 1, "b": 2, "min_p": 0.1} and found.tool_choice == "auto"


def test_ids_that_end_a_reply_are_sent_in_the_field_of_the_server():
    given = {"stop": [7, "x"]}
    assert read_sampling(given, Sampling(), "stop").extra == {"stop": [7, "x"]}
    vllm = read_sampling(given, Sampling(), "stop_token_ids")
    assert vllm.extra == {"stop_token_ids": [7]} and vllm.stop == ("x",)
    assert read_sampling({"stop": 7}, Sampling(), "stop_token_ids").extra == {"stop_token_ids": [7]}
    with pytest.raises(ConfigError, match=r"stop: \[7\] are token ids"):
        read_sampling(given, Sampling())


def test_a_reply_can_be_read_as_object_and_as_mapping():
    message = Message("assistant", "yes", reasoning=Reasoning("hm", "think", "<think>hm</think>"))
    reply = make_chat_reply([Completion(message, Finish.LENGTH, Usage(3, 2))], "m")
    assert reply.choices[0].message.content == "<think>hm</think>yes" and reply.usage.total_tokens == 5
    assert reply["choices"][0].get("finish_reason") == "length" and reply.model_dump()["model"] == "m"


def test_messages_of_a_reply_are_read_again():
    message = Message("assistant", "", (Call("c", "f", '{"x": 1}'),), reasoning=Reasoning("hm", "reasoning_content"))
    (choice,) = make_chat_reply([Completion(message)], "m").choices
    assert choice.message.tool_calls[0].function.name == "f"
    assert read_messages([choice.message]) == [message]
    assert read_messages([{"role": "assistant", "tool_calls": choice.message.tool_calls}])[0].calls == message.calls
