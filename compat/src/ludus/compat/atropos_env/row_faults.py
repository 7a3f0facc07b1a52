"""Rows of a group that cannot be used: a score that is no finite number, or a column of numbers with such a value.

A file may return NaN, None or a text where a number belongs. No trainer can use that, and JSON has no word for it. Such
a row is the failure of its rollout; the other rows of the group are not touched.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

NUMBER_COLUMNS = ("advantages", "ref_logprobs", "inference_logprobs", "distill_logprobs")
"""Keys of a group that have a list of numbers for each row, or a list of such lists."""
_NOT_ROWS = ("group_overrides", "generation_params")


def list_rows(group: Mapping[str, Any], key: str) -> Sequence[Any]:
    """What a group has for each of its rows under a key. Libraries' arrays are read, too."""
    value = group.get(key)
    if value is None or isinstance(value, str | Mapping) or not hasattr(value, "__len__"):
        return ()
    return cast(Sequence[Any], value)


def count_rows(group: Mapping[str, Any]) -> int:
    return len(list_rows(group, "tokens"))


def read_score(value: Any) -> float | None:
    """A score as a number; None if it is none, or not finite."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def find_row_faults(group: Mapping[str, Any]) -> dict[int, str]:
    """Why rows cannot be used, by their place in the group."""
    scores, faults = list_rows(group, "scores"), dict[int, str]()
    for row in range(count_rows(group)):
        if row >= len(scores):
            faults[row] = "the file gave the row no score"
        elif read_score(scores[row]) is None:
            faults[row] = f"the file gave the row the score {_shorten(scores[row])}: a score is a finite number"
        elif key := next((key for key in NUMBER_COLUMNS if _has_other_than_numbers(group, key, row)), ""):
            faults[row] = f"'{key}' of the row has a value that is not a finite number"
    return faults


def drop_rows(group: Mapping[str, Any], rows: Collection[int]) -> dict[str, Any]:
    """The group without some of its rows, in all keys that have a value for each row."""
    count = count_rows(group)

    def keep(key: str, value: Any) -> Any:
        if key in _NOT_ROWS or len(list_rows(group, key)) != count:
            return value
        return [each for row, each in enumerate(value) if row not in rows]

    return {key: keep(key, value) for key, value in group.items()} if rows else dict(group)


def _has_other_than_numbers(group: Mapping[str, Any], key: str, row: int) -> bool:
    rows = list_rows(group, key)
    return row < len(rows) and rows[row] is not None and not _is_finite(rows[row])


def _is_finite(value: Any) -> bool:
    if isinstance(value, int | float):
        return math.isfinite(value)
    if hasattr(value, "__len__") and not isinstance(value, str):
        return all(map(_is_finite, value))
    return read_score(value) is not None


def _shorten(value: Any) -> str:
    return text if len(text := repr(value)) <= 80 else f"{text[:80]}…"
