"""The nouns of trainers: metrics that are not finite stop the training."""

import pytest

from ludus.rl.trainers import TrainingDiverged, UpdateMetrics, check_finite


@pytest.mark.parametrize("name", ["loss", "gradient", "kl"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_stops_training(name: str, value: float):
    with pytest.raises(TrainingDiverged, match=f"the {name} is .*last good version"):
        check_finite(UpdateMetrics(**{name: value}))


def test_finite_and_unknown_numbers_pass():
    check_finite(UpdateMetrics(loss=-3.0, gradient=None, kl=0.0))
