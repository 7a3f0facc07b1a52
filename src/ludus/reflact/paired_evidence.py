"""How sure it is that one skill is better than another, from paired rollouts on few tasks. Pure.

The unit is the task: the question is whether the mean difference over all tasks of this sort is above zero. Two things
blur it, the luck of single rollouts and the spread of the effect from task to task. With few tasks the spread cannot
be estimated from them alone. So it has a prior that counts like `_PRIOR_TASKS` tasks: the luck, which replicates show
well, and a spread of `_PRIOR_SPREAD` besides. The mean then follows Student's t.

Unlike one vote per task this weighs the size of differences: two tasks that are solved now count more than two that
went a little worse. The constants were chosen on simulated worlds (`docs/optimizer.md`).
"""

import math
from collections.abc import Sequence

FEWEST_TASKS = 3
"""With fewer tasks nothing is certain: nothing shows how much the effect differs from task to task."""
_PRIOR_TASKS = 6.0
_PRIOR_SPREAD = 0.1
_PRIOR_LUCK = (2.0, 0.25)
"""The variance of a single paired difference, and for how many rollouts that counts."""


def compute_certainty(differences: Sequence[Sequence[float]]) -> float:
    """The probability that the mean difference is above zero. `differences` has those of each task, one for each pair
    of rollouts. 0.5 if there are too few tasks."""
    tasks = [each for each in differences if each]
    if len(tasks) < FEWEST_TASKS:
        return 0.5
    count = len(tasks)
    means = [math.fsum(each) / len(each) for each in tasks]
    mean = math.fsum(means) / count
    spread = math.fsum((value - mean) ** 2 for value in means)
    luck = _estimate_luck(tasks, means, spread) * math.fsum(1.0 / len(each) for each in tasks) / count
    freedom = _PRIOR_TASKS + count - 1
    variance = (_PRIOR_TASKS * (luck + _PRIOR_SPREAD**2) + spread) / freedom
    return compute_t_probability(mean / math.sqrt(variance / count), freedom)


def _estimate_luck(tasks: Sequence[Sequence[float]], means: Sequence[float], spread: float) -> float:
    """The variance of a single paired difference of one task. Without replicates, that of all tasks."""
    times, prior = _PRIOR_LUCK
    repeated = sum(len(each) - 1 for each in tasks)
    total = math.fsum((value - mean) ** 2 for each, mean in zip(tasks, means, strict=True) for value in each)
    if not repeated:
        repeated, total = len(tasks) - 1, spread
    return (total + times * prior) / (repeated + times)


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
