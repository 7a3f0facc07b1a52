import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.rl.tinker_data import Clip, build_datum, measure_update
from ludus.rl.trainers import TrainingDiverged, TrainingRow, check_finite
from ludus.types import Tokens

TOKENS = Tokens((5, 6, 7, 8, 9), (False, False, True, False, True), (None, None, -0.5, None, -1.5))


def make_row(advantage=1.0, tokens=TOKENS):
    return TrainingRow(tokens=tokens, advantage=advantage, version=0)


def test_a_datum_is_shifted_by_one_id_and_masked_by_its_advantages():
    made = build_datum(TOKENS, 0.25)
    assert made.model_input == [5, 6, 7, 8]
    assert made.target_tokens == [6, 7, 8, 9]
    assert made.logprobs == [0.0, -0.5, 0.0, -1.5]
    assert made.advantages == [0.0, 0.25, 0.0, 0.25]


@given(
    st.lists(st.tuples(st.integers(0, 99), st.booleans(), st.floats(-20, 0)), min_size=2, max_size=40),
    st.floats(-3, 3).filter(bool),
)
def test_every_sampled_target_keeps_its_id_and_logprob(row, advantage):
    tokens = Tokens(
        tuple(number for number, _, _ in row),
        tuple(sampled for _, sampled, _ in row),
        tuple(value if sampled else None for _, sampled, value in row),
    )
    made = build_datum(tokens, advantage)
    assert (*made.model_input, made.target_tokens[-1]) == tokens.ids
    trained = [
        (target, value)
        for target, value, weight in zip(made.target_tokens, made.logprobs, made.advantages, strict=True)
        if weight
    ]
    assert trained == [(number, value) for number, sampled, value in row[1:] if sampled]


def test_a_row_that_cannot_be_trained_on_is_refused():
    with pytest.raises(ValueError, match="1 sampled ids of a row have no logprob"):
        build_datum(Tokens((1, 2), (False, True), (None, None)), 1.0)
    with pytest.raises(ValueError, match="nothing to predict"):
        build_datum(Tokens((1,), (True,), (-0.1,)), 1.0)


def test_metrics_of_the_policy_that_sampled():
    found = measure_update([make_row(2.0)], [[-9.0, -0.5, -9.0, -1.5]])
    assert (found.loss, found.kl, found.entropy, found.ratio, found.tokens) == (-2.0, 0.0, 1.0, 1.0, 2)


def test_metrics_of_another_policy():
    found = measure_update([make_row(1.0)], [[0.0, -0.5 + math.log(2), 0.0, -1.5]])
    assert found.loss == pytest.approx(-1.5)
    assert found.kl == pytest.approx((2 - 1 - math.log(2)) / 2)
    assert found.ratio == pytest.approx(2.0)


@pytest.mark.parametrize(("advantage", "loss"), [(1.0, -(1.2 + 1) / 2), (-1.0, (2 + 1) / 2)])
def test_ppo_clips_only_where_the_ratio_went_the_way_of_the_advantage(advantage, loss):
    found = measure_update([make_row(advantage)], [[0.0, -0.5 + math.log(2), 0.0, -1.5]], Clip(0.8, 1.2))
    assert found.loss == pytest.approx(loss)
    assert found.clipped == 0.5


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e9])
def test_a_logprob_that_cannot_be_is_a_divergence(value):
    with pytest.raises(TrainingDiverged):
        check_finite(measure_update([make_row()], [[0.0, value, 0.0, -1.5]]))


def test_the_answer_must_have_a_logprob_for_each_target():
    with pytest.raises(ValueError, match="zip"):
        measure_update([make_row()], [[0.0, -0.5]])
    with pytest.raises(ValueError, match="zip"):
        measure_update([make_row()], [])
