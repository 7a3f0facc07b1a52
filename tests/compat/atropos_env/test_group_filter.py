"""The rules by which groups of files are kept, in atroposlib's order."""

from typing import Any

import pytest

from ludus.compat.atropos_env.group_filter import FilterRules, complete_group, count_trained, find_fault, list_groups


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
        (GROUP, FilterRules(3, True), "wrong_size"),
        (make_group([1.0, 0.0], group_overrides={"group_size": 2}), FilterRules(4, True), ""),
        (make_group([1.0, 1.0]), FilterRules(2, True), "equal_scores"),
        (make_group([1.0, 1.0]), FilterRules(2, False), ""),
        (GROUP, FilterRules(2, True, row_tokens=3), "too_long"),
        (GROUP, FilterRules(2, True, row_tokens=4), ""),
        (make_group([1.0, 1.0]), FilterRules(3, True, row_tokens=1), "wrong_size"),  # the first fault counts
    ],
)
def test_the_first_rule_that_a_group_breaks_is_its_fault(group: Any, rules: FilterRules, fault: str):
    assert find_fault(group, rules) == fault


def test_a_group_is_sent_with_the_keys_that_servers_expect():
    assert count_trained(GROUP) == [2, 2]
    plain = complete_group(GROUP, FilterRules(2, True), str)
    assert plain["ref_logprobs"] is None and plain["overrides"] is None and "messages" not in plain
    told = complete_group(GROUP, FilterRules(2, True, include_messages=True), lambda row: f"{len(row)} ids")
    assert told["messages"] == [[{"role": "user", "content": "3 ids"}]] * 2
    own = make_group([1.0, 0.0], messages=[["a"], ["b"]])
    assert complete_group(own, FilterRules(2, True, include_messages=True), str)["messages"] == [["a"], ["b"]]
