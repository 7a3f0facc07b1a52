"""Which groups of a file are kept: the rules of atroposlib, in its order.

Rows that cannot be used are taken out before (`row_faults`). A group that then has too few rows is `partial`: it is
dropped, or kept if `serve.partial` says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ludus.compat.atropos_env.row_faults import count_rows, list_rows
from ludus.compat.atropos_env.row_rollouts import NOT_TRAINED, Decode, list_scores
from ludus.errors import ConfigError
from ludus.rl.worker_settings import ServeSettings


@dataclass(frozen=True)
class FilterRules:
    """What a group must be like to be kept."""

    group_size: int
    differing_scores: bool
    """Groups with a single distinct score are dropped."""
    row_tokens: int | None = None
    """A group with a row of this many tokens or more is dropped; None: no limit."""
    include_messages: bool = False
    partial: bool = False
    """Groups with fewer rows are kept."""


_NOT_FOR_FILES = {
    "too_long": "groups with a row that is too long are dropped whole",
    "branches": "a file makes its rows itself",
    "messages": "use --env.include_messages",
    "eval_split": "the file's evaluate() chooses what it evaluates on",
    "eval_limit": "the file's evaluate() chooses what it evaluates on",
    "eval_size": "the file's evaluate() chooses what it evaluates on",
    "shown_rollouts": "use --env.num_rollouts_to_keep",
}
"""Settings of `serve` that cannot be honoured for a file, and why."""


def refuse_serve_settings(serve: ServeSettings) -> None:
    """Raise `ConfigError` for a setting of `serve` that cannot be honoured for a file."""
    usual = ServeSettings()
    for name, why in _NOT_FOR_FILES.items():
        if getattr(serve, name) != getattr(usual, name):
            raise ConfigError(f"serve.{name} is not for files: {why}. Leave it out")


def make_rules(config: Any, serve: ServeSettings) -> FilterRules:
    """The rules of a file's configuration and of the section `serve`."""
    return FilterRules(
        group_size=config.group_size,
        differing_scores=config.ensure_scores_are_not_same and serve.equal_scores == "drop",
        include_messages=config.include_messages,
        partial=serve.partial == "send",
    )


def list_groups(returned: Any) -> list[dict[str, Any]]:
    """The groups that a file returned: none, one, or a list of them. Those without rows are left out."""
    found: list[Any] = (
        cast(list[Any], returned) if isinstance(returned, list) else [returned] if isinstance(returned, Mapping) else []
    )
    return [cast(dict[str, Any], group) for group in found if group and count_rows(group)]


def find_fault(group: Mapping[str, Any], rules: FilterRules) -> str:
    """Why a group is dropped; empty if it is kept."""
    wanted, rows = _count_wanted(group, rules), count_rows(group)
    if rows > wanted:
        return "wrong_size"
    if rows < wanted and not (rules.partial and rows):
        return "partial"
    if rules.differing_scores and len(set(list_scores(group))) == 1:
        return "equal_scores"
    if rules.row_tokens is not None and _find_longest(group) >= rules.row_tokens:
        return "too_long"
    return ""


def describe_fault(group: Mapping[str, Any], rules: FilterRules, fault: str) -> str:
    """A fault in words, with what can be done about it."""
    wanted, rows = _count_wanted(group, rules), count_rows(group)
    match fault:
        case "wrong_size":
            return f"it has {rows} rows, but a group has {wanted} (env.group_size)"
        case "partial":
            return f"{wanted - rows} of its {wanted} rows are missing or failed (--serve.partial send keeps the others)"
        case "equal_scores":
            return "all its scores are equal (--env.ensure_scores_are_not_same False keeps such groups)"
        case _:
            return (
                f"a row has {_find_longest(group)} tokens, but the trainer takes fewer than {rules.row_tokens} "
                "(lower env.max_token_length, or raise the trainer's max_token_len)"
            )


def _count_wanted(group: Mapping[str, Any], rules: FilterRules) -> int:
    own: Mapping[str, Any] = group.get("group_overrides") or {}
    return int(own.get("group_size") or rules.group_size)


def _find_longest(group: Mapping[str, Any]) -> int:
    return max(map(len, list_rows(group, "tokens")), default=0)


def count_trained(group: Mapping[str, Any]) -> list[int]:
    """How many tokens of each row are trained on."""
    return [sum(mask != NOT_TRAINED for mask in row) for row in list_rows(group, "masks")]


def complete_group(group: Mapping[str, Any], rules: FilterRules, decode: Decode) -> dict[str, Any]:
    """The group as it is sent: with the keys that servers expect and, if asked for, messages."""
    made: dict[str, Any] = {"ref_logprobs": None, "overrides": None, "group_overrides": None, **group}
    if rules.include_messages and made.get("messages") is None:
        rows: list[list[int]] = group["tokens"]
        made["messages"] = [[{"role": "user", "content": decode(row)}] for row in rows]
    return made
