"""How the rollouts of a run are divided."""

import pytest

from ludus.errors import ConfigError
from ludus.reflact.ledger.rollout_plan import plan_rollouts
from ludus.reflact.train_settings import TrainSettings


def test_without_a_limit_the_epochs_decide_and_with_one_the_test_is_kept_back():
    settings = TrainSettings(epochs=4)
    assert plan_rollouts(settings, 100, 50, None) == (400, None)
    assert plan_rollouts(settings, 100, 50, 250) == (160, 200)


def test_a_limit_that_is_too_small_is_refused_with_the_numbers():
    with pytest.raises(ConfigError, match=r"budget.rollouts is 60, and the test takes 54.*step of 8"):
        plan_rollouts(TrainSettings(), 100, 54, 60)


def test_few_tasks_are_used_more_often_unless_the_epochs_are_set():
    assert plan_rollouts(TrainSettings(), 10, 4, None) == (200, None)
    assert plan_rollouts(TrainSettings(), 100, 4, None) == (400, None)
    assert plan_rollouts(TrainSettings(epochs=4), 10, 4, None) == (40, None)
