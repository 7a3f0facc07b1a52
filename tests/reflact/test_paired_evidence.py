"""How sure it is that one skill is better than another."""

import math
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.reflact.paired_evidence import FEWEST_TASKS, compute_certainty, compute_t_probability, compute_transfer
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


QUESTIONS = pytest.mark.parametrize("compute", [compute_certainty, compute_transfer])


@QUESTIONS
@given(differences=DIFFERENCES)
def test_the_answers_are_probabilities_and_mirror(
    compute: Callable[[list[list[float]]], float], differences: list[list[float]]
):
    found = compute(differences)
    assert 0.0 <= found <= 1.0
    assert found + compute([[-d for d in each] for each in differences]) == pytest.approx(1.0)
    mean = math.fsum(math.fsum(each) / len(each) for each in differences)
    assert found == pytest.approx(0.5) or (found > 0.5) == (mean > 0)


@QUESTIONS
def test_fewer_than_three_tasks_say_nothing_however_often_they_were_run(
    compute: Callable[[list[list[float]]], float],
):
    assert compute([]) == compute([[1.0] * 50, [1.0] * 50]) == 0.5
    assert compute([[1.0] * 50] * 3) > 0.99
    assert compute([[], [], [1.0], [1.0]]) == 0.5, "tasks whose rollouts failed do not count"


@QUESTIONS
def test_the_size_of_differences_counts(compute: Callable[[list[list[float]]], float]):
    solved, worse = [1.0] * 10, [-0.1] * 10
    assert compute([solved, solved, solved, worse, worse, worse]) > 0.95, "three votes against three"
    assert compute([[0.02] * 10] * 6) < compute([[0.3] * 10] * 6)


def test_one_task_of_three_is_surely_better_there_and_likely_elsewhere():
    solved, same = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0] * 2, [0.0] * 16
    differences = [solved, same, same]
    assert compute_certainty(differences) > 0.95
    assert 0.8 < compute_transfer(differences) < 0.95


def test_more_rollouts_of_the_same_tasks_add_nothing_about_other_tasks():
    mixed = [[0.6], [-0.4], [0.5], [-0.3], [0.0]]
    often = [each * 400 for each in mixed]
    assert compute_certainty(often) > 0.98 > 0.8 > compute_transfer(often)


def test_however_often_a_few_tasks_are_run_a_tiny_difference_is_not_sure():
    assert compute_certainty([[0.02] * 5000] * 3) < 0.8


@pytest.mark.parametrize("again", range(8))
def test_a_few_tasks_that_were_run_twice_do_not_tell_the_luck_of_all(again: int):
    """Two runs of a task that agree by chance say little: the other tasks show how much luck there is."""
    once = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, -1.0, 0.0]
    differences = [[value, value] if place < again else [value] for place, value in enumerate(once)]
    assert compute_certainty(differences) < 0.95


def test_chance_is_seldom_certain():
    """Two equal skills that pass half of the time: at most about one comparison in twenty is certain."""
    rng = Random(7)
    runs = 2000
    certain = 0
    for _ in range(runs):
        differences = [[float(rng.random() < 0.5) - float(rng.random() < 0.5) for _ in range(8)] for _ in range(6)]
        certain += compute_certainty(differences) >= 0.95
    assert certain / runs < 0.06
