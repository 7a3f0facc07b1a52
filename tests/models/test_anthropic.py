import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.models.anthropic import DEFAULT_MAX_TOKENS, AnthropicModel, build_request, parse_reply
from ludus.models.server import BadReply, Endpoint, Price
from ludus.models.settings import AnthropicSettings
from ludus.types import Call, Completion, Finish, Message, Reasoning, Sampling, ToolSpec, Usage

ADD = ToolSpec("add", "Add.", {"type": "object"})
USER = [Message("user", "hi")]
PLAIN = Sampling()


def sent(messages=USER, tools=(), sampling=PLAIN, *, cache=False, **options):
    return json.loads(build_request(messages, tools, sampling, "m", cache=cache, **options))


def read(*content, stop="end_turn", price=Price(), **reply) -> Completion:
    body = {"type": "message", "content": list(content), "stop_reason": stop, "model": "served", **reply}
    return parse_reply(json.dumps(body).encode(), price)


def text(words):
    return {"type": "text", "text": words}


def use(id="t1", name="add", **input):
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def thought(words="hmm"):
    return {"type": "thinking", "thinking": words, "signature": "sig-" + words}


# ---- what is sent -------------------------------------------------------------------------------------------------


def test_the_least_request_has_a_limit():
    assert sent(sampling=Sampling(temperature=None)) == {
        "model": "m",
        "max_tokens": DEFAULT_MAX_TOKENS,
        "messages": [{"role": "user", "content": [text("hi")]}],
    }


def test_every_setting_is_sent_and_the_seed_is_not():
    sampling = Sampling(
        temperature=0.5,
        top_p=0.9,
        max_tokens=7,
        stop=("a",),
        seed=3,
        tool_choice="required",
        extra={"thinking": {"type": "enabled", "budget_tokens": 1024}},
    )
    body = sent(tools=[ADD], sampling=sampling, omit=["top_p"])
    del body["messages"], body["model"]
    assert body == {
        "max_tokens": 7,
        "tools": [{"name": "add", "description": "Add.", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any"},
        "temperature": 0.5,
        "stop_sequences": ["a"],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }


def test_a_conversation_alternates_and_results_are_the_users():
    messages = [
        Message("system", "be good"),
        Message("system", "and brief"),
        Message("user", "2+3?"),
        Message("assistant", "I add.", (Call("t1", "add", '{"a": 1}'), Call("t2", "add", "{"))),
        Message("tool", "5", call_id="t1"),
        Message("tool", "", call_id="t2"),
        Message("user", "and now?"),
        Message("assistant", ""),
        Message("user", "well?"),
    ]
    body = sent(messages)
    assert body["system"] == "be good\n\nand brief"
    assert body["messages"] == [
        {"role": "user", "content": [text("2+3?")]},
        {
            "role": "assistant",
            "content": [text("I add."), use("t1", a=1), use("t2", invalid_json="{")],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "5"},
                {"type": "tool_result", "tool_use_id": "t2", "content": ""},
                text("and now?"),
                text("well?"),
            ],
        },
    ]


def test_the_end_of_the_request_is_marked_for_the_cache():
    messages = [*USER, Message("assistant", "", (Call("t1", "add", "{}"),)), Message("tool", "5", call_id="t1")]
    body = sent(messages, cache=True)
    marked = [b for m in body["messages"] for b in m["content"] if "cache_control" in b]
    assert marked == [body["messages"][-1]["content"][-1]]
    assert marked[0]["cache_control"] == {"type": "ephemeral"}


def test_the_system_text_is_marked_for_rollouts_of_other_tasks():
    body = sent([Message("system", "be good"), *USER], cache=True)
    assert body["system"] == [{"type": "text", "text": "be good", "cache_control": {"type": "ephemeral"}}]
    assert "system" not in sent(USER, cache=True)


def test_thinking_cannot_be_marked_for_the_cache():
    message = Message("assistant", "", reasoning=Reasoning("hmm", "thinking", [thought()]))
    assert sent([*USER, message], cache=True)["messages"][-1]["content"] == [thought()]


# ---- what comes back ----------------------------------------------------------------------------------------------


def test_a_reply():
    usage = {"input_tokens": 10, "output_tokens": 5, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 20}
    got = read(text("a"), text("b"), use(a=1), stop="tool_use", usage=usage)
    message = Message("assistant", "ab", (Call("t1", "add", '{"a": 1}'),))
    assert got == Completion(message, Finish.CALLS, Usage(33, 5, 20), "served")


def test_cached_and_written_tokens_have_their_own_prices():
    usage = {"input_tokens": 1, "output_tokens": 0, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 4}
    price = Price(prompt=1e6, cached=1e5, written=1.25e6, completion=5e6)
    assert read(text("a"), usage=usage, price=price).usage.dollars == pytest.approx(1 + 2.5 + 0.4)


@pytest.mark.parametrize(
    ("stop", "finish"),
    [
        ("end_turn", Finish.STOP),
        ("stop_sequence", Finish.STOP),
        ("tool_use", Finish.CALLS),
        ("max_tokens", Finish.LENGTH),
        ("model_context_window_exceeded", Finish.LENGTH),
        ("refusal", Finish.FILTER),
        ("pause_turn", Finish.OTHER),
        (None, Finish.OTHER),
    ],
)
def test_stop_reasons(stop, finish):
    assert read(text("a"), stop=stop).finish is finish


@pytest.mark.parametrize("data", [b"", b"<html>", b'{"content": [', b'{"content": 3}', b"[]"])
def test_what_is_no_reply(data):
    with pytest.raises(ValueError):
        parse_reply(data)
    with pytest.raises(BadReply, match="no content"):
        parse_reply(b"{}")


def test_thinking_goes_back_as_it_came():
    hidden = {"type": "redacted_thinking", "data": "xyz"}
    message = read(thought("a"), hidden, text("so"), use(a=1)).message
    assert message.reasoning == Reasoning("a", "thinking", [thought("a"), hidden])
    assert message.content == "so"
    assert sent([message])["messages"][0]["content"] == [thought("a"), hidden, text("so"), use(a=1)]


def test_thinking_between_other_blocks_keeps_its_place():
    blocks = [thought("a"), text("so"), thought("b"), use(a=1)]
    message = read(*blocks).message
    assert (message.content, message.calls) == ("so", (Call("t1", "add", '{"a": 1}'),))
    assert message.reasoning is not None
    assert message.reasoning.text == "a\nb"
    assert sent([message])["messages"][0]["content"] == blocks


def test_another_dialects_reasoning_is_left_out():
    message = Message("assistant", "hi", reasoning=Reasoning("hmm", "reasoning_content"))
    assert sent([message])["messages"] == [{"role": "assistant", "content": [text("hi")]}]


names = st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)
objects = st.dictionaries(st.text(max_size=5), st.integers(-9, 9) | st.text(max_size=5), max_size=3)
calls = st.lists(st.builds(Call, names, names, objects.map(json.dumps)), max_size=3).map(tuple)
thoughts = st.lists(st.text(min_size=1, max_size=9).map(thought), min_size=1, max_size=2).map(
    lambda raw: Reasoning("\n".join(block["thinking"] for block in raw), "thinking", raw)
)


@given(st.text(max_size=20), calls, st.none() | thoughts)
def test_an_assistant_message_survives_the_wire(content, calls, reasoning):
    message = Message("assistant", content, calls, reasoning=reasoning)
    wire = sent([message])["messages"]
    blocks = wire[0]["content"] if wire else []
    got = read(*blocks).message
    assert [json.loads(c.arguments) for c in got.calls] == [json.loads(c.arguments) for c in calls]
    assert (got.content, got.reasoning) == (content, reasoning)
    assert sent([got])["messages"] == wire


# ---- the model ----------------------------------------------------------------------------------------------------


async def test_a_call_from_end_to_end(kit):
    reply = {"content": [text("hello")], "stop_reason": "end_turn", "model": "served"}
    async with kit.Loopback(kit.sequence(reply)) as server:
        model = AnthropicModel(AnthropicSettings(name="claude"), Endpoint(server.url, api_key="sk-ant"))
        got = await model.complete(USER, [ADD], Sampling())
        await model.close()
        got, (request,) = got, server.requests
    assert got.message.content == "hello"
    assert (request.method, request.path) == ("POST", "/v1/messages")
    assert request.headers["x-api-key"] == "sk-ant"
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert request.json["model"] == "claude"


async def test_overload_is_retried(kit):
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    time = kit.FakeTime()
    reply = {"content": [text("hello")], "stop_reason": "end_turn"}
    async with kit.Loopback(kit.sequence(kit.response(error, 529), reply)) as server:
        model = AnthropicModel(AnthropicSettings(base_url=server.url, name="claude"), timing=time.timing)
        got = await model.complete(USER, [], Sampling())
        await model.close()
        got, requests, slept = got, len(server.requests), time.slept
    assert (got.message.content, requests, slept) == ("hello", 2, [0.25])
