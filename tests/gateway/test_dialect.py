"""What all APIs share: errors that name the field, text parts, events."""

import msgspec
import pytest

from ludus.gateway.dialect import BadRequest, ErrorReply, ReadCache, decode, drop_unset, read_text, write_event


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
