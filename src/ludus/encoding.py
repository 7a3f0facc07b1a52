"""Nouns as JSON: `to_json` for what is stored and shown, `canonical` for what is hashed."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct


def to_json(value: object) -> bytes:
    """A noun as one line of JSON. Half a surrogate pair, which models and programs write, becomes U+FFFD.

    Raises:
        RecursionError: the value is nested too deeply.
    """
    try:
        return msgspec.json.encode(value, enc_hook=_encode_other)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, enc_hook=_convert_other, str_keys=True)
        return msgspec.json.encode(replace_surrogates(plain))


def replace_surrogates(value: Any) -> Any:
    """A copy of a plain value with U+FFFD for every unpaired surrogate in its texts."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {replace_surrogates(k): replace_surrogates(v) for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [replace_surrogates(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def canonical(value: object) -> bytes:
    """JSON that is the same for equal values, for hashing. `to_json` is not: it leaves out a field that holds the
    default *object*, and writes one that merely equals it."""
    return msgspec.json.encode(_expand(value), enc_hook=_encode_other, order="deterministic")


def _expand(value: Any) -> Any:
    """The value with every field of every noun, under the names that are stored. This runs for every outcome, so plain
    values cost no call."""
    if isinstance(value, Struct):
        names, encoded = value.__struct_fields__, value.__struct_encode_fields__
        fields = msgspec.structs.asdict(value)
        if names != encoded:  # renamed in the code, not in stored data
            fields = {stored: fields[name] for name, stored in zip(names, encoded, strict=True)}
        unset: tuple[str, ...] = ()  # fields that were added later, in values that were made before
        for name, item in fields.items():
            if type(item) not in _PLAIN:
                if item is UNSET:
                    unset = (*unset, name)
                else:
                    fields[name] = _expand(item)
        for name in unset:
            del fields[name]
        return fields
    if isinstance(value, list | tuple):
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        return [item if type(item) in _PLAIN else _expand(item) for item in items]
    if isinstance(value, dict) or (type(value) not in _PLAIN and isinstance(value, Mapping)):
        return {key: _expand(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value


_PLAIN = frozenset({str, int, float, bool, type(None)})


def _encode_other(value: Any) -> object:
    """Convert what msgspec does not know: other mappings and sequences; texts, numbers and arrays of libraries."""
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, Sequence):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise TypeError(f"{type(value).__name__} is not JSON")


def _convert_other(value: Any) -> object:
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else _encode_other(value)
