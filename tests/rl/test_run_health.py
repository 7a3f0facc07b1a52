"""A run that has nothing to show for its steps says so."""

import pytest

from ludus.rl.records import HeldOutScore, RlStep
from ludus.rl.run_health import find_troubles
from ludus.stats import Interval


def make_steps(*rewards: float | None, rows: int = 4) -> list[RlStep]:
    return [
        RlStep(run="r", step=number + 1, version=number, reward=reward, rows=rows)
        for number, reward in enumerate(rewards)
    ]


def measure(step: int, mean: float) -> RlStep:
    held_out = HeldOutScore(split="validation", tasks=50, mean=mean, interval=Interval(mean - 0.05, mean + 0.05))
    return RlStep(run="r", step=step, version=step, reward=mean, rows=4, held_out=held_out)


@pytest.mark.parametrize(
    ("records", "word"),
    [
        (make_steps(0.1, 0.2, 0.3), ""),
        (make_steps(0.0, 0.0), ""),  # too early to say
        (make_steps(0.0, 0.0, 0.0), "every reward was 0"),
        (make_steps(None, None, None), "no rollout has a score"),
        (make_steps(1.0, 1.0, 1.0, rows=0), "no update was made"),
        (make_steps(0.5, 0.4, 0.0, 0.0, 0.0), "the reward fell to 0: the last step with any was 2"),
        ([measure(0, 0.5), measure(1, 0.6), measure(2, 0.2), measure(3, 0.1)], "The best score was at step 1."),
        (
            [measure(0, 0.5), measure(1, 0.0), measure(2, 0.0), measure(3, 0.0)],
            "No checkpoint is better than the weights",
        ),
        ([measure(0, 0.5), measure(1, 0.46), measure(2, 0.45), measure(3, 0.45)], ""),  # within the intervals
    ],
)
def test_troubles(records: list[RlStep], word: str):
    troubles = find_troubles(records)
    assert len(troubles) == bool(word)
    assert word in "".join(troubles)
