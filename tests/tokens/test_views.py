"""Messages as templates see them, and stand-ins for replies."""

import pytest

from ludus.tokens.views import (
    TemplateMarks,
    TemplateStyle,
    format_thinking,
    make_stand_in,
    make_tool_views,
    make_view,
    map_call_names,
    show_arguments,
)
from ludus.types import Call, Message, Reasoning, ToolSpec

CALL = Call("call_12345", "look", '{"at": "home"}')
CALLED = Message("assistant", "I look.", (CALL,))


def test_tools_are_shown_as_functions():
    (shown,) = make_tool_views((ToolSpec("look", "Looks.", {"type": "object"}),))
    assert shown == {
        "type": "function",
        "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}},
    }
    assert make_tool_views(()) is None


def test_a_message_has_its_role_and_content():
    assert make_view(Message("user", "Hi."), {}, TemplateStyle(), None) == {"role": "user", "content": "Hi."}


def test_a_tool_result_names_its_tool():
    result = Message("tool", "There.", call_id=CALL.id)
    assert make_view(result, map_call_names((CALLED,)), TemplateStyle(), None) == {
        "role": "tool",
        "content": "There.",
        "tool_call_id": "call_12345",
        "name": "look",
    }
    assert "name" not in make_view(result, {}, TemplateStyle(), None)


@pytest.mark.parametrize(("arguments", "shown"), [("object", {"at": "home"}), ("text", '{"at": "home"}')])
def test_calls_are_beside_the_content(arguments, shown):
    made = make_view(CALLED, {}, TemplateStyle(arguments=arguments), None)
    assert made["content"] == "I look."
    (call,) = made["tool_calls"]
    assert call == {"id": "call_12345", "type": "function", "function": {"name": "look", "arguments": shown}}


def test_calls_go_into_the_content_of_a_template_that_leaves_them_out():
    style = TemplateStyle(calls="in content")
    made = make_view(CALLED, {}, style, lambda content, calls: f"{content} + {calls[0].name}")
    assert made == {"role": "assistant", "content": "I look. + look"}
    assert "tool_calls" in make_view(CALLED, {}, style, None)


def test_ids_of_calls_are_made_short_where_the_template_needs_it():
    (call,) = make_view(CALLED, {}, TemplateStyle(short_ids=True), None)["tool_calls"]
    result = make_view(Message("tool", "x", call_id=CALL.id), {}, TemplateStyle(short_ids=True), None)
    assert call["id"] == result["tool_call_id"]
    assert len(call["id"]) == 9 and call["id"].isalnum()
    ready = Message("assistant", "", (Call("abcdefghi", "look", "{}"),))
    assert make_view(ready, {}, TemplateStyle(short_ids=True), None)["tool_calls"][0]["id"] == "abcdefghi"


@pytest.mark.parametrize(
    ("reasoning", "text"),
    [
        (None, ""),
        (Reasoning("hm", "think", "<think>hm</think>"), "<think>hm</think>"),
        (Reasoning("hm", "reasoning_content"), "<think>\nhm\n</think>\n\n"),
        (Reasoning("", "reasoning_content"), ""),
    ],
)
def test_reasoning_is_the_block_that_was_written_or_a_usual_one(reasoning, text):
    assert format_thinking(Message("assistant", "Hi.", reasoning=reasoning)) == text


@pytest.mark.parametrize(("text", "value"), [("", {}), ('{"a": 1}', {"a": 1}), ("[1]", "[1]"), ("{bad", "{bad")])
def test_arguments_are_an_object_or_the_text(text, value):
    assert show_arguments(Call("1", "f", text)) == value


def test_a_stand_in_has_marks_and_no_word_of_the_reply():
    thinking = Message("assistant", "Secret.", (CALL, CALL), reasoning=Reasoning("hidden", "think"))
    marks = TemplateMarks.for_depth(7)
    plain = make_stand_in(thinking, 7, TemplateStyle())
    assert plain == {"role": "assistant", "content": f"<think>\n{marks.reasoning}\n</think>\n\n{marks.content}"}
    first, last = make_stand_in(thinking, 7, TemplateStyle(stand_in="calls"))["tool_calls"]
    assert first["function"] == {"name": "look", "arguments": {"mark": "0"}}
    assert last["function"] == {"name": "look", "arguments": {"mark": marks.arguments}}
    assert TemplateMarks.for_depth(8).content != marks.content


def test_arguments_of_any_depth_are_an_object_or_their_text():
    for levels in (10, 5_000):
        text = '{"a":' + "[" * levels + "]" * levels + "}"
        found = show_arguments(Call("1", "look", text))
        assert (found == text) is (levels == 5_000)
