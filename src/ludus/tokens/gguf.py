"""The tokenizer in a GGUF file: only the metadata is read, never the weights.

The file format of llama.cpp begins with a list of typed key-value pairs. The vocabulary, the merges and the chat
template are among them. `read_metadata` reads that list. `build_tokenizer` makes a Rust tokenizer of it for byte-pair
vocabularies with known rules for splitting text. Other kinds are refused, and the error says what to do instead: a
tokenizer that is nearly right would give wrong ids. The result is compared with the engine's own tokenizer when a model
starts.
"""

import mmap
import struct
from pathlib import Path
from typing import Any, TypeVar, cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from ludus.errors import ConfigError

T = TypeVar("T")
Metadata = dict[str, Any]

_FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_CONTROL, _USER_DEFINED = 3, 4
_TYPES = "tokenizer.ggml.token_type"

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    "qwen2": _WORDS + r"\p{N}" + _REST,
    "llama-bpe": _WORDS + r"\p{N}{1,3}" + _REST,
}
_ALIASES = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "deepseek-r1-qwen": "qwen2",
    "default": "gpt-2",
    "starcoder": "smollm",
    "refact": "smollm",
}


def read_metadata(path: Path) -> Metadata:
    """Read the key-value pairs at the beginning of a GGUF file.

    Raises:
        ConfigError: it is not a GGUF file, or it is damaged.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).read_pairs()
    except (OSError, ValueError, LookupError, struct.error, RecursionError, OverflowError, MemoryError) as error:
        raise ConfigError(f"'{path}' cannot be read as a GGUF file: {error}") from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def read_pairs(self) -> Metadata:
        if self._data[:4] != b"GGUF":
            raise ValueError("it does not begin with 'GGUF'")
        self._at = 4
        version = self._read_number("I")
        if version not in (2, 3):
            raise ValueError(f"version {version} is not known")
        self._read_number("Q")  # how many tensors
        return dict(self._read_pair() for _ in range(self._read_number("Q")))

    def _read_pair(self) -> tuple[str, Any]:
        key = self._read_string()
        return key, self._read_value(self._read_number("I"))

    def _read_value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._read_string()
        if kind == _ARRAY:
            kind, count = self._read_number("I"), self._read_number("Q")
            if kind == _STRING:
                return [self._read_string() for _ in range(count)]
            if kind == _ARRAY:
                return [self._read_value(_ARRAY) for _ in range(count)]
            return list(self._read_numbers(_FIXED[kind], count))
        return self._read_number(_FIXED[kind])

    def _read_string(self) -> str:
        start = self._at + 8
        (length,) = struct.unpack_from("<Q", self._data, self._at)
        self._at = start + length
        if self._at > len(self._data):
            raise ValueError("it ends inside a text")
        return self._data[start : self._at].decode()

    def _read_number(self, kind: str) -> Any:
        return self._read_numbers(kind, 1)[0]

    def _read_numbers(self, kind: str, count: int) -> tuple[Any, ...]:
        numbers = struct.unpack_from(f"<{count}{kind}", self._data, self._at)
        self._at += struct.calcsize(f"<{count}{kind}")
        return numbers


def build_tokenizer(metadata: Metadata) -> Tokenizer:
    """Build a tokenizer from the metadata.

    Raises:
        ConfigError: it is damaged, or its rules are not known here.
    """
    model = metadata.get("tokenizer.ggml.model")
    name = str(metadata.get("tokenizer.ggml.pre", "default"))
    rules = _ALIASES.get(name, name)
    if model != "gpt2" or rules not in (*_SPLITS, "smollm", "gpt-2"):
        raise ConfigError(
            f"the tokenizer in the GGUF file is of the kind '{model}' with the rules '{name}', which are not known. "
            "Give the tokenizer.json of the same model instead: a file, a folder or a name on the hub."
        )
    texts = _read_column(metadata, "tokens", str)
    merges = [_split_merge(line) for line in _read_column(metadata, "merges", str)]
    vocabulary = {text: number for number, text in enumerate(texts)}
    if odd := next((f"{a} {b}" for a, b in merges if not {a, b, a + b} <= vocabulary.keys()), None):
        raise ConfigError(f"the tokenizer in the GGUF file is damaged: the merge '{odd}' is not in its vocabulary")
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=rules == "llama-bpe"))
    tokenizer.pre_tokenizer = _make_pre_tokenizer(rules)
    tokenizer.decoder = decoders.ByteLevel()
    _add_special(tokenizer, texts, _read_column(metadata, "token_type", int) if _TYPES in metadata else [])
    return tokenizer


def _read_column(metadata: Metadata, name: str, kind: type[T]) -> list[T]:
    found = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(found, list) or not all(isinstance(each, kind) for each in cast(list[Any], found)):
        raise ConfigError(f"the tokenizer in the GGUF file is damaged: '{name}' is not a list of {kind.__name__}")
    return cast(list[T], found)


def _split_merge(line: str) -> tuple[str, str]:
    first, _, second = line.partition(" ")
    return first, second


def _make_pre_tokenizer(rules: str) -> Any:
    if rules == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if rules == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    split = pre_tokenizers.Split(Regex(_SPLITS[rules]), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _add_special(tokenizer: Tokenizer, texts: list[str], kinds: list[int]) -> None:
    def select(kind: int) -> list[str]:
        return [text for text, own in zip(texts, kinds, strict=False) if own == kind]

    special = [AddedToken(text, special=True, normalized=False) for text in select(_CONTROL)]
    plain = [AddedToken(text, special=False, normalized=False) for text in select(_USER_DEFINED)]
    tokenizer.add_special_tokens(special)  # pyright: ignore[reportUnknownMemberType]  # an untyped stub
    tokenizer.add_tokens(plain)  # pyright: ignore[reportUnknownMemberType]
