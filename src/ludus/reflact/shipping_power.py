"""The smallest gain that shipping shows: what the selection tasks of a run can tell. Pure.

Shipping runs each selection task with new seeds until it is clear which skill is better (`ludus.reflact.shipping`). So
the luck of single rollouts is averaged out, and what is left is how much the gain differs from task to task. That is
not known before training. It is taken at its worst: some tasks gain all that there is to gain, the others nothing.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from ludus.reflact.paired_evidence import FEWEST_TASKS
from ludus.reflact.train_settings import ShippingSettings
from ludus.stats import compute_t_quantile

_POWER = statistics.NormalDist().inv_cdf(0.8)
"""A gain is counted as shown if it is in 80 % of cases."""
_PRIOR_TASKS = 6
_PRIOR_LUCK = (2.0, 0.25)
"""As in `ludus.reflact.paired_evidence`: one rollout of each task shows luck badly where all of them fail."""
_MOST_TASKS = 5_000
"""More selection tasks are not looked for."""


class SelectionFacts(NamedTuple):
    """What an A/A run says about the selection split."""

    luck: float
    """The variance of the difference between two rollouts of one task."""
    room: float
    """The most that a skill could gain on a task, on average."""
    certainty: float
    """What shipping asks for."""


def estimate_luck(differences: Sequence[float]) -> float:
    """The variance of the difference between two rollouts of one task. `differences`: those of an A/A run, by task."""
    times, prior = _PRIOR_LUCK
    return (math.fsum(value * value for value in differences) + times * prior) / (len(differences) + times)


def find_smallest_gain(facts: SelectionFacts, tasks: int, passes: int) -> float | None:
    """The smallest mean gain over this many selection tasks that shipping shows in 80 % of cases, to the point; None if
    it can show none of those that there is room for."""
    points = range(1, 1 + round(100 * facts.room))
    return next((gain / 100 for gain in points if _is_shown(gain / 100, facts, tasks, passes)), None)


def _is_shown(gain: float, facts: SelectionFacts, tasks: int, passes: int) -> bool:
    if tasks < FEWEST_TASKS:
        return False
    each = facts.luck / max(1, passes) + max(0.0, gain * (facts.room - gain))
    freedom = _PRIOR_TASKS + tasks - 1
    held = (_PRIOR_TASKS * facts.luck / max(1, passes) + (tasks - 1) * each) / freedom
    sure = compute_t_quantile(freedom, facts.certainty) * math.sqrt(held / tasks)
    return gain >= sure + _POWER * math.sqrt(each / tasks)


def count_tasks_needed(facts: SelectionFacts, gain: float, settings: ShippingSettings) -> int | None:
    """About how many selection tasks show this gain; None if it is more than anyone has."""
    size = FEWEST_TASKS
    while size <= _MOST_TASKS:
        if gain <= facts.room and _is_shown(gain, facts, size, settings.count_passes(size)):
            return size
        size = math.ceil(size * 1.1)
    return None
