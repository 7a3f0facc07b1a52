"""Parts of `bench/api.py`. No measured figure is asserted."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))  # the benchmarks are scripts, not a package

import api as bench

from ludus.rl.api.posted_groups import check_group


def test_the_groups_are_ones_that_the_server_takes():
    assert check_group(json.dumps(bench.build_group(16, 1, 0)).encode()).size == bench.ROWS


def test_the_runs_against_a_real_server(tmp_path):
    with bench.run_ludus(tmp_path / "api") as running:
        row = bench.measure(running, 16, 0.2, 2)
        assert row.rate > 0
        crowd = bench.measure_crowd(running, 2)
        assert (len(crowd.seen), crowd.wrong) == (bench.ENVIRONMENTS * 2, 0)
        assert len(bench.measure_memory(running, 4000)) == 10


def make_row(server: str, rate: float, batch_ms: float) -> bench.Row:
    return bench.Row(server, 512, 97.0, rate, 1.0, 1.0, batch_ms)


def test_a_missed_target_fails():
    rows = [make_row("ludus", 2500.0, 5.0), make_row(bench.PEER, 200.0, 300.0)]
    good = bench.make_checks(rows, bench.Crowd(), [50.0, 51.0])
    assert all(check.passed for check in good)
    assert not all(check.passed for check in bench.make_checks(rows, bench.Crowd(wrong=1), [50.0, 51.0]))
    assert not all(check.passed for check in bench.make_checks(rows, bench.Crowd(), [50.0, 90.0]))
    slow = [make_row("ludus", 1900.0, 5.0), make_row(bench.PEER, 200.0, 300.0)]
    assert [check.name for check in bench.make_checks(slow, bench.Crowd(), [50.0, 51.0]) if not check.passed] == [
        "groups/s at 8×512",
        "8×512 lead",
    ]
