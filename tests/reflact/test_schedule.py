"""Budgets by step: the values of SkillOpt, and what holds for all of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.reflact.schedule import Schedule, compute_budget


def list_budgets(schedule: Schedule, most: int, least: int, total: int) -> list[int]:
    return [compute_budget(schedule, step, total, most=most, least=least) for step in range(1, total + 1)]


@pytest.mark.parametrize(
    ("schedule", "most", "least", "values"),
    [
        ("linear", 10, 2, [8, 6, 4, 2]),
        ("linear", 8, 2, [7, 6, 6, 5, 4, 4, 3, 2]),
        ("linear", 4, 2, [4, 3, 2, 2]),
        ("linear", 7, 2, [7]),
        ("cosine", 10, 2, [9, 6, 3, 2]),
        ("cosine", 8, 2, [8, 7, 6, 5, 4, 3, 2, 2]),
        ("cosine", 4, 2, [4, 3, 2, 2]),
        ("cosine", 7, 2, [7]),
        ("cosine", 4, 2, [4] * 13 + [3] * 13 + [2] * 14),
        ("linear", 4, 2, [4] * 10 + [3] * 19 + [2] * 11),
        ("constant", 4, 2, [4, 4, 4]),
    ],
)
def test_the_values_of_the_original(schedule: Schedule, most: int, least: int, values: list[int]):
    assert list_budgets(schedule, most, least, len(values)) == values


@settings(deadline=None)
@given(st.sampled_from(["constant", "linear", "cosine"]), st.integers(0, 30), st.integers(0, 30), st.integers(1, 80))
def test_a_budget_falls_and_stays_within_its_limits(schedule: Schedule, least: int, more: int, total: int):
    most = least + more
    values = list_budgets(schedule, most, least, total)
    assert all(least <= value <= most for value in values)
    assert values == sorted(values, reverse=True)
    assert compute_budget(schedule, total + 5, total, most=most, least=least) == values[-1]
