"""What a posted group must be, and how it is checked without decoding its numbers.

A group of 8 rows of 512 ids is 100 KB of JSON. Decoding it to Python objects takes five times as long as everything
else that the server does with it. So the numbers stay bytes:

1. One pass of `msgspec` over the body checks the syntax and finds the bytes of each field.
2. From a field of numbers, all characters of numbers are deleted (`bytes.translate`). What remains is its shape, such
   as `[[,,,],[,,]]`. Fields that belong to the same ids must have the same shape.

A body with anything unusual in these fields (numbers as text, exponents, empty rows, a shape that differs) is decoded
and checked value by value. That gives the exact reason of a refusal, and it accepts what pydantic accepts: numbers as
text, integers as floats, booleans as scores.

The result is JSON with exactly the 14 keys of the wire, in their order, null where a field is absent. It is stored and
sent to trainers as it is.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, cast
from zlib import crc32

import msgspec
from msgspec import Raw, Struct

NULL = Raw(b"null")
_SPACE = b" \t\r\n"
_DIGITS = b"0123456789" + _SPACE
_INTEGERS = _DIGITS + b"-"
_FLOATS = _INTEGERS + b".e"
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_ABSENT = (b"null", b"[]")
"""Environments send either for a field that they do not have."""

VERSION = "policy_version"
"""The key in `generation_params` for the version of the policy that sampled the group."""

MOST_GROUPS = 1000
"""Of one list. Its groups are accepted together, and others wait meanwhile."""

_LARGEST = 2**53
"""JSON readers of other languages hold no larger whole number, and no id, mask or step is as large."""

Place = tuple[str | int, ...]


class BadGroup(Exception):
    """A posted group is refused. `place` leads to the value in the body."""

    def __init__(self, place: Place, message: str, kind: str = "value_error") -> None:
        super().__init__(message)
        self.place = place
        self.message = message
        self.kind = kind


class CheckedGroup(Struct, frozen=True, gc=False):
    """A group that was accepted."""

    body: bytes
    """JSON with the 14 keys of the wire."""
    size: int
    """The number of sequences."""
    env_id: int | None
    version: int | None
    """The version of the policy, if the group says it."""
    crc: int


class _Fields(Struct, gc=False):
    tokens: Raw
    masks: Raw
    scores: Raw
    advantages: Raw = NULL
    ref_logprobs: Raw = NULL
    messages: Raw = NULL
    generation_params: Raw = NULL
    inference_logprobs: Raw = NULL
    overrides: Raw = NULL
    group_overrides: Raw = NULL
    images: Raw = NULL
    env_id: Raw = NULL
    distill_token_ids: Raw = NULL
    distill_logprobs: Raw = NULL


KEYS = tuple(_Fields.__struct_fields__)
"""The keys of a group on the wire, in their order."""

_PARTS = [
    part for number, key in enumerate(KEYS) for part in ((b"{" if number == 0 else b",") + b'"%b":' % key.encode(), b"")
] + [b"}"]


class _Message(Struct, gc=False):
    role: Raw
    content: Raw


class _Params(Struct, gc=False):
    policy_version: Raw = NULL


_decode_fields = msgspec.json.Decoder(_Fields).decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode
_decode_messages = msgspec.json.Decoder(list[list[_Message]] | None).decode
_decode_params = msgspec.json.Decoder(_Params | None).decode
_decode_objects = msgspec.json.Decoder(list[dict[str, Raw]] | None).decode
_decode_object = msgspec.json.Decoder(dict[str, Raw] | None).decode
_decode_any = msgspec.json.Decoder().decode
_decode_scores = msgspec.json.Decoder(list[float]).decode
_decode_integers = msgspec.json.Decoder(
    list[list[Annotated[int, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]]], strict=False
).decode
_decode_floats = msgspec.json.Decoder(list[list[float]], strict=False).decode
_decode_env_id = msgspec.json.Decoder(int | None).decode


def check_group(body: bytes) -> CheckedGroup:
    """Check the body of `/scored_data`.

    Raises:
        BadGroup: with the place and the reason.
    """
    _check_text(body)
    return _check_one(body, ())


def check_groups(body: bytes) -> list[CheckedGroup]:
    """Check the body of `/scored_data_list`. One bad group refuses the list.

    Raises:
        BadGroup: with the place and the reason.
    """
    _check_text(body)
    try:
        parts = _decode_list(body)
    except (ValueError, RecursionError) as error:
        raise _describe_decoding((), body, error) from None
    if len(parts) > MOST_GROUPS:
        raise BadGroup((), f"a list of {len(parts):,} groups; at most {MOST_GROUPS:,} are taken at once: send several")
    return [_check_one(bytes(part), (number,)) for number, part in enumerate(parts)]


def _check_text(body: bytes) -> None:
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise BadGroup((), f"the body is not UTF-8: {error}", "json_invalid") from None


def _check_one(body: bytes, at: Place) -> CheckedGroup:
    try:
        fields = _decode_fields(body)
        rows = _measure_rows(fields)
        fields, size = (fields, len(rows)) if rows else _check_values(fields, at)
        _check_objects(fields, size, at)
        env_id = _read_env_id(fields, at)
        version = _read_version(fields, at)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise _describe_decoding(at, body, error) from None
    stored = _join(fields)
    return CheckedGroup(stored, size, env_id, version, crc32(stored))


def _describe_decoding(at: Place, body: bytes, error: Exception) -> BadGroup:
    if isinstance(error, RecursionError):
        return BadGroup(at, "the body is nested too deeply", "json_invalid")
    if isinstance(error, msgspec.ValidationError):
        return BadGroup(at, str(error))
    if b"NaN" in body or b"Infinity" in body:
        return BadGroup(at, f"numbers must be finite, and NaN and Infinity are not JSON: {error}", "finite_number")
    return BadGroup(at, str(error), "json_invalid")


def _join(fields: _Fields) -> bytes:
    parts = _PARTS.copy()
    parts[1:-1:2] = [bytes(getattr(fields, key)) for key in KEYS]
    return b"".join(parts)


# ---- numbers: by their shape --------------------------------------------------------------------------------------


def _measure_rows(fields: _Fields) -> list[int]:
    """The lengths of the rows if the numbers are plain and their shapes agree. Otherwise an empty list: values must be
    looked at one by one."""
    if any(_has_long_numbers(bytes(field)) for field in (fields.tokens, fields.masks)):
        return []
    shape = bytes(fields.tokens).translate(None, _DIGITS)
    rows = shape[2:-2].split(b"],[")
    # `[]` and `[1]` have the same shape, so rows without a comma are decoded.
    if shape[:2] != b"[[" or shape[-2:] != b"]]" or not all(rows) or any(row.strip(b",") for row in rows):
        return []
    if bytes(fields.masks).translate(None, _INTEGERS) != shape:
        return []
    for field in (fields.inference_logprobs, fields.ref_logprobs, fields.advantages):
        if field is not NULL and not _has_shape(bytes(field), shape):
            return []
    for field in (fields.distill_token_ids, fields.distill_logprobs):
        if field is not NULL and bytes(field) not in _ABSENT:
            return []
    if not _are_finite(fields.scores, len(rows)):
        return []
    return [len(row) + 1 for row in rows]


def _has_long_numbers(raw: bytes, most: int = 15) -> bool:
    """Whether a number has more digits than this in a row. 15 digits are always less than 53 bits."""
    return b"0" * (most + 1) in raw.translate(_ZEROS)


def _has_shape(raw: bytes, shape: bytes) -> bool:
    """Whether a field is absent, or has this shape and only negative exponents: others may give infinite numbers."""
    if raw in _ABSENT:
        return True
    plain = raw.translate(None, _FLOATS) == shape and (b"e" not in raw or raw.count(b"e") == raw.count(b"e-"))
    return plain and not _has_long_numbers(raw, 300)  # without an exponent, too, a number may be infinite


def _are_finite(scores: Raw, count: int) -> bool:
    try:
        values = _decode_scores(scores)
    except ValueError:  # text or booleans
        return False
    return len(values) == count and all(map(math.isfinite, values))


# ---- numbers: one by one ------------------------------------------------------------------------------------------


def _check_values(fields: _Fields, at: Place) -> tuple[_Fields, int]:
    """Check and convert every number. Returns the fields with the converted numbers, and the number of rows."""
    tokens = _read_rows(fields.tokens, (*at, "tokens"), _read_integer)
    if not tokens:
        raise BadGroup((*at, "tokens"), "the group has no sequences")
    lengths = [len(row) for row in tokens]
    for number, length in enumerate(lengths):
        if not length:
            raise BadGroup((*at, "tokens", number), "the sequence has no ids")
    changed: dict[str, Any] = {
        "tokens": tokens,
        "masks": _read_aligned(fields.masks, (*at, "masks"), len(tokens), lengths, _read_integer),
        "scores": _read_scores(fields.scores, (*at, "scores"), len(tokens)),
    }
    for name in ("inference_logprobs", "ref_logprobs", "advantages"):
        raw: Raw = getattr(fields, name)
        if bytes(raw) not in _ABSENT:
            # The wire's own tests send advantages of other lengths than the ids. Only their number is checked.
            known = None if name == "advantages" else lengths
            changed[name] = _read_aligned(raw, (*at, name), len(tokens), known, _read_float)
    changed |= _read_distillation(fields, lengths, at)
    encoded = {name: Raw(msgspec.json.encode(value)) for name, value in changed.items()}
    return msgspec.structs.replace(fields, **encoded), len(tokens)


def _read_distillation(fields: _Fields, lengths: Sequence[int], at: Place) -> dict[str, Any]:
    """Teacher ids and logprobs: [sequence][position][k]."""
    found: dict[str, list[list[list[float]]]] = {}
    for name, read in (("distill_token_ids", _read_integer), ("distill_logprobs", _read_float)):
        raw: Raw = getattr(fields, name)
        if bytes(raw) in _ABSENT:
            continue
        place = (*at, name)
        sequences = _require_list(_decode_value(raw, place), place)
        if len(sequences) != len(lengths):
            raise BadGroup(place, f"{len(sequences)} entries for {len(lengths)} sequences")
        found[name] = [_read_lists(each, (*place, number), read) for number, each in enumerate(sequences)]
    ids, logprobs = found.get("distill_token_ids"), found.get("distill_logprobs")
    if ids is not None and logprobs is not None:
        for number, (left, right) in enumerate(zip(ids, logprobs, strict=True)):
            if [len(each) for each in left] != [len(each) for each in right]:
                raise BadGroup((*at, "distill_logprobs", number), "it is not parallel to distill_token_ids")
    return dict(found)


ReadNumber = Callable[[Any, Place], float]


def _read_rows(raw: Raw, place: Place, read: ReadNumber) -> list[list[float]]:
    """The rows of a field. Megabytes of numbers as text are decoded at once; what is odd or wrong is looked at one by
    one, for the exact reason."""
    try:
        decoded: Any = _decode_integers(raw) if read is _read_integer else _decode_floats(raw)
    except (ValueError, RecursionError):
        return _read_lists(_decode_value(raw, place), place, read)
    rows = cast(list[list[float]], decoded)
    if read is _read_float and not all(math.isfinite(each) for row in rows for each in row):
        return _read_lists(rows, place, read)
    return rows


def _read_lists(value: Any, place: Place, read: ReadNumber) -> list[list[float]]:
    rows = _require_list(value, place)
    return [list(_read_numbers(row, (*place, number), read)) for number, row in enumerate(rows)]


def _read_numbers(value: Any, place: Place, read: ReadNumber) -> Iterator[float]:
    for index, each in enumerate(_require_list(value, place)):
        yield read(each, (*place, index))


def _read_aligned(
    raw: Raw, place: Place, count: int, lengths: Sequence[int] | None, read: ReadNumber
) -> list[list[float]]:
    """The rows of a field. There must be `count`, and each must have its length, if lengths are given."""
    rows = _read_rows(raw, place, read)
    if len(rows) != count:
        raise BadGroup(place, f"{len(rows)} rows for {count} sequences")
    for number, (row, length) in enumerate(zip(rows, lengths or map(len, rows), strict=True)):
        if len(row) != length:
            raise BadGroup((*place, number), f"{len(row)} values for {length} ids of the sequence")
    return rows


def _read_scores(raw: Raw, place: Place, count: int) -> list[float]:
    scores = list(_read_numbers(_decode_value(raw, place), place, _read_score))
    if len(scores) != count:
        raise BadGroup(place, f"{len(scores)} scores for {count} sequences")
    return scores


def _decode_value(raw: Raw, place: Place) -> Any:
    try:
        return _decode_any(raw)
    except ValueError as error:  # a number that no float can hold
        raise BadGroup(place, f"Input should be finite numbers: {error}", "finite_number") from None


def _require_list(value: Any, place: Place) -> list[Any]:
    if not isinstance(value, list):
        raise BadGroup(place, "Input should be a valid list", "list_type")
    return cast(list[Any], value)


def _read_score(value: Any, place: Place) -> float:
    return float(value) if isinstance(value, bool) else _read_float(value, place)


def _read_float(value: Any, place: Place) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadGroup(place, "Input should be a valid number", "float_type")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise BadGroup(place, "Input should be a valid number", "float_parsing") from None
    if not math.isfinite(number):
        raise BadGroup(place, "Input should be a finite number", "finite_number")
    return number


def _read_integer(value: Any, place: Place) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadGroup(place, "Input should be a valid integer", "int_type")
    try:
        number = int(value)
    except (ValueError, OverflowError):  # text, infinite
        raise BadGroup(place, "Input should be a valid integer", "int_parsing") from None
    if isinstance(value, float) and not value.is_integer():
        raise BadGroup(place, "Input should be a valid integer, not a fraction", "int_from_float")
    if not -_LARGEST <= number <= _LARGEST:
        raise BadGroup(place, "Input should be a number of at most 53 bits", "int_too_large")
    return number


# ---- the other fields ---------------------------------------------------------------------------------------------


def _check_objects(fields: _Fields, size: int, at: Place) -> None:
    try:
        messages = _decode_messages(fields.messages)
    except msgspec.ValidationError as error:
        raise BadGroup((*at, "messages"), f"Message must have 'role' and 'content' fields: {error}") from None
    if messages and len(messages) != size:
        raise BadGroup((*at, "messages"), f"{len(messages)} conversations for {size} sequences")
    overrides = _decode_field(_decode_objects, fields.overrides, (*at, "overrides"))
    if overrides and len(overrides) != size:
        raise BadGroup((*at, "overrides"), f"{len(overrides)} entries for {size} sequences")
    _decode_field(_decode_object, fields.group_overrides, (*at, "group_overrides"))


def _decode_field(decode: Callable[[Raw], Any], raw: Raw, place: Place) -> Any:
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        raise BadGroup(place, str(error)) from None


def _read_env_id(fields: _Fields, at: Place) -> int | None:
    try:
        found = _decode_env_id(fields.env_id)
        return None if found is None else _read_integer(found, (*at, "env_id"))
    except msgspec.ValidationError:
        env_id = _read_integer(_decode_any(fields.env_id), (*at, "env_id"))
        fields.env_id = Raw(b"%d" % env_id)
        return env_id


def _read_version(fields: _Fields, at: Place) -> int | None:
    place = (*at, "generation_params")
    params = _decode_field(_decode_params, fields.generation_params, place)
    if params is None or bytes(params.policy_version) == b"null":
        return None
    return _read_integer(_decode_any(params.policy_version), (*place, VERSION))
