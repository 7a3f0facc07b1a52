"""Tokenizers from the files of models, and ids that do not depend on how a text is split."""

import json

import pytest

from ludus.errors import ConfigError
from ludus.tokens.tokenizer import LONG_TEXT, load_tokenizer

TEXTS = [
    "",
    "Hello",
    "  Grüße, 世界 \U0001f600\n\n12345 don't",
    "<|im_start|>user\nx<|im_end|>\n",
    "a<|im_end|><|im_end|>b",
]


@pytest.fixture
def folder(tokens, tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokens.tokenizer._rust.to_str())
    settings = {"bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>", "unk_token": None, "chat_template": "T"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def test_a_folder_and_a_file_give_tokenizer_template_and_tokens(tokens, folder):
    for source in (folder, str(folder / "tokenizer.json")):
        shipped = load_tokenizer(source)
        assert shipped.templates == {"default": "T"}
        assert shipped.tokens == {"bos_token": "<s>", "eos_token": "<|im_end|>"}
        assert shipped.tokenizer.size == tokens.tokenizer.size
        for text in TEXTS:
            ids = shipped.tokenizer.encode(text)
            assert ids == tokens.tokenizer.encode(text)
            assert shipped.tokenizer.decode(ids) == text


def test_stop_tokens_are_read_from_every_file_that_names_some(tokens, folder):
    ends = tokens.tokenizer
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [ends.find_id("<s>"), 10**9]}))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": ends.find_id("</s>")}))
    assert set(load_tokenizer(folder).tokenizer.stop_tokens.values()) == {"<s>", "</s>", "<|im_end|>"}


def test_templates_in_files_of_their_own_come_first(folder):
    (folder / "chat_template.json").write_text('{"chat_template": "J"}')
    assert load_tokenizer(folder).templates == {"default": "J"}
    (folder / "chat_template.jinja").write_text("F")
    assert load_tokenizer(folder).templates == {"default": "F"}


def test_several_templates_are_kept_by_name(folder):
    several = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "U"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert load_tokenizer(folder).templates == {"default": "D", "tool_use": "U"}


@pytest.mark.parametrize("source", ["nowhere.json", "./nowhere", "/nowhere/at/all", "word"])
def test_a_missing_file_is_a_config_error(source):
    with pytest.raises(ConfigError, match="no file or folder"):
        load_tokenizer(source)


def test_a_tokenizer_that_cannot_be_read_is_a_config_error(folder):
    (folder / "tokenizer.json").write_text('{"no": "tokenizer"}')
    with pytest.raises(ConfigError, match=r"cannot be read as a tokenizer\.json"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("tokenizer_config.json", b"{", "cannot be read as JSON"),
        ("tokenizer_config.json", b"\xff", "cannot be read as JSON"),
        ("config.json", b"[" * 100_000, "cannot be read as JSON"),
        ("tokenizer_config.json", b'{"chat_template": [{}]}', "neither a text nor a list of named templates"),
        ("tokenizer_config.json", b'{"chat_template": ["T"]}', "neither a text nor a list of named templates"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default", "template": 5}]}', "neither a text nor"),
        ("chat_template.json", b'{"chat_template": {"default": "T"}}', "neither a text nor a list of named templates"),
        ("chat_template.jinja", b"\xff\xfe", "cannot be read"),
    ],
    ids=str,
)
def test_a_bad_file_beside_the_tokenizer_is_a_config_error(folder, name, data, words):
    (folder / name).write_bytes(data)
    with pytest.raises(ConfigError, match=words):
        load_tokenizer(folder)


@pytest.mark.parametrize("value", [None, "x", -1, 10**30, 1.5, {}, [[1], None]], ids=str)
def test_stop_tokens_that_are_no_ids_are_ignored(folder, value):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    assert "<|im_end|>" in load_tokenizer(folder).tokenizer.stop_tokens.values()


def test_long_texts_have_the_same_ids_as_in_one_piece(tokens):
    part = "The quick brown fox. Grüße 世界\n" * 100
    text = f"<|im_start|>system\n{part}<|im_end|>\n<|im_start|>user\n{part}{part}<|im_end|>\n<|im_start|>assistant\n"
    assert len(text) > LONG_TEXT
    whole = tokens.tokenizer._rust.encode(text, add_special_tokens=False).ids
    assert tokens.tokenizer.encode(text) == whole
    assert tokens.tokenizer.encode(text) == whole  # now from memory
    assert tokens.tokenizer._encode_cached.cache_info().hits > 0


def test_half_a_surrogate_pair_has_the_ids_of_a_replacement(tokens):
    assert tokens.tokenizer.encode("a\ud83d b") == tokens.tokenizer.encode("a\ufffd b")
    assert tokens.tokenizer.encode("a\ud83d\ude00 b") == tokens.tokenizer.encode("a\U0001f600 b")


def test_text_after_other_text_gets_no_leading_space(tokens):
    assert tokens.tokenizer.encode_after("\nuser") == tokens.tokenizer.encode("\nuser")
    assert tokens.tokenizer.encode_after("") == []


# ---- GGUF ---------------------------------------------------------------------------------------------------------
