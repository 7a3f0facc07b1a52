"""Rows of groups as rollouts."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ludus.compat.atropos_env.group_filter import FilterRules, complete_group, find_fault, list_groups
from ludus.compat.atropos_env.row_rollouts import encode_group, make_row_rollouts
from ludus.compat.atropos_env.scored_data import join_items
from ludus.rl.rows import build_rows
from ludus.types import Provenance, Task

TASK, PROVENANCE = Task(id="t", prompt=""), Provenance(policy="p", model="m")


def make_rollouts(group):
    return make_row_rollouts(group, TASK, PROVENANCE, lambda ids: f"<{len(ids)}>", first=0, seconds=1.0)


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, 5))
def test_the_exact_ids_of_a_row_survive_in_its_rollout(sampled: list[bool], turns: int):
    ids = list(range(10, 10 + len(sampled)))
    masks = [id if drawn else -100 for id, drawn in zip(ids, sampled, strict=True)]
    logprobs = [-0.5 if drawn else 1.0 for drawn in sampled]
    talk = [{"role": "user", "content": "q"}, *[{"role": "assistant", "content": "a"}] * turns]
    group = {"tokens": [ids], "masks": [masks], "scores": [1.0], "inference_logprobs": [logprobs], "messages": [talk]}
    (rollout,) = make_rollouts(group)
    assert len(rollout.turns) == turns
    (row,) = build_rows(rollout)
    assert row.tokens.ids == tuple(ids) and row.tokens.sampled == tuple(sampled)


def test_a_row_without_logprobs_has_no_exact_ids():
    group = {"tokens": [[1, 2, 3]], "masks": [[-100, 2, 3]], "scores": [0.5]}
    (rollout,) = make_rollouts(group)
    assert rollout.turns[0].completion.tokens is None and rollout.answer == "<2>"
    assert rollout.opening[0].content == "<1>" and rollout.score is not None and rollout.score.value == 0.5


def test_tool_messages_are_the_results_of_the_calls_before_them():
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    talk = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
        {"role": "user", "content": "go on"},
        {"role": "assistant", "content": "done"},
        {"role": "tool", "tool_call_id": "of no call", "content": "late"},
    ]
    (rollout,) = make_rollouts({"tokens": [[1]], "masks": [[1]], "scores": [1.0], "messages": [talk]})
    first, last = rollout.turns
    assert [(result.call.name, result.content) for result in first.results] == [("look", "seen")]
    assert [message.content for message in first.notices] == ["go on"]
    assert last.results == () and [message.content for message in last.notices] == ["late"]
    assert [message.role for message in rollout.messages] == [message["role"] for message in talk]


def test_a_score_that_is_no_number_is_a_failure_of_its_rollout():
    rows = {"tokens": [[1], [2], [3]], "masks": [[1], [2], [3]], "scores": [float("nan"), 0.5]}
    first, second, third = make_rollouts(rows)
    assert first.failure is not None and "the score nan" in first.failure.message and first.score is None
    assert second.score is not None and second.score.value == 0.5 and second.failure is None
    assert third.failure is not None and "no score" in third.failure.message
    assert [each.provenance.replicate for each in (first, second, third)] == [0, 1, 2]


def test_groups_are_written_with_all_their_keys():
    group = {"tokens": [[1]], "scores": [1.0], "seed": 3, "actions": frozenset({"b", "a"})}
    assert json.loads(encode_group(group)) == {"tokens": [[1]], "scores": [1.0], "seed": 3, "actions": ["a", "b"]}


def test_json_has_null_for_what_is_no_number():
    group = {"scores": [float("inf"), 1.0], "own": {"x": float("nan")}}
    assert json.loads(encode_group(group)) == {"scores": [None, 1.0], "own": {"x": None}}


def test_which_groups_are_kept():
    rules = FilterRules(2, differing_scores=True, row_tokens=3)
    two = {"tokens": [[1], [2]], "masks": [[1], [2]], "scores": [0.0, 1.0]}
    assert find_fault(two, rules) == ""
    assert find_fault({**two, "scores": [1.0, 1.0]}, rules) == "equal_scores"
    assert find_fault({**two, "tokens": [[1], [1, 2, 3]]}, rules) == "too_long"
    assert find_fault({**two, "group_overrides": {"group_size": 4}}, rules) == "partial"
    assert find_fault({**two, "group_overrides": {"group_size": 1}}, rules) == "wrong_size"
    assert find_fault({**two, "group_overrides": None}, rules) == ""
    assert list_groups(None) == [] and list_groups([two, None, {"tokens": []}]) == [two]
    shown = complete_group(two, FilterRules(2, False, include_messages=True), str)
    assert shown["messages"][0] == [{"role": "user", "content": "[1]"}] and shown["overrides"] is None


def test_single_rows_are_joined_with_every_key():
    rows = [
        {
            "tokens": [1],
            "masks": [1],
            "scores": 1.0,
            "inference_logprobs": [-1.0],
            "group_overrides": {"a": 1},
            "own": 5,
        },
        {"tokens": [2], "masks": [2], "scores": 0.0, "inference_logprobs": [-2.0], "group_overrides": {"b": 2}},
    ]
    group = join_items(rows)
    assert group["inference_logprobs"] == [[-1.0], [-2.0]] and group["group_overrides"] == {"a": 1, "b": 2}
    assert group["own"] == [5, None] and "messages" not in group
