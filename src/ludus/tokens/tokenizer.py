"""Text to ids and back, with the model's own tokenizer.

A `Tokenizer` is a thin wrapper of the Rust `tokenizers` library. It adds no ids that are not in the text. It recognises
special tokens in the text, as every chat server does with a rendered template. `load_tokenizer` reads a tokenizer and
its chat templates from a `tokenizer.json`, a folder, a GGUF file or a repository on the hub. It collects the stop
tokens from all files that name some.

Long texts are split after stop tokens, and long parts are cached: the block of tool descriptions that begins every
conversation of a run is encoded once. Whether the parts have the same ids as the whole text is tested when the
tokenizer is made. If they do not, texts are not split.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ludus.errors import ConfigError
from ludus.tokens.token_packages import require_packages

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Rust

LONG_TEXT = 2_000
"""Texts of this many characters are encoded in parts, and parts of this size are cached."""

_COMMON_STOP_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<end_of_turn>",
    "<eos>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<｜end▁of▁sentence｜>",
    "<|eot|>",
    "<|eom|>",
    "[EOS]",
    "<|user|>",
    "<|observation|>",
)
"""Stop tokens of the known model families. A vocabulary has a few of them."""


class Tokenizer:
    """Encodes and decodes with one vocabulary."""

    def __init__(self, rust: "Rust", *, bos: str = "", eos: str = "", stop_tokens: Iterable[str] = ()) -> None:
        self._rust = rust
        self.bos = bos
        self.eos = eos
        added = rust.get_added_tokens_decoder()
        numbers = {token.content: number for number, token in added.items()}
        self.size = max(rust.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
        """Ids are below this."""
        common = (text for text in _COMMON_STOP_TOKENS if text in numbers and added[numbers[text]].special)
        self.stop_tokens: dict[int, str] = {
            numbers[text]: text for text in (*stop_tokens, eos, *common) if text in numbers
        }
        """The tokens that end a turn: id to text."""
        self._anchor = next(iter(self.stop_tokens), None)
        self._split_pattern = (
            re.compile("(?<=" + ")|(?<=".join(map(re.escape, self.stop_tokens.values())) + ")")
            if self.stop_tokens
            else None
        )
        self._encode_cached = lru_cache(maxsize=64)(self._encode_tuple)
        if not self._parts_agree():
            self._split_pattern = None

    def encode(self, text: str) -> list[int]:
        """Encode a text. Nothing is added before or after it. Half a surrogate pair is read as U+FFFD."""
        if len(text) < LONG_TEXT or self._split_pattern is None:
            return self._encode(text)
        ids: list[int] = []
        for part in self._split_pattern.split(text):
            ids += self._encode_cached(part) if len(part) >= LONG_TEXT else self._encode(part)
        return ids

    def encode_after(self, text: str) -> list[int]:
        """Encode a text that follows other tokens. Some vocabularies put a space before a first word: not here."""
        if self._anchor is None:
            return self.encode(text)
        ids = self.encode(self.stop_tokens[self._anchor] + text)
        if not ids or ids[0] != self._anchor:
            return self.encode(text)
        return ids[1:]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text, with special tokens. Bytes that are not valid UTF-8 become U+FFFD."""
        return self._rust.decode(ids, skip_special_tokens=False) if ids else ""

    def find_id(self, token: str) -> int | None:
        """The id of a token; None if the vocabulary has no such token."""
        return self._rust.token_to_id(token)

    def save(self, path: Path) -> None:
        """Write it as a `tokenizer.json`."""
        self._rust.save(str(path))

    def _encode(self, text: str) -> list[int]:
        try:
            return self._rust.encode(text, add_special_tokens=False).ids
        except TypeError:  # half a surrogate pair, which UTF-8 cannot encode
            whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return self._rust.encode(whole, add_special_tokens=False).ids

    def _encode_tuple(self, text: str) -> tuple[int, ...]:
        return tuple(self._encode(text))

    def _parts_agree(self) -> bool:
        """Whether splitting text after stop tokens leaves its ids unchanged."""
        if self._split_pattern is None:
            return False
        for end in self.stop_tokens.values():
            text = f"Some words.{end}\nuser  more{end}{end} text 12{end}"
            parts = [number for part in self._split_pattern.split(text) for number in self._encode(part)]
            if parts != self._encode(text):
                return False
        return True


# ---- files --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenizerFiles:
    """What the files of a model hold: tokenizer, templates and special tokens."""

    tokenizer: Tokenizer
    templates: Mapping[str, str]
    """Chat templates by name: `default`, and for some models `tool_use`. Empty if the files hold none."""
    tokens: Mapping[str, str]
    """Special tokens by the names that templates use: `bos_token`, `eos_token`, …"""


def load_tokenizer(source: str | Path) -> TokenizerFiles:
    """Read a tokenizer and its templates from a `tokenizer.json`, a folder, a `.gguf` file, or `owner/name` on the hub.

    Raises:
        ConfigError: it does not exist, or it cannot be read.
    """
    require_packages("tokenizers")
    path = Path(source)
    if path.suffix == ".gguf":
        return _load_gguf(path)
    if path.is_dir():
        return _load_folder(path)
    if path.is_file():
        return _load_folder(path.parent, path.name)
    if path.suffix or str(source).count("/") != 1 or str(source).startswith((".", "/", "~")):
        raise ConfigError(f"tokenizer: there is no file or folder '{source}'")
    return _load_from_hub(str(source))


def _load_gguf(path: Path) -> TokenizerFiles:
    from ludus.tokens.gguf import build_tokenizer, read_metadata

    metadata = read_metadata(path)
    texts: list[str] = metadata.get("tokenizer.ggml.tokens", [])

    def get_token(name: str) -> str:
        number = metadata.get(f"tokenizer.ggml.{name}_token_id")
        return texts[number] if isinstance(number, int) and 0 <= number < len(texts) else ""

    rust = build_tokenizer(metadata)
    tokenizer = Tokenizer(
        rust, bos=get_token("bos"), eos=get_token("eos"), stop_tokens=(get_token("eot"), get_token("eom"))
    )
    template = metadata.get("tokenizer.chat_template") or ""
    if not isinstance(template, str):
        raise ConfigError("tokenizer: the chat template in the GGUF file is not a text")
    tokens = {f"{name}_token": get_token(name) for name in ("bos", "eos", "unk", "pad") if get_token(name)}
    return TokenizerFiles(tokenizer, {"default": template} if template else {}, tokens)


def _load_folder(folder: Path, name: str = "tokenizer.json") -> TokenizerFiles:
    from tokenizers import Tokenizer as Rust

    try:
        rust = Rust.from_file(str(folder / name))
    except Exception as error:  # the library raises bare Exceptions
        raise ConfigError(f"tokenizer: '{folder / name}' cannot be read as a tokenizer.json: {error}") from error
    settings = _read_json(folder / "tokenizer_config.json")
    tokens = {key: _read_token(value) for key, value in settings.items() if key.endswith("_token")}
    tokens = {key: text for key, text in tokens.items() if text}
    named = (_read_json(folder / name) for name in ("generation_config.json", "config.json"))
    stop_tokens = [text for found in named for text in _read_stop_tokens(rust, found)]
    tokenizer = Tokenizer(
        rust, bos=tokens.get("bos_token", ""), eos=tokens.get("eos_token", ""), stop_tokens=stop_tokens
    )
    return TokenizerFiles(tokenizer, _read_templates(folder, settings), tokens)


def _load_from_hub(repository: str) -> TokenizerFiles:
    from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]

    wanted = ["tokenizer*", "chat_template*", "generation_config.json", "config.json"]
    try:
        folder = snapshot_download(repository, allow_patterns=wanted)
    except Exception as error:  # network, hub and client raise many kinds of exceptions
        raise ConfigError(
            f"tokenizer: '{repository}' is not a local file and could not be downloaded from the hub ({error}). "
            "Give a tokenizer.json, a folder or a .gguf file."
        ) from error
    return _load_folder(Path(folder))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = msgspec.json.decode(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"tokenizer: '{path}' cannot be read as JSON: {error}") from error
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _read_token(value: Any) -> str:
    """A special token of a settings file: a text, or an object with its text in `content`."""
    if isinstance(value, dict):
        value = value.get("content")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return value if isinstance(value, str) else ""


def _read_stop_tokens(rust: "Rust", settings: Mapping[str, Any]) -> list[str]:
    value = settings.get("eos_token_id")
    numbers: list[Any] = value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]
    texts = (rust.id_to_token(n) for n in numbers if isinstance(n, int) and 0 <= n < 2**31)
    return [text for text in texts if text]


def _read_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """The chat templates. Models ship them in one of three places; the newest place wins."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return {"default": path.read_text("utf-8")}
        except (OSError, ValueError) as error:
            raise ConfigError(f"tokenizer: '{path}' cannot be read: {error}") from error
    value: Any = _read_json(folder / "chat_template.json").get("chat_template") or settings.get("chat_template") or []
    try:
        named = (
            [_NamedTemplate("default", value)]
            if isinstance(value, str)
            else msgspec.convert(value, list[_NamedTemplate])
        )
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"tokenizer: 'chat_template' in '{folder}' is neither a text nor a list of named templates: {error}"
        ) from None
    return {each.name: each.template for each in named}


class _NamedTemplate(msgspec.Struct):
    """One entry of a list of templates in `tokenizer_config.json`."""

    name: str
    template: str
