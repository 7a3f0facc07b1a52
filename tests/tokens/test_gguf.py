"""Tokenizers from the metadata of GGUF files."""

import json
import struct

import pytest

from ludus.errors import ConfigError
from ludus.tokens.gguf import build_tokenizer, read_metadata
from ludus.tokens.tokenizer import load_tokenizer

TEXTS = ["", "Hello", "  Grüße, 世界 \U0001f600\n\n12345 don't", "<|im_start|>user\nx<|im_end|>\n"]


def pack_value(value):
    if isinstance(value, str):
        data = value.encode()
        return 8, struct.pack("<Q", len(data)) + data
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    kind = pack_value(value[0])[0]
    return 9, struct.pack("<IQ", kind, len(value)) + b"".join(pack_value(each)[1] for each in value)


def write_gguf(path, pairs, version=3):
    data = b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs))
    for key, value in pairs.items():
        kind, body = pack_value(value)
        data += struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + body
    path.write_bytes(data)
    return path


@pytest.fixture
def pairs(tokens):
    """The small vocabulary, as a GGUF file would hold it."""
    rust = json.loads(tokens.tokenizer._rust.to_str())
    vocabulary = {**rust["model"]["vocab"], **{token["content"]: token["id"] for token in rust["added_tokens"]}}
    texts = sorted(vocabulary, key=vocabulary.get)
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [3 if t in ("<s>", "</s>", "<|im_start|>", "<|im_end|>") else 1 for t in texts],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in rust["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": vocabulary["<s>"],
        "tokenizer.ggml.eos_token_id": vocabulary["<|im_end|>"],
        "tokenizer.chat_template": "G",
    }


def test_a_gguf_file_holds_a_tokenizer(tokens, pairs, tmp_path):
    shipped = load_tokenizer(write_gguf(tmp_path / "m.gguf", pairs))
    assert shipped.templates == {"default": "G"}
    assert shipped.tokens == {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    for text in TEXTS:
        assert shipped.tokenizer.encode(text) == tokens.tokenizer.encode(text)


def test_metadata_of_every_kind_is_read(pairs, tmp_path):
    found = read_metadata(write_gguf(tmp_path / "m.gguf", {**pairs, "nested": [[1, 2], [3]]}))
    assert found["nested"] == [[1, 2], [3]]
    assert found["tokenizer.ggml.add_bos_token"] is False


@pytest.mark.parametrize("rules", ["smollm", "qwen2", "llama-bpe", "llama3", "default"])
def test_known_rules_are_built(pairs, rules):
    tokenizer = build_tokenizer({**pairs, "tokenizer.ggml.pre": rules})
    assert tokenizer.decode(tokenizer.encode("Grüße 12").ids) == "Grüße 12"


@pytest.mark.parametrize("change", [{"tokenizer.ggml.model": "llama"}, {"tokenizer.ggml.pre": "unheard-of"}])
def test_rules_that_are_not_known_are_refused_with_the_way_out(pairs, change):
    with pytest.raises(ConfigError, match=r"tokenizer\.json of the same model"):
        build_tokenizer({**pairs, **change})


@pytest.mark.parametrize(
    "data", [b"", b"GGML" + bytes(64), b"GGUF" + bytes(64), b"GGUF\x03\x00\x00\x00" + b"\xff" * 40]
)
def test_a_file_that_is_not_gguf_is_a_config_error(tmp_path, data):
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(ConfigError, match="cannot be read as a GGUF file"):
        load_tokenizer(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer.ggml.tokens": None},
        {"tokenizer.ggml.tokens": [1, 2]},
        {"tokenizer.ggml.merges": "a b"},
        {"tokenizer.ggml.merges": ["Ġ nowhere"]},
        {"tokenizer.ggml.merges": ["nospace"]},
        {"tokenizer.ggml.token_type": ["x"]},
    ],
    ids=str,
)
def test_a_damaged_vocabulary_is_a_config_error(pairs, change):
    with pytest.raises(ConfigError, match="the tokenizer in the GGUF file is damaged"):
        build_tokenizer({**pairs, **change})


def test_lists_in_lists_without_end_are_no_gguf(tmp_path):
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9)
    (tmp_path / "m.gguf").write_bytes(data + struct.pack("<IQ", 9, 1) * 5000)
    with pytest.raises(ConfigError, match="cannot be read as a GGUF file"):
        load_tokenizer(tmp_path / "m.gguf")


def test_a_cut_gguf_is_a_config_error(pairs, tmp_path):
    path = write_gguf(tmp_path / "m.gguf", pairs)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ConfigError, match="cannot be read as a GGUF file"):
        load_tokenizer(path)
