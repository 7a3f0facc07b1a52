import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import ModelError
from ludus.models.openai import ChatModel, build_request, parse_reply, sanitize_arguments, split_think
from ludus.models.server import BadReply, Endpoint, Price
from ludus.models.settings import AzureSettings, OpenAISettings
from ludus.types import Call, Completion, Finish, Message, Reasoning, Sampling, ToolSpec, Usage

ADD = ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})
USER = [Message("user", "hi")]


PLAIN = Sampling()


def sent(messages=USER, tools=(), sampling=PLAIN, **options):
    return json.loads(build_request(messages, tools, sampling, "m", **options))


def read(message=None, *, finish="stop", **reply) -> Completion:
    choice = {"message": {"role": "assistant", "content": "hi", **(message or {})}, "finish_reason": finish}
    return parse_reply(json.dumps({"choices": [choice], "model": "served"} | reply).encode())


# ---- what is sent -------------------------------------------------------------------------------------------------


def test_the_least_request():
    assert sent(sampling=Sampling(temperature=None)) == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_every_setting_is_sent():
    sampling = Sampling(
        temperature=0.5,
        top_p=0.9,
        max_tokens=7,
        stop=("a", "b"),
        seed=3,
        tool_choice="required",
        extra={"top_k": 5, "temperature": 0.1},
    )
    body = sent(tools=[ADD], sampling=sampling)
    del body["messages"], body["model"]
    assert body == {
        "tools": [
            {
                "type": "function",
                "function": {"name": "add", "description": "Add.", "parameters": dict(ADD.parameters)},
            }
        ],
        "tool_choice": "required",
        "temperature": 0.1,
        "top_p": 0.9,
        "max_tokens": 7,
        "stop": ["a", "b"],
        "seed": 3,
        "top_k": 5,
    }


def test_reasoning_models_have_another_name_for_the_limit_and_servers_may_refuse_fields():
    body = sent(
        sampling=Sampling(max_tokens=7, seed=1), max_tokens_field="max_completion_tokens", omit=["seed", "temperature"]
    )
    assert body["max_completion_tokens"] == 7
    assert not {"max_tokens", "seed", "temperature"} & set(body)


def test_a_tool_choice_without_tools_is_not_sent():
    assert "tool_choice" not in sent(sampling=Sampling(tool_choice="auto"))


def test_a_conversation():
    messages = [
        Message("system", "be good"),
        Message("user", "2+3?"),
        Message("assistant", "", (Call("c1", "add", '{"a": 1}'),)),
        Message("tool", "5", call_id="c1"),
    ]
    assert sent(messages)["messages"] == [
        {"role": "system", "content": "be good"},
        {"role": "user", "content": "2+3?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        ("{", '{"invalid_json":"{"}'),
        ("null", '{"invalid_json":"null"}'),
        ("[1]", '{"invalid_json":"[1]"}'),
        ('{"a": 1} trailing', '{"invalid_json":"{\\"a\\": 1} trailing"}'),
        ("[" * 5_000, '{"invalid_json":"' + "[" * 5_000 + '"}'),
        ('{"a":' * 5_000, '{"invalid_json":"' + '{\\"a\\":' * 5_000 + '"}'),
        ('{"a": "\ud800"}', '{"invalid_json":"{\\"a\\": \\"\ufffd\\"}"}'),
    ],
)
def test_arguments_in_the_history_are_always_a_json_object(arguments, expected):
    assert sanitize_arguments(arguments) == expected


def test_a_made_up_tool_name_cannot_break_the_next_request():
    calls = (Call("1", "functions.add!", "{}"), Call("2", "", "{}"), Call("3", "odd.but.offered", "{}"))
    tools = [ToolSpec("odd.but.offered", "", {})]
    (message,) = sent([Message("assistant", "", calls)], tools)["messages"]
    names = [call["function"]["name"] for call in message["tool_calls"]]
    assert names == ["functions_add_", "unnamed", "odd.but.offered"]


def test_half_a_surrogate_pair_is_replaced():
    (message,) = sent([Message("tool", "broken \ud83d emoji", call_id="c")])["messages"]
    assert message["content"] == "broken � emoji"


# ---- what comes back ----------------------------------------------------------------------------------------------


def test_a_plain_reply():
    got = read(usage={"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}})
    assert got == Completion(Message("assistant", "hi"), Finish.STOP, Usage(10, 5, 4), "served")


def test_a_reply_with_calls():
    wire = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
    got = read({"content": None, "tool_calls": wire}, finish="tool_calls")
    assert got.message == Message("assistant", "", (Call("c1", "add", '{"a": 1}'),))
    assert got.finish is Finish.CALLS


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        ({"id": "x", "function": {"name": "f", "arguments": {"a": [1]}}}, Call("x", "f", '{"a":[1]}')),
        ({"id": "x", "function": {"name": "f", "arguments": None}}, Call("x", "f", "")),
        ({"id": "x", "function": {"name": "f"}}, Call("x", "f", "")),
        ({"id": "x", "function": {"name": None, "arguments": "{"}}, Call("x", "", "{")),
    ],
)
def test_odd_calls_are_read(wire, expected):
    assert read({"tool_calls": [wire]}).message.calls == (expected,)


def test_missing_and_repeated_ids_are_replaced_by_stable_ones():
    function = {"name": "f", "arguments": "{}"}
    message = {
        "tool_calls": [{"function": function}, {"id": "", "function": function}, {"id": "a", "function": function}]
    }
    message["tool_calls"].append({"id": "a", "function": function})
    ids = [call.id for call in read(message).message.calls]
    assert len(set(ids)) == 4
    assert ids[2] == "a"
    assert all(id == "a" or (id.startswith("call_") and len(id) == 13) for id in ids)
    assert ids == [call.id for call in read(message).message.calls]


@pytest.mark.parametrize(
    ("reason", "calls", "expected"),
    [
        ("stop", False, Finish.STOP),
        ("length", False, Finish.LENGTH),
        ("content_filter", False, Finish.FILTER),
        ("tool_calls", True, Finish.CALLS),
        ("stop", True, Finish.CALLS),
        (None, True, Finish.CALLS),
        ("length", True, Finish.LENGTH),
        (None, False, Finish.OTHER),
        ("eos", False, Finish.OTHER),
        ({"type": "stop"}, False, Finish.OTHER),
    ],
)
def test_finish_reasons(reason, calls, expected):
    wire = {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]} if calls else {}
    assert read(wire, finish=reason).finish is expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, ""),
        ("", ""),
        ([{"type": "text", "text": "a"}, {"type": "other"}, {"type": "text", "text": "b"}], "ab"),
        ([], ""),
    ],
)
def test_shapes_of_content(content, expected):
    assert read({"content": content}).message.content == expected


def test_a_refusal_is_what_the_model_said():
    assert read({"content": None, "refusal": "I will not."}).message.content == "I will not."


def test_text_that_looks_like_a_call_stays_text():
    text = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    got = read({"content": text})
    assert (got.message.content, got.message.calls) == (text, ())


def test_money():
    price = Price(prompt=1.0, completion=10.0, cached=0.1)
    usage = {
        "prompt_tokens": 1_000_000,
        "completion_tokens": 100_000,
        "prompt_tokens_details": {"cached_tokens": 500_000},
    }
    reply = {"choices": [{"message": {"content": "x"}}], "usage": usage}
    assert parse_reply(json.dumps(reply).encode(), price).usage.dollars == pytest.approx(0.5 + 0.05 + 1.0)
    usage["cost"] = 0.25
    assert parse_reply(json.dumps(reply).encode()).usage.dollars == 0.25
    assert parse_reply(json.dumps(reply).encode(), price).usage.dollars == pytest.approx(1.55)


def test_tokens_counted_in_floats_are_whole_numbers():
    usage = {"prompt_tokens": 12.0, "completion_tokens": 3.0, "prompt_tokens_details": {"cached_tokens": 2.0}}
    reply = {"choices": [{"message": {"content": "x"}}], "usage": usage}
    assert repr(parse_reply(json.dumps(reply).encode()).usage) == repr(Usage(12, 3, 2))


@pytest.mark.parametrize(
    ("reply", "words", "status"),
    [
        ({}, "no choices", None),
        ({"choices": []}, "no choices", None),
        ({"choices": [{}]}, "no choices", None),
        ({"error": "out of memory"}, "out of memory", None),
        ({"error": {"message": "upstream died", "code": 502}}, "upstream died", 502),
        ({"choices": [{"message": {}, "finish_reason": "error", "error": {"message": "cut"}}]}, "cut", None),
    ],
)
def test_json_that_is_no_completion(reply, words, status):
    with pytest.raises(BadReply, match=words) as caught:
        parse_reply(json.dumps(reply).encode())
    assert caught.value.status == status


@pytest.mark.parametrize(
    "data", [b"", b"<html>", b'{"choices": [', b"[]", b'{"choices": 3}', b'{"choices": [{"message": "\xff"}]}']
)
def test_what_is_not_a_reply_is_a_value_error(data):
    with pytest.raises(ValueError):
        parse_reply(data)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "name", "code"]), inner),
    max_leaves=6,
)
MESSAGE_FIELDS = ["content", "tool_calls", "reasoning", "reasoning_content", "reasoning_details", "refusal"]


@given(
    message=st.dictionaries(st.sampled_from(MESSAGE_FIELDS), anything),
    finish=anything,
    reply=st.dictionaries(st.sampled_from(["usage", "error", "model"]), anything),
)
def test_no_reply_breaks_the_reader(message, finish, reply):
    with suppress(ValueError):  # the one way to refuse
        assert isinstance(read(message, finish=finish, **reply), Completion)


# ---- reasoning ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_fields_go_back_where_they_came_from(field):
    message = read({field: "hmm"}).message
    assert message.reasoning == Reasoning("hmm", field)
    assert sent([message])["messages"] == [{"role": "assistant", "content": "hi", field: "hmm"}]


def test_reasoning_details_go_back_whole():
    details = [{"type": "reasoning.text", "text": "a", "signature": "s"}, {"type": "reasoning.encrypted", "data": "x"}]
    message = read({"reasoning": "a", "reasoning_details": details}).message
    assert message.reasoning == Reasoning("a", "reasoning_details", details)
    assert sent([message])["messages"] == [{"role": "assistant", "content": "hi", "reasoning_details": details}]
    summary = [{"type": "reasoning.summary", "summary": "in short"}]
    assert read({"reasoning_details": summary}).message.reasoning == Reasoning("in short", "reasoning_details", summary)


@pytest.mark.parametrize("value", ["", None, [], {}, 3])
def test_empty_or_odd_reasoning_is_none(value):
    assert read({"reasoning_content": value, "reasoning": value, "reasoning_details": value}).message.reasoning is None


@pytest.mark.parametrize(
    ("content", "text", "rest"),
    [
        ("<think>\nhmm\n</think>\n\nyes", "hmm", "yes"),
        ("<think>hmm</think>yes", "hmm", "yes"),
        ("  <think>hmm</think>  yes ", "hmm", "yes "),
        ("hmm</think>yes", "hmm", "yes"),
        ("<think>cut while thin", "cut while thin", ""),
        ("<think></think>yes", "", "yes"),
        ("<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
    ],
)
def test_think_blocks(content, text, rest):
    message = read({"content": content}).message
    assert message.reasoning is not None
    assert (message.reasoning.text, message.content) == (text, rest)
    assert sent([message])["messages"][0]["content"] == content


@pytest.mark.parametrize("content", ["no thought", "first <think>then</think>", "", "a <think> b"])
def test_what_is_no_think_block_at_the_start_stays(content):
    assert split_think(content) == (None, content)


def test_another_dialects_thinking_is_left_out():
    message = Message("assistant", "hi", reasoning=Reasoning("hmm", "thinking", [{"type": "thinking"}]))
    assert sent([message])["messages"] == [{"role": "assistant", "content": "hi"}]


# ---- there and back -----------------------------------------------------------------------------------------------

texts = st.text(max_size=30) | st.sampled_from(["<think>", "</think>", "<think>a</think>\n\nb", " x", "\n"])
json_values = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5), st.lists, max_leaves=5)
objects = st.dictionaries(st.text(max_size=5), json_values, max_size=3)
names = st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)
calls = st.lists(st.builds(Call, names, names, objects.map(json.dumps)), max_size=3, unique_by=lambda c: c.id).map(
    tuple
)
reasonings = (
    st.builds(Reasoning, st.text(min_size=1, max_size=20), st.sampled_from(["reasoning_content", "reasoning"]))
    | st.lists(objects.filter(bool), min_size=1, max_size=2).map(lambda raw: Reasoning("", "reasoning_details", raw))
    | st.builds(Reasoning, st.text(max_size=20), st.just("think"))
)
assistants = st.builds(Message, st.just("assistant"), texts, calls, reasoning=st.none() | reasonings)
others = st.builds(Message, st.sampled_from(["system", "user"]), texts) | st.builds(
    Message, st.just("tool"), texts, call_id=names
)


@given(assistants)
def test_an_assistant_message_survives_the_wire(message):
    (wire,) = sent([message])["messages"]
    got = read(wire).message
    assert sent([got])["messages"] == [wire]
    assert got.calls == message.calls
    if "think>" not in message.content and (message.reasoning is None or message.reasoning.source != "think"):
        assert got.content == message.content
        assert (got.reasoning and got.reasoning.source) == (message.reasoning and message.reasoning.source)


@given(others)
def test_other_messages_survive_the_wire(message):
    (wire,) = sent([message])["messages"]
    assert Message(wire["role"], wire["content"], call_id=wire.get("tool_call_id", "")) == message


# ---- the model ----------------------------------------------------------------------------------------------------


async def complete(kit, handler, api_key="", **settings):
    async with kit.Loopback(handler) as server:
        model = ChatModel(OpenAISettings(name="m", **settings), Endpoint(server.url + "/v1/", api_key=api_key))
        try:
            return await model.complete(USER, [ADD], Sampling(max_tokens=7)), server.requests
        finally:
            await model.close()


async def test_a_call_from_end_to_end(kit):
    got, (request,) = await complete(
        kit, kit.sequence(kit.chat_reply("hello")), api_key="sk-secret", price=Price(completion=2)
    )
    assert got == Completion(Message("assistant", "hello"), Finish.STOP, Usage(10, 5, dollars=1e-5), "served-model")
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == "Bearer sk-secret"
    assert request.headers["content-type"] == "application/json"
    assert request.json["model"] == "m"
    assert request.json["max_tokens"] == 7


async def test_without_a_key_none_is_sent(kit):
    _, (request,) = await complete(kit, kit.sequence(kit.chat_reply()))
    assert "authorization" not in request.headers


async def test_azure(kit):
    async with kit.Loopback(kit.sequence(kit.chat_reply())) as server:
        settings = AzureSettings(name="my-gpt", api_version="2024-10-21")
        model = ChatModel(settings, Endpoint(server.url, api_key="k"))
        await model.complete(USER, [], Sampling())
        await model.close()
        (request,) = server.requests
    assert request.path == "/openai/deployments/my-gpt/chat/completions?api-version=2024-10-21"
    assert request.headers["api-key"] == "k"
    assert "authorization" not in request.headers


async def test_the_users_headers_win(kit):
    _, (request,) = await complete(
        kit, kit.sequence(kit.chat_reply()), api_key="k", headers={"authorization": "Custom x", "X-Title": "ludus"}
    )
    assert request.headers["authorization"] == "Custom x"
    assert request.headers["x-title"] == "ludus"


def test_a_model_without_servers_is_refused():
    with pytest.raises(ValueError, match="at least one server"):
        ChatModel(OpenAISettings(name="m"))


async def test_a_key_that_cannot_be_sent_is_reported_without_showing_it(kit):
    with pytest.raises(ModelError, match="line break") as caught:
        await complete(kit, kit.sequence(kit.chat_reply()), api_key="sk-secret\n")
    assert "sk-secret" not in str(caught.value)
    assert not caught.value.retryable
