"""Which groups of a file are kept: the rules of atroposlib, in its order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ludus.compat.atropos_env.row_rollouts import NOT_TRAINED, Decode, count_rows, list_scores


@dataclass(frozen=True)
class FilterRules:
    """What a group must be like to be kept."""

    group_size: int
    differing_scores: bool
    """Groups with a single distinct score are dropped."""
    row_tokens: int | None = None
    """A group with a row of this many tokens or more is dropped; None: no limit."""
    include_messages: bool = False


def list_groups(returned: Any) -> list[dict[str, Any]]:
    """The groups that a file returned: none, one, or a list of them. Those without rows are left out."""
    found: list[Any] = (
        cast(list[Any], returned) if isinstance(returned, list) else [returned] if isinstance(returned, Mapping) else []
    )
    return [cast(dict[str, Any], group) for group in found if group and count_rows(group)]


def find_fault(group: Mapping[str, Any], rules: FilterRules) -> str:
    """Why a group is dropped; empty if it is kept."""
    own: Mapping[str, Any] = group.get("group_overrides") or {}
    wanted, rows = int(own.get("group_size") or rules.group_size), count_rows(group)
    if rows != wanted:
        return "wrong_size"
    if rules.differing_scores and len(set(list_scores(group))) == 1:
        return "equal_scores"
    if rules.row_tokens is not None and any(len(row) >= rules.row_tokens for row in group["tokens"]):
        return "too_long"
    return ""


def count_trained(group: Mapping[str, Any]) -> list[int]:
    """How many tokens of each row are trained on."""
    rows: list[list[int]] = group.get("masks") or []
    return [sum(mask != NOT_TRAINED for mask in row) for row in rows]


def complete_group(group: Mapping[str, Any], rules: FilterRules, decode: Decode) -> dict[str, Any]:
    """The group as it is sent: with the keys that servers expect and, if asked for, messages."""
    made: dict[str, Any] = {"ref_logprobs": None, "overrides": None, "group_overrides": None, **group}
    if rules.include_messages and made.get("messages") is None:
        rows: list[list[int]] = group["tokens"]
        made["messages"] = [[{"role": "user", "content": decode(row)}] for row in rows]
    return made
