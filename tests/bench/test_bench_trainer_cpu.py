"""Parts of `bench/trainer_cpu.py` and `bench/request_sizes.py`. Figures are not asserted."""

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "peers")]  # the benchmarks are scripts, not a package

import request_sizes  # noqa: E402
import trainer_cpu as bench  # noqa: E402


def test_the_cheapest_repeat_counts_and_rollouts_are_all_that_were_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = iter((4.0, 1.0, 3.0, 2.0))

    def measure(family: str, seed: int, variant: str) -> bench.Cost:
        return bench.Cost.read({"trainer_cpu": next(cpu), "counts": {"train": 900, "test": 100}})

    monkeypatch.setattr(bench, "measure", measure)
    found = bench.measure_family("easy", worlds=1, repeats=2)
    assert {recipe: [cost.each for cost in costs] for recipe, costs in found.items()} == {
        "ledger": [3.0],
        "reflact": [1.0],
    }
    assert bench.average([bench.Cost(1.0, 1000), bench.Cost(2.0, 500)]) == 2.0


def test_differences_are_paired_by_world() -> None:
    def make_row(sizes: str, seed: int, accuracy: float) -> dict[str, object]:
        tokens = {"prompt": 100, "new": 25, "optimizer": 2000}
        curve = [(0, 0.1, 0), (80, 0.6, 3)]
        row = {"start": 0.1, "ceiling": 0.9, "accuracy": accuracy, "curve": curve, "calls": 155, "tokens": tokens}
        return {"family": "easy", "method": sizes, "seed": seed, **row}

    rows = [make_row("8, 8, 1", seed, 0.8) for seed in (0, 1)] + [make_row("24, 24, 1", seed, 0.79) for seed in (0, 1)]
    text = request_sizes.render(request_sizes.collect(rows))
    assert "-0.010 ± 0.000" in text and "25%" in text and "155" in text and "| 80 " in text
