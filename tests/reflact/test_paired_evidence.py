"""How sure it is that one skill is better than another."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.reflact.paired_evidence import FEWEST_TASKS, compute_certainty, compute_t_probability
from ludus.stats import compute_t_quantile

DIFFERENCES = st.lists(
    st.lists(st.floats(-1.0, 1.0, allow_nan=False), min_size=1, max_size=6), min_size=FEWEST_TASKS, max_size=30
)


@pytest.mark.parametrize(
    ("value", "freedom", "below"), [(0.0, 3, 0.5), (1.0, 1, 0.75), (2.0, 5, 0.94903), (-1.5, 8, 0.08600), (40, 60, 1.0)]
)
def test_students_t(value: float, freedom: float, below: float):
    assert compute_t_probability(value, freedom) == pytest.approx(below, abs=1e-5)


@pytest.mark.parametrize("freedom", [1, 4, 9, 30, 400])
def test_it_agrees_with_the_quantiles_of_the_package(freedom: int):
    assert compute_t_probability(compute_t_quantile(freedom), freedom) == pytest.approx(0.975, abs=2e-4)


@given(DIFFERENCES)
def test_a_certainty_is_a_probability_and_mirrors(differences: list[list[float]]):
    certainty = compute_certainty(differences)
    assert 0.0 <= certainty <= 1.0
    assert certainty + compute_certainty([[-d for d in each] for each in differences]) == pytest.approx(1.0)
    mean = math.fsum(math.fsum(each) / len(each) for each in differences)
    assert certainty == pytest.approx(0.5) or (certainty > 0.5) == (mean > 0)


def test_fewer_than_three_tasks_say_nothing_however_often_they_were_run():
    assert compute_certainty([]) == compute_certainty([[1.0] * 50, [1.0] * 50]) == 0.5
    assert compute_certainty([[1.0] * 50] * 3) > 0.99
    assert compute_certainty([[], [], [1.0], [1.0]]) == 0.5, "tasks whose rollouts failed do not count"


def test_the_size_of_differences_counts():
    solved, worse = [1.0] * 10, [-0.1] * 10
    assert compute_certainty([solved, solved, solved, worse, worse, worse]) > 0.95, "three votes against three"
    assert compute_certainty([[0.02] * 10] * 6) < compute_certainty([[0.3] * 10] * 6)


def test_chance_is_seldom_certain():
    """Two equal skills that pass half of the time: at most about one comparison in twenty is certain."""
    rng = Random(7)
    runs = 2000
    certain = 0
    for _ in range(runs):
        differences = [[float(rng.random() < 0.5) - float(rng.random() < 0.5) for _ in range(8)] for _ in range(6)]
        certain += compute_certainty(differences) >= 0.95
    assert certain / runs < 0.06
