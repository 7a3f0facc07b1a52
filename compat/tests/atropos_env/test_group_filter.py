"""The rules by which groups of files are kept, in atroposlib's order."""

from typing import Any

import pytest

from ludus.compat.atropos_env.group_filter import (
    FilterRules,
    complete_group,
    count_trained,
    describe_fault,
    find_fault,
    list_groups,
    refuse_serve_settings,
)
from ludus.errors import ConfigError
from ludus.rl.worker_settings import ServeSettings


def make_group(scores: list[float], length: int = 3, **fields: Any) -> dict[str, Any]:
    rows = [[1] * length for _ in scores]
    return {"tokens": rows, "masks": [[-100, *row[1:]] for row in rows], "scores": scores, **fields}


GROUP = make_group([1.0, 0.0])


@pytest.mark.parametrize(
    ("returned", "count"),
    [(None, 0), (GROUP, 1), ([GROUP, None, {}, make_group([])], 1), ([GROUP, GROUP], 2), ("text", 0)],
)
def test_what_a_file_returns_is_a_list_of_groups(returned: Any, count: int):
    assert len(list_groups(returned)) == count


@pytest.mark.parametrize(
    ("group", "rules", "fault"),
    [
        (GROUP, FilterRules(2, True), ""),
        (GROUP, FilterRules(3, True), "partial"),
        (GROUP, FilterRules(1, True, partial=True), "wrong_size"),
        (GROUP, FilterRules(3, True, partial=True), ""),
        (make_group([]), FilterRules(3, True, partial=True), "partial"),
        (make_group([1.0]), FilterRules(3, True, partial=True), "equal_scores"),
        (make_group([1.0, 0.0], group_overrides={"group_size": 2}), FilterRules(4, True), ""),
        (make_group([1.0, 1.0]), FilterRules(2, True), "equal_scores"),
        (make_group([1.0, 1.0]), FilterRules(2, False), ""),
        (GROUP, FilterRules(2, True, row_tokens=3), "too_long"),
        (GROUP, FilterRules(2, True, row_tokens=4), ""),
        (make_group([1.0, 1.0]), FilterRules(3, True, row_tokens=1), "partial"),  # the first fault counts
    ],
)
def test_the_first_rule_that_a_group_breaks_is_its_fault(group: Any, rules: FilterRules, fault: str):
    assert find_fault(group, rules) == fault


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("wrong_size", "2 rows, but a group has 4"),
        ("partial", "2 of its 4 rows are missing"),
        ("equal_scores", "--env.ensure_scores_are_not_same"),
        ("too_long", "3 tokens, but the trainer takes fewer than 3"),
    ],
)
def test_a_fault_is_told_with_what_can_be_done(fault: str, words: str):
    assert words in describe_fault(GROUP, FilterRules(4, True, row_tokens=3), fault)


@pytest.mark.parametrize(("name", "value"), [("too_long", "cut"), ("branches", "longest"), ("eval_size", 2)])
def test_settings_of_serve_that_a_file_cannot_honour_are_refused_by_name(name: str, value: Any):
    refuse_serve_settings(ServeSettings(partial="send", equal_scores="send"))
    with pytest.raises(ConfigError, match=f"serve.{name} is not for files"):
        refuse_serve_settings(ServeSettings(**{name: value}))


def test_a_group_is_sent_with_the_keys_that_servers_expect():
    assert count_trained(GROUP) == [2, 2]
    plain = complete_group(GROUP, FilterRules(2, True), str)
    assert plain["ref_logprobs"] is None and plain["overrides"] is None and "messages" not in plain
    told = complete_group(GROUP, FilterRules(2, True, include_messages=True), lambda row: f"{len(row)} ids")
    assert told["messages"] == [[{"role": "user", "content": "3 ids"}]] * 2
    own = make_group([1.0, 0.0], messages=[["a"], ["b"]])
    assert complete_group(own, FilterRules(2, True, include_messages=True), str)["messages"] == [["a"], ["b"]]
