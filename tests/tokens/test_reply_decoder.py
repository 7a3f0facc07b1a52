"""Replies that are read while their ids come."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from tests.gateway_kit import Kit

from ludus.tokens.reply_decoder import ReplyDecoder, TextDecoder
from ludus.tokens.toy_engine import ToyEngine
from ludus.types import Sampling, ToolSpec

MODEL = Kit.token_model(lambda _: "")
CODEC = MODEL.codec
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
PARTS = ["<think>", "</think>", "\n\n", " ", "Wort", "世界", "\U0001f600", CALL, "<tool_call>", "{", "STOP", "ST", "é"]


def sample_ids(text: str, seed: int) -> tuple[int, ...]:
    toy = ToyEngine(CODEC.tokenizer, [text], seed=seed, scatter=0.4, end="<|im_end|>")
    return toy.sample((1,), Sampling(max_tokens=10_000)).ids


def split_ids(ids: tuple[int, ...], seed: int) -> list[tuple[int, ...]]:
    dice = random.Random(seed)
    groups: list[tuple[int, ...]] = []
    while ids:
        size = dice.randint(1, 4)
        groups.append(ids[:size])
        ids = ids[size:]
    return groups


@given(st.lists(st.sampled_from(PARTS), max_size=10).map("".join), st.integers(0, 10**6), st.booleans(), st.booleans())
def test_what_is_shown_is_the_beginning_of_what_the_whole_reply_gives(text, seed, thinking, offered):
    ids = sample_ids(text, seed)
    tools = (ADD,) if offered else ()
    decoder = ReplyDecoder(CODEC, tools, stop=("STOP",), thinking=thinking, first=2)
    pieces = [piece for group in split_ids(ids, seed) for piece in decoder(group)]
    whole = CODEC.parse_reply(CODEC.decode_reply(ids), tools, stop=("STOP",), thinking=thinking, first=2)
    shown = [(piece.id, piece.name, piece.arguments) for piece in pieces if piece.call >= 0]
    assert shown == [(call.id, call.name, call.arguments) for call in whole.calls[: len(shown)]]
    late = "</think>" in text and not text.lstrip().startswith("<think>")
    nested = text.count("<think>") + text.count("</think>") > 2 or (thinking and "<think>" in text)
    if not late and not nested:
        assert whole.content.startswith("".join(piece.text for piece in pieces))
        thought = "".join(piece.thought for piece in pieces)
        assert not thought or (whole.reasoning is not None and whole.reasoning.text.startswith(thought))


@given(st.text(max_size=40), st.integers(0, 10**6))
def test_all_text_is_shown_as_soon_as_its_characters_are_whole(text, seed):
    ids = sample_ids(text, seed)
    decoder = TextDecoder(CODEC.tokenizer.decode)
    shown = "".join(decoder.feed(group) for group in split_ids(ids, seed))
    whole = CODEC.tokenizer.decode(ids)
    assert whole.startswith(shown)
    if "\ufffd" not in text:
        assert shown == whole


def test_a_raw_reply_is_plain_text():
    decoder = ReplyDecoder(CODEC, raw=True)
    text = f"<think>a</think>{CALL}"
    ids = sample_ids(text, 1)
    assert "".join(piece.text for number in ids for piece in decoder((number,))) == text


def test_bytes_that_are_no_text_wait_for_the_end_of_the_reply():
    byte = CODEC.tokenizer.find_id("ÿ")  # the letter of the byte 0xff
    decoder = TextDecoder(CODEC.tokenizer.decode)
    assert "".join(decoder.feed((byte,)) for _ in range(500)) == ""


def test_a_parser_without_streams_is_not_asked_before_the_end():
    class Whole:
        name = "whole"

    codec = Kit.token_model(lambda _: "").codec
    codec.parser = Whole()
    assert ReplyDecoder(codec, (ADD,))((1, 2)) == []
    assert ReplyDecoder(codec)(codec.tokenizer.encode("the sum")) != []
