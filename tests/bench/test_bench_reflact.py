"""`bench/reflact.py`: its checks and its drivers. No measured figure is asserted."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))  # the benchmarks are scripts, not a package

import reflact  # noqa: E402
from peers.skill_world import Reading, make_reply, make_rule  # noqa: E402


def make_pair(case: reflact.Case, ours: float, theirs: float | None, *, accepted: int = 12) -> reflact.Pair:
    def make_reading(seconds: float, accepted: int) -> Reading:
        return Reading("x", 12, accepted, seconds, seconds, 0.875)

    return reflact.Pair(case, make_reading(ours, 12), None if theirs is None else make_reading(theirs, accepted))


GOOD = [make_pair(reflact.CPU, 0.4, 2.4), make_pair(reflact.ONE, 5.0, 8.0), make_pair(reflact.FOUR, 4.0, 11.0)]


def list_missed(pairs: list[reflact.Pair], resume: float = 1.0, look_up: float = 30.0) -> list[str]:
    return [check.name for check in reflact.make_checks(pairs, resume, look_up, 100)[0] if not check.passed]


def test_all_targets_met() -> None:
    assert list_missed(GOOD) == []
    assert "50 ms, 4 batches per step" in reflact.render_report(GOOD)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"pairs": [make_pair(reflact.CPU, 0.5, 2.4)]}, "CPU lead over skillopt"),
        ({"pairs": [make_pair(reflact.FOUR, 6.0, 11.0)]}, "wall at 50 ms, 4 batches per step"),
        ({"pairs": GOOD, "resume": 2.1}, "resume of 40 steps"),
        ({"pairs": GOOD, "look_up": 51.0}, "look-up in 100 outcomes"),
    ],
)
def test_missed_targets_are_reported(changed: dict[str, Any], words: str) -> None:
    assert list_missed(**changed) == [words]


def test_runs_that_decide_differently_are_not_compared() -> None:
    found, notes = reflact.make_checks(
        [make_pair(reflact.CPU, 0.4, 9.0, accepted=11), make_pair(reflact.ONE, 1.0, None)], 1.0, 1.0, 9
    )
    assert [check.name for check in found] == ["resume of 40 steps", "look-up in 9 outcomes"]
    assert notes == [
        "models at once: skillopt they differ in accepted",
        "50 ms, 1 batch per step: skillopt not run",
    ]


def test_a_question_needs_its_rule() -> None:
    assert make_reply(f"# Skill\n{make_rule(43)}", "Question 3?") == "<answer>word3</answer>"
    assert make_reply("# Skill", "Question 3?") == "<answer>no idea</answer>"


def test_our_driver_resumes_a_run_of_forty_steps(tmp_path: Path) -> None:
    for _ in range(2):
        assert reflact.run_driver(Path(sys.executable), "run_reflact.py", "keep", tmp_path / "run") == {"steps": 40}
    command = [sys.executable, str(BENCH / "peers" / "run_store.py"), "50"]
    assert b"microseconds" in subprocess.run(command, capture_output=True, check=True).stdout
