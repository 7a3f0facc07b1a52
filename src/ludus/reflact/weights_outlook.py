"""Words or weights? What RL on the same tasks would need, from rollouts that were run anyway. Pure.

RL moves a policy towards what it does right at times. So it can learn from a task only if some rollouts of a group pass
and others fail, and it hardly reaches what no rollout of a group ever does. Both follow from how pass rates differ from
task to task. Each task has a few rollouts only, so the rates are taken to have a beta distribution: its mean is the
share that passed, and its spread is what agrees with how often rollouts of one task differ.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

Advice = Literal["words", "weights", "both", "neither"]

ENOUGH = 0.05
"""Fewer points than this within reach are not worth a training."""
FEW_GROUPS = 0.1
"""Below this share of groups with spread, nearly all rollouts of an update are lost."""


class TaskTally(NamedTuple):
    """The rollouts of one task."""

    scored: int
    passed: int
    unequal: int = 0
    """Pairs of rollouts with different scores, where scores are graded: RL learns from those, too."""


class RlPlanSizes(NamedTuple):
    """The size of an RL run: updates, tasks of each, rollouts of each task."""

    steps: int
    groups: int
    group_size: int

    @property
    def rollouts(self) -> int:
        return self.steps * self.groups * self.group_size


class WeightsOutlook(Struct, frozen=True, kw_only=True):
    """What RL on the same tasks would need, and what it could reach."""

    steps: int
    groups: int
    group_size: int
    passed: float
    reach: float
    """The share of tasks that at least one rollout of a group passes: what RL can hope for."""
    spread: float
    """The share of groups in which some rollouts pass and others fail. Only these are learned from."""
    rollouts: int
    """Of the whole run."""
    tokens: int
    """Prompt and completion tokens of all rollouts."""
    update_tokens: int
    """Of one update: those of its groups with spread."""
    success_at: float | None = None
    """The score from which a rollout counts as passed, where none ever passes."""

    @property
    def room(self) -> float:
        return max(0.0, self.reach - self.passed)

    @property
    def is_worth_it(self) -> bool:
        return self.room >= ENOUGH and self.spread >= FEW_GROUPS


def foresee_weights(
    tallies: Sequence[TaskTally], sizes: RlPlanSizes, tokens: float, success_at: float | None = None
) -> WeightsOutlook | None:
    """What RL would need. `tokens`: those of one rollout. `success_at`: which score counts as passed in the tallies.
    None if no task has two scored rollouts."""
    several = [tally for tally in tallies if tally.scored >= 2]
    if not several:
        return None
    mean = math.fsum(t.passed / t.scored for t in several) / len(several)
    differing = math.fsum(2 * t.passed * (t.scored - t.passed) / (t.scored * (t.scored - 1)) for t in several)
    all_pass, all_fail = estimate_equal_groups(mean, differing / len(several), sizes.group_size)
    # With graded scores, a group differs at least as often as two rollouts of it do.
    unequal = math.fsum(2 * t.unequal / (t.scored * (t.scored - 1)) for t in several) / len(several)
    spread = max(0.0, 1.0 - all_pass - all_fail, unequal)
    return WeightsOutlook(
        steps=sizes.steps,
        groups=sizes.groups,
        group_size=sizes.group_size,
        passed=mean,
        reach=1.0 - all_fail,
        spread=spread,
        rollouts=sizes.rollouts,
        tokens=round(sizes.rollouts * tokens),
        update_tokens=round(spread * sizes.groups * sizes.group_size * tokens),
        success_at=success_at,
    )


def estimate_equal_groups(mean: float, differing: float, size: int) -> tuple[float, float]:
    """The shares of groups of this size in which all rollouts pass, and in which all fail.

    `mean` is the mean pass rate, and `differing` the probability that two rollouts of one task have different results:
    twice the mean of p(1 - p) over tasks.
    """
    most = 2 * mean * (1 - mean)
    if most <= 0.0:
        return (1.0, 0.0) if mean >= 1.0 else (0.0, 1.0)
    alike = 1.0 - min(1.0, differing / most)
    if alike <= 1e-9:  # all tasks are equally hard
        return mean**size, (1 - mean) ** size
    if alike >= 1 - 1e-9:  # each task is passed always or never
        return mean, 1 - mean
    total = 1.0 / alike - 1.0
    return _raise_beta(mean * total, total, size), _raise_beta((1 - mean) * total, total, size)


def _raise_beta(first: float, total: float, power: int) -> float:
    """The mean of p to a power, for p with a beta distribution of these parameters: its first one and their sum."""
    return math.prod((first + step) / (total + step) for step in range(power))


def choose_advice(words: bool, weights: WeightsOutlook | None) -> Advice:
    """Which training is worth its money. `words`: whether that of a skill is."""
    if weights is None or not weights.is_worth_it:
        return "words" if words else "neither"
    return "both" if words else "weights"


def advise_weights(words: bool, reason: str, found: WeightsOutlook | None) -> str:
    """One sentence: words, weights, both or neither, and why. `reason`: why words are worth it, or not."""
    if found is None:
        why = "no task has two scored rollouts, so nothing is known about weights"
    elif found.is_worth_it:
        why = (
            f"RL can learn from {found.spread:.0%} of the groups of {found.group_size} and reach about "
            f"{found.reach:.0%}"
        )
    elif found.room < ENOUGH:
        why = f"{found.group_size} tries pass hardly more tasks than one ({found.reach:.0%}): RL has little to learn"
    else:
        why = f"only {found.spread:.0%} of the groups of {found.group_size} have rollouts that differ: RL learns slowly"
    start = {
        "words": "Words",
        "weights": "Weights",
        "both": "Both, words first (they are cheaper)",
        "neither": "Neither",
    }
    return f"{start[choose_advice(words, found)]}: {reason}; {why}."
