"""How many rollouts the recipe `ledger` may take for training and for shipping. Pure."""

from typing import NamedTuple

from ludus.errors import ConfigError
from ludus.reflact.train_settings import TrainSettings

LEAST_ROLLOUTS = 200
"""The rollouts of training where neither epochs nor a budget are set, if that is more than four for each task."""


class RolloutPlan(NamedTuple):
    """How many rollouts training and shipping may take."""

    training: int
    total: int | None
    """Training and shipping, without the test; None if nothing limits shipping but its passes."""


def plan_rollouts(settings: TrainSettings, train: int, test: int, limit: int | None) -> RolloutPlan:
    """Divide the rollouts of a run with `train` train tasks and `test` rollouts of the test.

    Without a limit, every train task is used as often as there are epochs, on average. If these are not set, few tasks
    are used more often: the evidence for a line comes from rollouts.
    """
    reserve, batch = settings.shipping.reserve, min(settings.ledger.tasks_per_step, train)
    if limit is None:
        least = batch if settings.epochs else max(batch, LEAST_ROLLOUTS)
        return RolloutPlan(max(least, settings.epoch_count * train), None)
    total = limit - test
    training = int(total * (1.0 - reserve))
    if training < batch:
        raise ConfigError(
            f"budget.rollouts is {limit}, and the test takes {test} of them: there is not enough left for one step of "
            f"{batch} rollouts. Raise it, or set train.test_size"
        )
    return RolloutPlan(training, total)
