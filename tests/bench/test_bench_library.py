"""The benchmark of libraries: its world says the truth, and a small one is measured as it is."""

import sys
from collections import Counter
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(autouse=True)
def find_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("library", "common"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_the_truth_of_a_world_is_that_of_its_rules():
    from peers.library_world import LibrarySetting, LibraryWorld

    world = LibraryWorld(LibrarySetting("test", strays=0.0), 1)
    for name, role in world.truth.items():
        truth = world.measure_truth([name], tasks=20, runs=2)
        if role == "unused":
            assert truth is None
        elif role == "duplicate":
            assert truth == pytest.approx(0.0)
        else:
            (effect,) = {v for rule, v in world.effects.items() if rule.split("-")[0] == name.split("-")[0]}
            assert truth == pytest.approx(effect)
    both = [name for name, role in world.truth.items() if role == "duplicate"]
    assert (world.measure_truth(both, tasks=20, runs=2) or 0.0) > 0.2


def test_a_small_world_is_measured_and_nothing_wrong_is_claimed():
    import library as bench
    from peers.library_world import LibrarySetting, LibraryWorld

    world = LibraryWorld(LibrarySetting("test", helpful=1, useless=1, harmful=1, pairs=0, unused=1, tasks=10), 2)
    report = bench.measure_world(world)
    counts: Counter[tuple[str, str]] = Counter()
    assert len(bench.count_verdicts(world, report, counts)) == 3
    for role, verdict in counts:
        assert verdict in {*bench.EXPECTED[role], "not enough evidence"}
    assert counts["unused", "never loads"] == 1
    assert len(list(bench.list_rows(counts))) == 6
