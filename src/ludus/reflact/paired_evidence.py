"""How sure it is that one skill is better than another, from paired rollouts on few tasks. Pure.

Two questions are asked, because two things blur the mean difference: the luck of single rollouts, and the spread of the
effect from task to task.

* Is the difference on these tasks more than luck (`compute_certainty`)? More rollouts of the same tasks answer it. A
  spread of `_LEAST_SPREAD` is always assumed: no number of rollouts of a few tasks makes a tiny difference sure.
* Will other tasks of this sort gain, too (`compute_transfer`)? Only more tasks answer it. With few of them the spread
  cannot be estimated from them alone, so it has a prior that counts like `_PRIOR_TASKS` tasks.

The questions are apart because a skill that solves one task of three, and changes nothing on the others, is surely
better there. Its effect differs much from task to task, which makes it less sure, but not unlikely, elsewhere.

Both means follow Student's t. Unlike one vote per task they weigh the size of differences: two tasks that are solved
now count more than two that went a little worse. The constants were chosen on simulated worlds (`docs/optimizer.md`).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

FEWEST_TASKS = 3
"""With fewer tasks nothing is certain: nothing shows how much the effect differs from task to task."""
_PRIOR_TASKS = 6.0
"""For how many tasks the prior of the spread counts."""
_LEAST_SPREAD = 0.07
"""The standard deviation of the effect over tasks that is assumed in any case."""
_PRIOR_LUCK = (2.0, 0.25)
"""For how many rollouts the prior of the luck counts, and its variance of a single paired difference."""


class _Summary(NamedTuple):
    """What the differences of some tasks say."""

    tasks: int
    mean: float
    spread: float
    """The sum of squares of the tasks' means around the mean."""
    luck: float
    """The variance of a task's mean that luck alone makes, as a mean over the tasks."""
    freedom: float
    """The degrees of freedom that `luck` was estimated with."""

    def compute_probability(self, variance: float, freedom: float) -> float:
        """The probability that the mean is above zero if that of a single task has this variance."""
        return compute_t_probability(self.mean / math.sqrt(variance / self.tasks), freedom)


def compute_certainty(differences: Sequence[Sequence[float]]) -> float:
    """The probability that these tasks gain, and not by luck. `differences` has those of each task, one for each pair
    of rollouts. 0.5 if there are too few tasks."""
    found = _summarize(differences)
    return found.compute_probability(found.luck + _LEAST_SPREAD**2, found.freedom) if found else 0.5


def compute_transfer(differences: Sequence[Sequence[float]]) -> float:
    """The probability that the mean over all tasks of this sort gains, as far as these tasks tell. 0.5 if there are too
    few."""
    found = _summarize(differences)
    if found is None:
        return 0.5
    freedom = _PRIOR_TASKS + found.tasks - 1
    variance = (_PRIOR_TASKS * (found.luck + _LEAST_SPREAD**2) + found.spread) / freedom
    return found.compute_probability(variance, freedom)


def _summarize(differences: Sequence[Sequence[float]]) -> _Summary | None:
    """Luck is estimated from replicates and, as far as tasks have few, from the differences between tasks."""
    tasks = [each for each in differences if each]
    count = len(tasks)
    if count < FEWEST_TASKS:
        return None
    means = [math.fsum(each) / len(each) for each in tasks]
    mean = math.fsum(means) / count
    spread = math.fsum((value - mean) ** 2 for value in means)
    share = math.fsum(1.0 / len(each) for each in tasks) / count
    within = math.fsum((value - own) ** 2 for each, own in zip(tasks, means, strict=True) for value in each)
    times, prior = _PRIOR_LUCK
    freedom = sum(len(each) - 1 for each in tasks) + (count - 1) * share + times
    return _Summary(count, mean, spread, (within + spread + times * prior) / freedom * share, freedom)


def compute_t_probability(value: float, freedom: float) -> float:
    """The probability that a variable with Student's t distribution is below `value`."""
    tail = 0.5 * _compute_beta_share(freedom / (freedom + value * value), 0.5 * freedom, 0.5)
    return 1.0 - tail if value > 0 else tail


def _compute_beta_share(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function, by its continued fraction."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x < (a + 1.0) / (a + b + 2.0):
        return math.exp(log) * _expand_fraction(x, a, b) / a
    return 1.0 - math.exp(log) * _expand_fraction(1.0 - x, b, a) / b


def _expand_fraction(x: float, a: float, b: float) -> float:
    """Lentz's method. It converges in a few dozen terms for the arguments that `_compute_beta_share` gives it."""
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0))
    result = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / (1.0 + term * d)
            c = 1.0 + term / c
            result *= c * d
        if abs(c * d - 1.0) < 1e-12:
            break
    return result
