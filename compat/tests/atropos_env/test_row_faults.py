"""Rows that cannot be used are found, and taken out of every column of their group."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.compat.atropos_env.row_faults import count_rows, drop_rows, find_row_faults, read_score
from ludus.compat.atropos_env.row_rollouts import encode_group

SCORES = st.one_of(
    st.floats(), st.none(), st.booleans(), st.integers(-3, 3), st.text(max_size=4), st.lists(st.floats(), max_size=2)
)


@pytest.mark.parametrize(
    ("value", "score"),
    [
        (1, 1.0),
        ("0.5", 0.5),
        (True, 1.0),
        (math.nan, None),
        (-math.inf, None),
        (None, None),
        ("good", None),
        ([], None),
    ],
)
def test_a_score_is_a_finite_number(value: Any, score: float | None):
    assert read_score(value) == score


@given(st.lists(SCORES, min_size=1, max_size=6), st.integers(0, 2))
def test_what_is_left_of_a_group_has_finite_scores_and_columns_of_one_length(scores: list[Any], missing: int):
    rows = len(scores)
    group = {
        "tokens": [[row] for row in range(rows)],
        "masks": [[row] for row in range(rows)],
        "scores": scores[: max(0, rows - missing)],
        "inference_logprobs": [[-1.0]] * rows,
        "own": list(range(rows)),
        "group_overrides": {"group_size": 4},
        "note": "x" * rows,
    }
    faults = find_row_faults(group)
    usable = drop_rows({**group, "scores": [*group["scores"], *[None] * (rows - len(group["scores"]))]}, faults)
    assert count_rows(usable) == rows - len(faults)
    assert len(usable["masks"]) == len(usable["scores"]) == len(usable["own"]) == count_rows(usable)
    assert all(read_score(score) is not None for score in usable["scores"])
    assert usable["group_overrides"] == {"group_size": 4} and usable["note"] == "x" * rows
    assert usable["own"] == [row for row in range(rows) if row not in faults]
    json.loads(encode_group(usable), parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize("key", ["advantages", "ref_logprobs", "inference_logprobs", "distill_logprobs"])
def test_a_column_with_a_value_that_is_no_number_is_a_fault_of_its_row(key: str):
    bad: Any = [[-0.1, math.nan]] if key == "distill_logprobs" else [-0.1, math.nan]
    group = {"tokens": [[1, 2], [3, 4]], "masks": [[1, 2], [3, 4]], "scores": [1.0, 0.0], key: [[-1.0, -1.0], bad]}
    faults = find_row_faults(group)
    assert list(faults) == [1] and f"'{key}'" in faults[1]
    assert find_row_faults({**group, key: [None, [-1.0, 0.0]]}) == {}
