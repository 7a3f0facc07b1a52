"""`ludus regate`."""

import json
from pathlib import Path

import pytest
from tests.cli_kit import Ludus, train_words, write_rules

pytestmark = pytest.mark.usefixtures("folder")


def test_another_gate_is_applied_to_a_finished_run(ludus: Ludus, folder: Path):
    write_rules(folder)
    ludus(*train_words("--out", "run", "--quiet"))
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    done = ludus("regate", "run", "--gate", "curtailed")
    assert done.code == 0, done.err
    assert "step_0001" in done.out and "0 of " in done.out and "No rollout was run" in done.out
    found = json.loads(ludus("regate", "run", "--train.gate.margin", "1", "--json").out)
    assert found["gate"] == "mean"
    assert {each["verdict"]["decision"] for each in found["decisions"]} == {"reject"}
    assert any(each["differs"] for each in found["decisions"])
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_mistakes_are_named(ludus: Ludus, folder: Path):
    write_rules(folder)
    ludus(*train_words("--out", "run", "--quiet", "--budget.calls", "1"))
    assert "no candidate was measured" in ludus("regate", "run").out
    done = ludus("regate", "run", "--gate", "sequentail")
    assert done.code == 2 and "did you mean 'sequential'?" in done.err
    done = ludus("regate", "run", "--train.epochs", "3")
    assert done.code == 2 and "--train.epochs has no effect on `ludus regate`" in done.err
    done = ludus("regate", "nowhere")
    assert done.code != 0 and "not a run directory" in done.err
