"""Pictures: from a file or a client to a model, into the run directory and onto its page."""

import base64
import json
import struct
import zlib
from pathlib import Path

import pytest
from tests.build import make_rollout, make_task

from ludus.encoding import to_json
from ludus.errors import ConfigError, Unsupported
from ludus.images import (
    decode_url,
    describe_bad_url,
    encode_image,
    extract_images,
    read_image,
    refuse_images,
    restore_images,
    split_parts,
)
from ludus.models.anthropic import build_request as build_anthropic
from ludus.models.openai import build_request as build_openai
from ludus.store import RunDir
from ludus.types import Image, Message, Sampling


def make_png() -> bytes:
    """A picture of one red pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b"")
    )


PNG = encode_image(make_png())
DATA = base64.b64encode(make_png()).decode()
WEB = "https://example.org/cat.jpg"


def test_a_file_becomes_a_data_url(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(make_png())
    assert read_image(tmp_path / "a.png") == PNG == f"data:image/png;base64,{DATA}"
    assert decode_url(PNG) == ("image/png", DATA)
    assert decode_url(WEB) is None


def test_what_is_no_picture_is_refused_with_its_name(tmp_path: Path):
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(ConfigError, match=r"a\.txt is no PNG"):
        read_image(tmp_path / "a.txt")
    with pytest.raises(ConfigError, match=r"b\.png cannot be read"):
        read_image(tmp_path / "b.png")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (PNG, ""),
        (WEB, ""),
        ("file:///etc/passwd", "expected an address"),
        ("data:image/svg+xml;base64,AAAA", "expected an address"),
        ("data:image/png;base64,AAA", "the data is not base64"),
    ],
)
def test_the_url_of_a_picture_is_checked(url, why):
    assert describe_bad_url(url).startswith(why) if why else describe_bad_url(url) == ""


def test_text_and_pictures_keep_their_order():
    message = Message("user", "before after", images=(Image(PNG, 7), Image(WEB, 12)))
    assert list(split_parts(message)) == ["before ", Image(PNG, 7), "after", Image(WEB, 12)]
    assert list(split_parts(Message("user", "", images=(Image(PNG),)))) == [Image(PNG)]


def test_models_that_take_only_text_refuse_by_name():
    refuse_images([Message("user", "hi")], "it")
    with pytest.raises(Unsupported, match=r"messages\[1\]: it takes only text"):
        refuse_images([Message("user", "hi"), Message("user", "look", images=(Image(PNG),))], "it")


RESULT = Message("tool", "two files", call_id="c", images=(Image(PNG, 9),))
QUESTION = Message("user", "What is it?", images=(Image(PNG, 11), Image(WEB, 11)))


def test_a_chat_server_gets_pictures_of_tools_in_a_message_after_the_results():
    other = Message("tool", "more", call_id="d")
    body = json.loads(build_openai([QUESTION, RESULT, other, Message("user", "so?")], (), Sampling(), "m"))
    picture = {"type": "image_url", "image_url": {"url": PNG}}
    asked, one, two, shown, last = body["messages"]
    assert asked["content"] == [
        {"type": "text", "text": "What is it?"},
        picture,
        {"type": "image_url", "image_url": {"url": WEB}},
    ]
    assert (one["content"], two["content"]) == ("two files", "more")
    assert shown == {"role": "user", "content": [picture]}
    assert last["content"] == "so?"


def test_anthropics_api_gets_pictures_as_blocks():
    body = json.loads(build_anthropic([QUESTION, RESULT], (), Sampling(), "m", cache=False))
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
    (turn,) = body["messages"]
    text, one, two, result = turn["content"]
    assert (text["text"], one) == ("What is it?", picture)
    assert two["source"] == {"type": "url", "url": WEB}
    assert result["content"] == [{"type": "text", "text": "two files"}, picture]


def test_a_picture_in_json_becomes_a_file_and_a_text_about_one_does_not():
    saved = {}
    text = to_json({"url": "x", "said": f'"url":"{PNG}"', "content": PNG})
    assert extract_images(text, saved.__setitem__) == text
    body = extract_images(to_json([Image(PNG, 3)]), saved.__setitem__)
    ((name, data),) = saved.items()
    assert data == make_png()
    assert json.loads(body) == [{"url": name, "at": 3}]
    assert restore_images(body, saved.__getitem__) == to_json([Image(PNG, 3)])
    assert restore_images(to_json({"said": f'["{name}"]', "content": name}), saved.__getitem__).count(PNG.encode()) == 0


def test_a_run_directory_has_each_picture_once(tmp_path: Path):
    task = make_task("a", images=(PNG,))
    with RunDir.open(tmp_path / "run", {}) as run:
        for key in ("one", "two"):
            run.put(key, make_rollout(task=task, opening=(Message("user", "hi", images=(Image(PNG, 2),)),)))
        run.append("sessions.jsonl", to_json({"messages": [QUESTION]}))
        stored = run.get("one")
        assert stored is not None
        whole = run.restore_images(stored)
    assert (whole.task, whole.opening[0].images) == (task, (Image(PNG, 2),))
    (file,) = (tmp_path / "run" / "images").iterdir()
    assert file.read_bytes() == make_png()
    assert stored is not None
    assert stored.opening[0].images == (Image(f"images/{file.name}", 2),)
    assert stored.task.images == (f"images/{file.name}",)
    assert DATA not in (tmp_path / "run" / "sessions.jsonl").read_text()
    assert DATA.encode() not in (tmp_path / "run" / "store.sqlite").read_bytes()
