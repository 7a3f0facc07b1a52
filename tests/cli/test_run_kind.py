"""The kind of a run, by its recorded settings, and which command may resume it."""

from pathlib import Path

import pytest

from ludus.cli.run_kind import explain_missing_rows, find_kind, refuse_other_kind
from ludus.config import load, to_record
from ludus.config.tree import CONTENT, TRAINING, WEIGHTS
from ludus.errors import ConfigError

EVERYTHING = to_record(load())
RUNS = {
    "training": {**EVERYTHING, CONTENT: {"tasks": "0"}},
    "batch": {name: value for name, value in EVERYTHING.items() if name not in TRAINING | WEIGHTS},
    "weights": {name: value for name, value in EVERYTHING.items() if name not in TRAINING},
    "worker": {name: value for name, value in EVERYTHING.items() if name not in (TRAINING | WEIGHTS) - {"serve"}},
    "gateway": EVERYTHING,
}


@pytest.mark.parametrize("kind", RUNS)
def test_the_recorded_settings_tell_the_kind(kind: str):
    assert find_kind(RUNS[kind]) == kind


@pytest.mark.parametrize(
    ("kind", "command"),
    [("training", "train"), ("weights", "rl"), ("batch", "evaluate"), ("batch", "process"), ("worker", "serve")],
)
def test_a_run_is_resumed_by_the_commands_of_its_kind_alone(kind: str, command: str):
    refuse_other_kind(Path("r"), RUNS[kind], command)
    for other in RUNS.keys() - {kind}:
        with pytest.raises(ConfigError, match=f"r is .* which `ludus {command}` cannot resume: .*another --out$"):
            refuse_other_kind(Path("r"), RUNS[other], command)


def test_the_right_command_is_named():
    with pytest.raises(ConfigError, match=r"resume it with ludus train --resume --out 'a b', or"):
        refuse_other_kind(Path("a b"), RUNS["training"], "evaluate")
    with pytest.raises(ConfigError, match="ludus evaluate --resume --out r or ludus process --resume --out r, or"):
        refuse_other_kind(Path("r"), RUNS["batch"], "train")


def test_runs_without_a_file_of_rows_are_explained():
    words = {kind: explain_missing_rows(Path("a b"), record) for kind, record in RUNS.items()}
    assert "is an evaluation" in words["batch"] and "ludus export 'a b' | ludus check -" in words["batch"]
    assert "is a training run" in words["training"] and "ludus export 'a b' | ludus check -" in words["training"]
