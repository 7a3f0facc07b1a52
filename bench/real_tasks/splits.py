"""The splits of the tasks of `bench/real.py`: distinct tasks, shuffled once, and cut into four parts.

`dev` is for looking at tasks and for skills that are written by hand. Nothing of it is used later.
"""

from collections.abc import Iterator, Sequence
from random import Random

from msgspec.structs import replace

from ludus.types import Task

SIZES = {"dev": 24, "train": 24, "selection": 16, "test": 40}


def cut(tasks: Sequence[Task], split: str, name: str) -> Iterator[Task]:
    """The tasks of one split."""
    if len(tasks) < sum(SIZES.values()):
        raise ValueError(f"{name} has only {len(tasks)} tasks; its splits need {sum(SIZES.values())}")
    shuffled = list(tasks)
    Random(name).shuffle(shuffled)
    begin = 0
    for other, size in SIZES.items():
        if other == split:
            yield from (replace(task, split=split) for task in shuffled[begin : begin + size])
        begin += size
