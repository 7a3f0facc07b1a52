"""The number of changes that a step may make. It plays the role of a learning rate. Pure.

The budget depends on the number of selections so far (including this one) and on the number of steps of the run. The
count of selections is part of the run state, so a resumed run follows the same schedule as an uninterrupted one. A step
with nothing to select from does not advance it.
"""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def compute_budget(schedule: Schedule, step: int, total: int, *, most: int, least: int) -> int:
    """The budget of selection number `step` (from 1) out of `total`, falling from `most` to `least`."""
    if schedule == "constant" or total <= 1:
        return most
    done = min(step, total) / total
    if schedule == "linear":
        return max(least, round(most + (least - most) * done))
    return max(least, round(least + 0.5 * (most - least) * (1 + math.cos(math.pi * done))))
