"""`ludus plan`."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from tests.cli_kit import Ludus, read_calls, script_flags, write_sums


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_sums(folder)


def test_a_plan_from_a_calibration_and_the_run_that_goes_on_from_it(ludus: Ludus, folder: Path):
    plan = ("plan", "sums.py", "--out", "r", "--nodes", "2,30", "--plan.rollouts", "12", "--run.concurrency", "8")
    code, out, err = ludus(*plan, "--json", "--env.size", "40", *script_flags())
    assert code == 0, err
    found = json.loads(out)["plan"]
    assert found["total"] == 40
    assert {2, 30, 1000} <= {row["nodes"] for row in found["nodes"]}
    assert json.loads(Path("r/plan.json").read_text()) == found
    calibration = json.loads(Path("r/calibration.json").read_text())
    assert calibration["first"] == 3 and calibration["core_seconds"] > 0 and calibration["low"]["tokens"] > 0
    ElementTree.fromstring(Path("r/plan.svg").read_text())
    assert len(read_calls(folder)) == 12
    code, _, err = ludus("evaluate", "--resume", "--out", "r", "--quiet")
    assert code == 0, err
    assert len(read_calls(folder)) == 40


def test_a_plan_from_a_run_and_its_check(ludus: Ludus, folder: Path):
    ludus("evaluate", "sums.py", "--out", "r", "--quiet", *script_flags())
    code, out, err = ludus("plan", "--from", "r", "--nodes", "1,5", "--plan.server_tokens_per_second", "10")
    assert code == 0, err
    assert "model server" in out and "for 1000 nodes at full speed" in out and "assumed:" in out
    code, out, _ = ludus("plan", "--check", "r", "--json", "--plan.tolerance", "1000")
    assert code == 0
    assert [line["name"] for line in json.loads(out)["check"]] == ["rollouts per hour", "tokens"]
    code, out, err = ludus("plan", "--check", "r", "--from", "r", "--plan.server_tokens_per_second", "0.01")
    assert code == 1
    assert "OUTSIDE 25%" in out and "plan.tolerance" in err
    assert len(read_calls(folder)) == 4


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("sums.py", "--nodes", "0"), "--nodes is '0'"),
        (("sums.py", "--nodes", "a"), "--nodes is 'a'"),
        (("sums.py", "--from", "r"), "the environment has no effect with --from"),
        (("--check", "r", "--out", "x"), "--out has no effect with --check"),
        (("--from", "nothing"), "nothing is not a run directory"),
        (("--check", "r", "--rl.steps", "3"), "--rl.steps has no effect on `ludus plan`"),
    ],
)
def test_what_is_wrong_is_named(ludus: Ludus, words: tuple[str, ...], told: str):
    code, _, err = ludus("plan", *words)
    assert code == 2
    assert told in err
