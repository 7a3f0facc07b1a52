"""An RL run on a terminal."""

import io

from ludus.rl.records import ConsumedGroup, HeldOutScore, RlStep
from ludus.rl.rl_tables import RlBar, describe_step, plot_rewards
from ludus.rl.trainers import UpdateMetrics
from ludus.stats import Interval

START = RlStep(run="r", step=0, version=0, held_out=HeldOutScore(split="validation", tasks=4, mean=0.25))
STEP = RlStep(
    run="r",
    step=3,
    version=3,
    groups=(ConsumedGroup(0, 2), ConsumedGroup(1, 1, "equal_scores")),
    rollouts=8,
    failed=1,
    reward=0.5,
    length=10.0,
    staleness=0.5,
    stalest=1,
    metrics=UpdateMetrics(kl=0.0123, entropy=0.9),
    held_out=HeldOutScore(split="validation", tasks=4, mean=0.75, interval=Interval(0.5, 1.0)),
    seconds={"whole": 2.0},
)


def test_a_step_in_one_line():
    assert describe_step(START, 9) == "start, validation 0.250 of 4 tasks"
    line = describe_step(STEP, 9)
    for words in (
        "step 3/9: reward 0.500",
        "length 10.0",
        "kl 0.0123",
        "entropy 0.900",
        "staleness 0.5",
        "1 of 2 groups dropped (equal_scores)",
        "1 failed",
        "validation 0.750 [0.5, 1] of 4 tasks",
        "2.0 s, 35 tokens/s",
    ):
        assert words in line


def test_unknown_numbers_are_named():
    assert "reward none" in describe_step(RlStep(run="r", step=1, version=0), 2)


def test_the_curve_shows_rewards_and_evaluations():
    records = [START, *(RlStep(run="r", step=n, version=n, reward=n / 10) for n in range(1, 10)), STEP]
    plot = plot_rewards(records)
    assert "●" in plot and "·" in plot and plot.splitlines()[-2].endswith("9")
    assert plot_rewards([START]) == ""


def test_steps_of_an_earlier_process_are_not_printed_again():
    text = io.StringIO()
    with RlBar(9, 8, file=text) as bar:
        bar.record(START, quiet=True)
        bar.record(STEP)
    assert "start" not in text.getvalue() and "step 3/9" in text.getvalue()
