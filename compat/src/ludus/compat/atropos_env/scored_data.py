"""The types that files written for atroposlib import: groups, items, messages."""

from typing import Any, TypedDict

Item = Any
"""What a file asks about. It is opaque: a dict, a tuple with frozensets, a string …"""
number = int | float


class AtroposMessage(TypedDict):
    """`atroposlib.type_definitions.Message`."""

    role: str
    content: Any


GameHistory = tuple[tuple[AtroposMessage, ...], ...]


class ScoredDataItem(TypedDict, total=False):
    """One scored sequence."""

    tokens: list[int]
    masks: list[int]
    scores: float
    advantages: list[float] | None
    ref_logprobs: list[float] | None
    inference_logprobs: list[float] | None
    messages: list[Any] | None
    group_overrides: dict[str, Any] | None
    overrides: dict[str, Any] | None
    images: Any
    distill_token_ids: list[list[int]] | None
    distill_logprobs: list[list[float]] | None


class ScoredDataGroup(TypedDict, total=False):
    """Several sequences of one item. Files may add keys of their own, which are kept."""

    tokens: list[list[int]]
    masks: list[list[int]]
    scores: list[float]
    advantages: list[list[float]] | None
    ref_logprobs: list[list[float]] | None
    messages: list[list[Any]] | None
    generation_params: dict[str, Any] | None
    inference_logprobs: list[list[float]] | None
    group_overrides: dict[str, Any] | None
    overrides: list[dict[str, Any]] | None
    images: Any
    distill_token_ids: list[list[list[int]]] | None
    distill_logprobs: list[list[list[float]]] | None


ROW_LISTS = (
    "advantages",
    "ref_logprobs",
    "inference_logprobs",
    "messages",
    "overrides",
    "images",
    "distill_token_ids",
    "distill_logprobs",
)
"""Keys of a group that have one entry for each row and may be absent."""


def join_items(rows: list[Any]) -> Any:
    """One group of scored items. A key that no row has is left out; one that only some have is filled with None."""
    group: dict[str, Any] = {key: [row[key] for row in rows] for key in ("tokens", "masks", "scores")}
    for key in ROW_LISTS:
        values = [row.get(key) for row in rows]
        if any(value is not None for value in values):
            group[key] = values
    merged: dict[str, Any] = {}
    for row in rows:
        merged |= row.get("group_overrides") or {}
    if merged:
        group["group_overrides"] = merged
    known = {"tokens", "masks", "scores", "group_overrides", *ROW_LISTS}
    for key in dict.fromkeys(key for row in rows for key in row if key not in known):
        group[key] = [row.get(key) for row in rows]
    return group
