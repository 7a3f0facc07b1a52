"""What all APIs share: errors that name the field, text parts, events, streams."""

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway_kit import Kit

from ludus.gateway.chat_api import ChatStream
from ludus.gateway.dialect import (
    Answer,
    BadRequest,
    ErrorReply,
    ParsedRequest,
    ReadCache,
    decode,
    drop_unset,
    read_content,
    read_text,
    write_event,
)
from ludus.gateway.messages_api import MessageStream
from ludus.gateway.responses_api import ResponseStream
from ludus.models.reply_pieces import Piece
from ludus.types import Call, Completion, Image, Message, Reasoning


class Inner(msgspec.Struct):
    number: int


class Body(msgspec.Struct):
    items: list[Inner]


BODY = msgspec.json.Decoder(Body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is empty"),
        (b"{", "the body is not JSON: "),
        (b"{}", "items: this field is needed"),
        (b'{"items": [{}]}', "items[0].number: this field is needed"),
        (b'{"items": [{"number": "x"}]}', "items[0].number: expected int, got str"),
        (b"[]", "the body: expected object, got array"),
    ],
)
def test_a_body_of_another_form_names_the_field(body, message):
    with pytest.raises(BadRequest) as caught:
        decode(BODY, body)
    assert str(caught.value).startswith(message)
    assert caught.value.status == 400


def test_a_body_that_is_nested_too_deep_is_refused():
    with pytest.raises(BadRequest, match="the body is not JSON"):
        decode(msgspec.json.Decoder(), b"[" * 100_000)


def test_a_field_that_is_decoded_later_is_named_too():
    with pytest.raises(BadRequest, match=r"^tools\[1\]\.number: expected int"):
        decode(msgspec.json.Decoder(list[Inner]), b'[{"number": 1}, {"number": null}]', "tools")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
    ],
)
def test_content_is_text_or_parts_of_text(content, text):
    assert read_text(content, "content") == text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (5, "content: expected a text or a list of parts, got int"),
        ([{"type": "image_url"}], "content[0]: only text can be sent to this model, not 'image_url'"),
        ([{"type": "text", "text": 1}], "content[0].text: expected str"),
        (["x"], "content[0]: only text can be sent"),
    ],
)
def test_other_content_is_refused(content, message):
    with pytest.raises(BadRequest) as caught:
        read_text(content, "content")
    assert str(caught.value).startswith(message)


def test_the_cache_reads_the_same_bytes_once_and_forgets_the_oldest():
    seen = []

    def read(raw: bytes) -> str:
        seen.append(raw)
        return raw.decode()

    cache = ReadCache(size=2)
    assert [cache.get(read, raw) for raw in (b"a", b"a", b"b", b"a", b"c", b"a")] == ["a", "a", "b", "a", "c", "a"]
    assert seen == [b"a", b"b", b"c", b"a"]


def test_events_and_unset_values():
    assert write_event(b"{}") == b"data: {}\n\n"
    assert write_event(b"{}", "ping") == b"event: ping\ndata: {}\n\n"
    assert drop_unset(a=0, b=None, c="") == {"a": 0, "c": ""}


def test_only_a_closed_session_may_be_retried():
    assert ErrorReply(503, "the session was closed", "closed").may_retry
    assert not ErrorReply(502, "the model failed", "model").may_retry


# ---- streams ------------------------------------------------------------------------------------------------------


def cut(dice: random.Random, text: str) -> list[str]:
    """A text in pieces."""
    parts: list[str] = []
    while text:
        size = dice.randint(1, len(text))
        parts.append(text[:size])
        text = text[size:]
    return parts


def make_pieces(dice: random.Random, message: Message, *, mixed: bool) -> list[Piece]:
    """The beginning of a message in pieces, with the parts of its calls one after the other or mixed."""
    thoughts = [Piece(thought=part) for part in cut(dice, message.reasoning.text)] if message.reasoning else []
    texts = [Piece(part) for part in cut(dice, message.content)]
    calls: list[list[Piece]] = []
    for number, call in enumerate(message.calls):
        begin = Piece(call=number, id=call.id, name=call.name)
        calls.append([begin, *(Piece(call=number, arguments=part) for part in cut(dice, call.arguments))])
    flat = [piece for call in calls for piece in call]
    if mixed:
        flat = []
        while any(calls):
            flat.append(dice.choice([call for call in calls if call]).pop(0))
    pieces = [*thoughts, *texts, *flat]
    return pieces[: dice.randint(0, len(pieces))]


def read_stream(api: str, body: bytes) -> dict[str, Any]:
    """What a client makes of a stream."""
    values = [value for _, value in Kit.read_events(body) if value != "[DONE]"]
    found: dict[str, Any] = {"text": "", "thought": "", "calls": {}}

    def add_call(place: object, name: str = "", arguments: str = "") -> None:
        known = found["calls"].setdefault(place, ["", ""])
        known[0] += name
        known[1] += arguments

    for value in values:
        match api, value:
            case "chat", {"choices": [{"delta": delta}]}:
                found["text"] += delta.get("content") or ""
                found["thought"] += delta.get("reasoning_content", "")
                for made in delta.get("tool_calls", ()):
                    add_call(made["index"], **{key: made["function"].get(key, "") for key in ("name", "arguments")})
            case "messages", {"type": "content_block_start", "content_block": {"type": "tool_use"} as block}:
                add_call(value["index"], block["name"])
            case "messages", {"type": "content_block_delta", "delta": delta}:
                found["text"] += delta.get("text", "")
                found["thought"] += delta.get("thinking", "")
                if "partial_json" in delta:
                    add_call(value["index"], arguments=delta["partial_json"])
            case "responses", {"type": "response.output_text.delta"}:
                found["text"] += value["delta"]
            case "responses", {"type": "response.reasoning_summary_text.delta"}:
                found["thought"] += value["delta"]
            case "responses", {"type": "response.output_item.added", "item": {"type": "function_call"} as item}:
                add_call(value["output_index"], item["name"])
            case "responses", {"type": "response.function_call_arguments.delta"}:
                add_call(value["output_index"], arguments=value["delta"])
            case _:
                pass
    return found | {"calls": [tuple(call) for call in found["calls"].values()]}


WRITERS = {"chat": ChatStream, "messages": MessageStream, "responses": ResponseStream}


@pytest.mark.parametrize("api", WRITERS)
@given(seed=st.integers(0, 10**9))
def test_a_stream_is_the_whole_message_however_it_comes_in(api, seed):
    dice = random.Random(seed)
    words = 'Wort 世界 \n"x" '
    calls = tuple(
        Call(f"c{n}", f"f{n}", json.dumps({"a": dice.choice(words), "n": n})) for n in range(dice.randint(0, 3))
    )
    thought = Reasoning(words.strip() * dice.randint(1, 3), "reasoning_content") if dice.random() < 0.5 else None
    message = Message("assistant", words.strip() * dice.randint(0, 3), calls, reasoning=thought)
    answer = Answer("1", "m", 0, ParsedRequest([Message("user", "hi")]))
    writer = WRITERS[api](answer)
    body = writer.start()
    for piece in make_pieces(dice, message, mixed=dice.random() < 0.5):
        body += writer.write(0, [piece])
        if dice.random() < 0.2:
            body += writer.ping()
    body += writer.finish(msgspec.structs.replace(answer, completions=[Completion(message)]))
    seen = read_stream(api, body)
    assert seen["text"] == message.content
    assert seen["thought"] == ("" if thought is None else thought.text)
    assert sorted(seen["calls"]) == sorted((call.name, call.arguments) for call in calls)


PICTURE = "data:image/png;base64,iVBORw0KGgo="


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "image_url", "image_url": PICTURE},
        {"type": "input_image", "image_url": PICTURE},
    ],
)
def test_pictures_keep_their_place_in_the_text(part):
    content = [{"type": "text", "text": "ab"}, part, {"type": "text", "text": "c"}]
    assert read_content(content, "content") == ("abc", (Image(PICTURE, 2),))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "input_image", "file_id": "f"}, "content[0].image_url: expected the picture as a URL"),
        (
            {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
            "content[0].image_url: expected an address",
        ),
        ({"type": "input_audio", "input_audio": {}}, "content[0]: only text"),
    ],
)
def test_a_picture_that_cannot_be_used_is_refused_by_its_place(part, message):
    with pytest.raises(BadRequest) as caught:
        read_content([part], "content")
    assert str(caught.value).startswith(message)
