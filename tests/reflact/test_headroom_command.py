"""`ludus headroom`, as a user meets it."""

import json
from pathlib import Path

import pytest
from tests.cli_kit import Ludus, write_rules

pytestmark = pytest.mark.usefixtures("folder")

WORDS = ("headroom", "--config", "config.yaml", "--out", "run")


def test_headroom_is_measured_reported_and_found_again(ludus: Ludus, folder: Path):
    write_rules(folder)
    done = ludus(*WORDS, "--hints", "4")
    assert done.code == 0, done.err
    assert "Worth it" in done.out or "Not" in done.out
    assert "6 selection tasks, in two runs" in done.out and "4 train tasks with the reference" in done.out
    report = json.loads(Path("run/headroom.json").read_text())
    assert report["score"] == 0.0 and report["training"]["agent"]["calls"] > 0
    calls = json.loads(ludus(*WORDS, "--hints", "4", "--resume", "--json").out)
    assert calls["headroom"] == report and calls["ledger"]["agent"]["calls"] == 6 * 2 + 4 * 2
    assert report["advice"] in ludus("show", "run").out
    assert report["choice"] in ("words", "neither") and report["weights"]["spread"] == 0.0, "no rollout passes"
    assert report["choice_advice"] in ludus("show", "run").out and report["weights"]["rollouts"] == 60 * 12 * 16
    assert json.loads(ludus("show", "run", "--json").out)["headroom"] == report


def test_a_stopped_run_goes_on_with_its_own_number_of_hints(ludus: Ludus, folder: Path):
    write_rules(folder)
    assert ludus(*WORDS, "--hints", "4", "--budget.calls", "3").code == 3
    done = ludus("headroom", "--resume", "--out", "run", "--budget.calls", "400")
    assert done.code == 0 and "4 train tasks with the reference" in done.out, done.err


def test_rollouts_with_hints_cannot_be_used_for_training(ludus: Ludus, folder: Path):
    write_rules(folder)
    assert ludus(*WORDS, "--quiet").out.strip() == "run"
    done = ludus("export", "run")
    assert done.code == 2 and "no training data" in done.err
    done = ludus("train", "--resume", "--out", "run")
    assert done.code == 2 and "ludus headroom --resume" in done.err


def test_mistakes_and_unfinished_runs(ludus: Ludus, folder: Path):
    write_rules(folder)
    assert "--hints is -1" in ludus(*WORDS, "--hints", "-1").err
    assert "which environment?" in ludus("headroom").err
    assert ludus(*WORDS, "--budget.calls", "3").code == 3
    done = ludus("show", "run")
    assert done.code != 0 and "not finished" in done.err
    assert "train:" in ludus(*WORDS, "--print-config").out
