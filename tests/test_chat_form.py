"""Messages, calls and tools in the form of OpenAI's chat API."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.chat_form import (
    FINISH_NAMES,
    decode_arguments,
    get_function,
    get_image_url,
    read_arguments,
    read_message,
    read_messages,
    read_tools,
    write_call,
    write_content,
    write_message,
    write_tool,
    write_tools,
)
from ludus.types import Call, Finish, Image, Message, Reasoning, ToolSpec

PICTURE = "data:image/png;base64,AA=="
ADD = ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})

# ---- writing ------------------------------------------------------------------------------------------------------


def test_messages_in_chat_format():
    message = Message("assistant", "hm", (Call("c", "look", "{}"),), reasoning=Reasoning("why", "think"))
    assert write_message(message) == {
        "role": "assistant",
        "content": "hm",
        "reasoning_content": "why",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    }
    assert write_message(Message("user", "hi")) == {"role": "user", "content": "hi"}
    assert write_message(Message("tool", "7", call_id="c")) == {"role": "tool", "content": "7", "tool_call_id": "c"}


def test_pictures_are_parts_at_their_places():
    parts = [
        {"type": "text", "text": "see "},
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "text", "text": "this"},
    ]
    assert write_content(Message("user", "see this", images=(Image(PICTURE, 4),))) == parts
    assert write_content(Message("user", "see this")) == "see this"


def test_a_call_has_its_arguments_as_they_are_given():
    assert write_call("c", "f", {"x": 1})["function"] == {"name": "f", "arguments": {"x": 1}}


def test_a_tool_is_a_function_in_a_frame():
    function = {"name": "add", "description": "Add.", "parameters": ADD.parameters}
    assert write_tools([ADD]) == [write_tool(ADD)] == [{"type": "function", "function": function}]


def test_the_api_has_a_word_for_every_end_of_a_reply():
    assert {finish: FINISH_NAMES[finish] for finish in Finish} == {
        Finish.STOP: "stop",
        Finish.CALLS: "tool_calls",
        Finish.LENGTH: "length",
        Finish.FILTER: "content_filter",
        Finish.OTHER: "stop",
    }


# ---- reading ------------------------------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match="input_audio"):
        read_messages([{"role": "user", "content": [{"type": "input_audio"}]}])


@pytest.mark.parametrize(
    ("role", "read"), [("system", "system"), ("function", "tool"), ("agent", "assistant"), ("judge", "user")]
)
def test_every_role_has_one_of_ours(role: str, read: str):
    assert read_message({"role": role, "content": "x"}).role == read


@pytest.mark.parametrize(
    ("content", "text", "images"),
    [
        ("a", "a", ()),
        (None, "", ()),
        (7, "7", ()),
        (["a", {"type": "text", "text": "b"}], "a\nb", ()),
        ([{"type": "image_url", "image_url": PICTURE}, "b"], "b", (Image(PICTURE, 0),)),
    ],
)
def test_content_is_a_text_nothing_or_parts(content: object, text: str, images: tuple[Image, ...]):
    assert read_message({"role": "user", "content": content}) == Message("user", text, images=images)


def test_the_address_of_a_picture_is_a_text_or_in_an_object():
    assert get_image_url({"image_url": PICTURE}) == get_image_url({"image_url": {"url": PICTURE}}) == PICTURE
    assert get_image_url({"image_url": {"url": 3}}) == 3 and get_image_url({"type": "file"}) is None


@pytest.mark.parametrize(("value", "text"), [("{}", "{}"), (None, ""), ({"a": 1}, '{"a":1}'), ([1], "[1]"), ("", "")])
def test_arguments_are_text(value: object, text: str):
    assert read_arguments(value) == text


@pytest.mark.parametrize("text", ["", "[1]", "null", "no", '{"a":', "[" * 100_000])
def test_arguments_that_are_no_object(text: str):
    assert decode_arguments(text) is None and decode_arguments('{"a":1}') == {"a": 1}


def test_tools_are_read_with_and_without_their_frame():
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert read_tools([{"type": "function", "function": function}]) == read_tools([function])
    assert read_tools([{"name": "f"}]) == [ToolSpec("f", "", {"type": "object"})] and read_tools(None) == []
    assert get_function({"function": function}) == get_function(function) == function


# ---- both ---------------------------------------------------------------------------------------------------------

texts = st.text(max_size=8)
calls = st.lists(st.builds(Call, texts, texts, texts), max_size=3).map(tuple)
thoughts = st.none() | st.builds(Reasoning, st.text(min_size=1, max_size=8), st.just("reasoning_content"))
messages = st.one_of(
    st.builds(Message, st.sampled_from(["system", "user"]), texts),
    st.builds(Message, st.just("assistant"), texts, calls, reasoning=thoughts),
    st.builds(Message, st.just("tool"), texts, call_id=texts),
)


@given(messages)
def test_what_is_written_is_read_as_the_same(message: Message):
    assert read_message(write_message(message)) == message


@given(st.builds(ToolSpec, texts, texts, st.just({"type": "object", "properties": {}})))
def test_tools_that_are_written_are_read_as_the_same(tool: ToolSpec):
    assert read_tools([write_tool(tool)]) == [tool]
