"""How many changes a step may make: the learning rate of a trainer in words. Pure.

The budget is a function of how many selections the run has made, this one included, and of how many steps it has in
all. The count is part of the run state, so a resumed run follows the same curve as one that was never interrupted.
Steps that had nothing to select from do not advance it.
"""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def budget(schedule: Schedule, step: int, total: int, *, most: int, least: int) -> int:
    """The budget of selection number `step` (from 1) out of `total`, falling from `most` to `least`."""
    if schedule == "constant" or total <= 1:
        return most
    done = min(step, total) / total
    if schedule == "linear":
        return max(least, round(most + (least - most) * done))
    return max(least, round(least + 0.5 * (most - least) * (1 + math.cos(math.pi * done))))
