"""Two messages are the same message if they mean the same, however they are written."""

import pytest

from ludus.tokens.same_message import same_message
from ludus.types import Call, Message, Reasoning


def reply(content="I look.", arguments='{"at": "a", "n": 1}', *, name="look", call_id="call_0", thought=None):
    calls = (Call(call_id, name, arguments),) if arguments is not None else ()
    reasoning = Reasoning(thought, "think") if thought is not None else None
    return Message("assistant", content, calls, reasoning=reasoning)


@pytest.mark.parametrize(
    "other",
    [
        reply(" I look.\n"),
        reply(arguments='{"n":1,"at":"a"}'),
        reply(arguments='{"at": "a", "n": 1.0}'),
        reply(call_id="other"),
        reply(thought="hm"),
    ],
    ids=["space", "order", "number", "id", "reasoning"],
)
def test_another_form_of_a_reply_is_the_same(other):
    assert same_message(reply(), other)
    assert same_message(other, reply())


@pytest.mark.parametrize(
    "other",
    [
        reply("I see."),
        reply(arguments='{"at": "a", "n": 2}'),
        reply(arguments='{"at": "a", "n": true}'),
        reply(arguments='{"at": "a"}'),
        reply(arguments='{"at": "a", "n": [1]}'),
        reply(arguments=None),
        reply(name="see"),
        Message("user", "I look."),
    ],
    ids=["words", "value", "type", "key", "list", "no-call", "tool", "role"],
)
def test_another_meaning_is_another_message(other):
    assert not same_message(reply(), other)
    assert not same_message(other, reply())


def test_reasoning_that_differs_is_another_message():
    assert same_message(reply(thought="hm"), reply(thought=" hm\n"))
    assert not same_message(reply(thought="hm"), reply(thought="no"))


def test_arguments_that_are_not_json_are_compared_as_text():
    assert same_message(reply(arguments="{bad"), reply(arguments="{bad"))
    assert not same_message(reply(arguments="{bad"), reply(arguments="{bad "))


def test_nested_arguments_are_compared_as_json():
    one, other = '{"x": [{"a": 1, "b": [true, null]}]}', '{"x":[{"b":[true,null],"a":1}]}'
    assert same_message(reply(arguments=one), reply(arguments=other))
    assert not same_message(reply(arguments=one), reply(arguments='{"x": [{"a": 1, "b": [1, null]}]}'))


def test_given_messages_are_compared_as_they_are():
    assert not same_message(Message("user", "Hi."), Message("user", "Hi. "))
    assert not same_message(Message("tool", "x", call_id="1"), Message("tool", "x", call_id="2"))
    assert same_message(Message("tool", "x", call_id="1"), Message("tool", "x", call_id="1"))
