"""`ludus compare`."""

import json
from pathlib import Path

import pytest
from tests.cli_kit import Ludus, script_flags, write_sums


@pytest.fixture
def runs(ludus: Ludus, folder: Path) -> None:
    """Two runs of `sums.py`: one is right everywhere, the other fails where the server does."""
    write_sums(folder)
    ludus("evaluate", "sums.py", "--out", "runs/right", *script_flags())
    ludus("evaluate", "sums.py", "--out", "runs/half", "--run.retries", "0", *script_flags("half_broken"))


def test_runs_are_compared_on_the_tasks_that_both_have(ludus: Ludus, runs: None):
    code, out, _ = ludus("compare", "runs/right", "runs/half")
    assert code == 0 and "right" in out and "2 of 4 rollouts have no score" in out and "+0.000" in out
    found = json.loads(ludus("compare", "runs/right", "runs/half", "--json").out)
    assert found["pairs"][0]["tasks"] == 2 and found["pairs"][0]["tied"] == 2


def test_what_cannot_be_compared_is_said(ludus: Ludus, runs: None):
    assert "needs two runs or more" in ludus("compare", "runs/right").err
    assert "needs two runs or more" in ludus("compare", "runs/right", "runs/right").err
    assert "is not a run directory" in ludus("compare", "runs/right", "runs").err
    ludus("evaluate", "gsm8k", "--out", "runs/maths", "--model.type", "scripted", "--model.script", "models.py:broken")
    code, _, err = ludus("compare", "runs/right", "runs/maths")
    assert code == 1 and "right and maths share no task with scores" in err


def test_runs_of_training_are_refused(ludus: Ludus, folder: Path, runs: None):
    run = folder / "runs/right"
    info, config = json.loads((run / "run.json").read_text()), json.loads((run / "config.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "kind": "train"}))
    assert "has rollouts of several policies" in ludus("compare", "runs/right", "runs/half").err
    (run / "run.json").unlink()  # as 0.1 wrote runs
    assert ludus("compare", "runs/right", "runs/half").code == 0
    (run / "config.json").write_text(json.dumps({**config, "rl": {}}))
    assert "has rollouts of several policies" in ludus("compare", "runs/right", "runs/half").err
