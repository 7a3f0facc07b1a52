"""`bench/demo.py`: its intervals and checks. No measured figure is asserted."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))  # the benchmarks are scripts, not a package

import demo


def make_run(initial: int, best: int, seconds: float = 100.0, tasks: int = 64) -> demo.Run:
    return demo.Run(0, demo.Share(initial, tasks), demo.Share(best, tasks), 2, 4, seconds)


def test_intervals_are_wilsons_and_newcombes():
    assert demo.Share(0, 10).interval == (pytest.approx(0.0, abs=1e-9), pytest.approx(0.2775, abs=1e-4))
    assert demo.Share(56, 70).interval == (pytest.approx(0.6918, abs=1e-3), pytest.approx(0.8770, abs=1e-3))
    two = demo.Run(0, demo.Share(48, 80), demo.Share(56, 70), 0, 0, 0.0)
    assert two.gain_interval == (pytest.approx(0.0524, abs=1e-4), pytest.approx(0.3339, abs=1e-4))


@pytest.mark.parametrize(
    ("runs", "missed"),
    [
        ([make_run(0, 50), make_run(0, 30)], []),
        ([make_run(0, 50), make_run(30, 32)], ["lowest end of a difference's interval"]),
        ([make_run(0, 0)], ["lowest end of a difference's interval"]),
        ([make_run(0, 50), make_run(0, 50, 301.0)], ["slowest seed"]),
    ],
)
def test_missed_targets_are_reported(runs: list[demo.Run], missed: list[str]):
    assert [check.name for check in demo.make_checks(runs, short=False) if not check.passed] == missed
    assert all(check.passed for check in demo.make_checks(runs, short=True))


def test_the_report_has_a_line_for_each_seed():
    assert len(demo.render_report([make_run(0, 50), make_run(0, 30)]).splitlines()) == 4
    test = {"overall": {"hard": 0.75, "scored": 64}}
    summary = {name: {"test": test} for name in ("initial", "best")}
    assert demo.read_run(1, {**summary, "accepted": 1, "rejected": 2}, 9.0).best == demo.Share(48, 64)
