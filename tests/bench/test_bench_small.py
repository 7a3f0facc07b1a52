"""Parts of `bench/small.py` and its worlds. Figures of families are not asserted."""

import sys
from pathlib import Path
from statistics import fmean

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "peers")]  # the benchmarks are scripts, not a package

import small_worlds as worlds  # noqa: E402


@pytest.mark.parametrize("family", ["judged", "partial"])
def test_the_true_score_is_the_mean_of_many_rollouts(family: str):
    world = worlds.load_world(family, 1000, held_out=False)
    item = world.items["test"][0]
    scores = [float(world.run_agent(world.initial, item, seed).rpartition(" ")[2]) for seed in range(3000)]
    truth = world.compute_chance(item, world.read_lines(world.initial))
    assert fmean(scores) == pytest.approx(truth, abs=0.03)
    assert (max(scores) < 1.0) is (family == "judged")


@pytest.mark.parametrize("family", ["memoriser tiny", "quirk tiny"])
def test_what_train_items_need_helps_nowhere_else(family: str):
    world = worlds.load_world(family, 1000, held_out=False)
    needs = {split: {rule for item in items for rule in item.needs} for split, items in world.items.items()}
    assert not needs["train"] & (needs["selection"] | needs["test"])


def test_a_strong_start_leaves_something_to_learn():
    world = worlds.load_world("strong", 1000, held_out=False)
    rules = range(world.setting.rules)
    every = "".join(f"- When {world.situations[rule]}: do it (r{rule:02d}.x1)\n" for rule in rules)
    assert 0.8 < world.start < 0.93 < world.compute_accuracy(world.initial + every)


def test_a_run_says_what_it_ships_and_what_is_true():
    row = worlds.run({"family": "twenty", "seed": 1000, "held_out": False})
    assert worlds.DEVELOPMENT["twenty"].sizes == (10, 5, 5)
    assert row["ships"] == (row["lines"] > 0) and row["spent"] >= 200 + row["shipping"]
    assert row == {**worlds.run({"family": "twenty", "seed": 1000, "held_out": False}), "cpu": row["cpu"]}, "again"
