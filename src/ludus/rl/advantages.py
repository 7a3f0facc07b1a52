"""How much better than its group a rollout was: the signal of RL.

An advantage is a rollout's score minus the mean score of its group, so that tasks of different difficulty can be
compared. The mean is over rollouts, not over rows: a rollout whose history branched has several rows, and counts once.
"""

import math
from collections.abc import Mapping, Sequence

from ludus.rl.group_filters import KeptGroup
from ludus.rl.settings import AdvantageScale
from ludus.rl.trainers import TrainingRow


def compute_advantages(scores: Mapping[int, float], scale: AdvantageScale = "none") -> dict[int, float]:
    """The advantage of each rollout of a group, by replicate. With `std` they are divided by the standard deviation of
    the group, so that every group has the same weight; if all scores are equal, all advantages are 0."""
    mean = math.fsum(scores.values()) / len(scores)
    centred = {replicate: score - mean for replicate, score in scores.items()}
    if scale == "none":
        return centred
    deviation = math.sqrt(math.fsum(value * value for value in centred.values()) / len(scores))
    return {replicate: value / deviation if deviation else 0.0 for replicate, value in centred.items()}


def build_training_rows(
    kept: KeptGroup, *, number: int, version: int, scale: AdvantageScale = "none"
) -> list[TrainingRow]:
    """The rows of one group for a trainer. `number` is that of the group, `version` that of its policy. Rows that were
    cut and masked give no gradient and are left out; their scores count in the mean."""
    advantages = compute_advantages(kept.scores, scale)
    return [
        TrainingRow(
            tokens=member.tokens,
            advantage=advantages[member.replicate],
            version=version,
            group=number,
            replicate=member.replicate,
        )
        for member in kept.members
        if not member.masked
    ]


def measure_staleness(rows: Sequence[TrainingRow], version: int) -> tuple[float, int]:
    """The mean and the largest number of versions between the policy of the rows and `version`."""
    ages = [version - row.version for row in rows]
    return (math.fsum(ages) / len(ages), max(ages)) if ages else (0.0, 0)
