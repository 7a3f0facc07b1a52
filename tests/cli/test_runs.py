"""`ludus runs`: what there is in a folder of runs."""

import json
import os
from pathlib import Path

import pytest
from tests.build import make_rollout
from tests.cli_kit import Ludus, script_flags, train_words, write_rules, write_sums

from ludus.encoding import to_json
from ludus.rl.records import RL_STEPS, RlStep
from ludus.run_info import keep_info, open_info
from ludus.store import RunDir
from ludus.view.facts import FactCache
from ludus.view.run_folder import find_runs, read_card

RECORD = {"env": {"name": "sums.py"}, "model": {"type": "scripted"}}


def make_run(path: Path, *scores: float | None, record: dict = RECORD) -> RunDir:
    directory = RunDir.open(path, record)
    for number, score in enumerate(scores):
        directory.put(f"key-{number}", make_rollout(score))
    return directory


@pytest.fixture
def runs(ludus: Ludus, folder: Path) -> Path:
    """A finished evaluation, one that its budget ended, one of 0.1, a training run, and what is no run."""
    write_sums(folder)
    ludus("evaluate", "sums.py", "--out", "runs/done", *script_flags("half_broken"), "--run.retries", "0")
    budget = ["--budget.calls", "2", "--run.concurrency", "1"]
    ludus("evaluate", "sums.py", "--out", "runs/both/spent", *script_flags(), *budget)
    make_run(folder / "runs" / "old", 1.0, 0.0).close()
    with make_run(folder / "runs" / "skill", 1.0) as directory, keep_info(directory, "train"):
        pass
    (folder / "runs" / "notes").mkdir()
    (folder / "runs" / "notes" / "a.txt").touch()
    return folder / "runs"


def test_every_run_says_what_it_is_and_how_it_went(ludus: Ludus, runs: Path):
    done = ludus("runs", "--json")
    assert done.code == 0
    found = {row["run"]: row for row in json.loads(done.out)}
    assert found.keys() == {"done", "both/spent", "old", "skill"}
    states = {name: (row["kind"], row["state"]) for name, row in found.items()}
    assert states == {
        "done": ("evaluate", "finished"),
        "both/spent": ("evaluate", "drained"),
        "old": ("evaluate", ""),
        "skill": ("train", "finished"),
    }
    numbers = {name: (row["rollouts"], row["scored"], row["mean"]) for name, row in found.items()}
    assert numbers == {
        "done": (4, 2, 1.0),
        "both/spent": (2, 2, 1.0),
        "old": (2, 2, 0.5),
        "skill": (1, 1, None),  # of several policies
    }
    assert "budget.calls" in found["both/spent"]["message"]
    assert (found["done"]["env"], found["done"]["ended"] >= found["done"]["started"] > 0) == ("sums.py", True)


def test_people_see_a_table_with_the_oldest_first_and_why_runs_stopped(
    ludus: Ludus, runs: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "160")
    os.utime(runs / "old" / "config.json", (0, 0))
    done = ludus("runs")
    assert done.code == 0
    names = [line.split()[0] for line in done.out.splitlines()]
    assert names[:2] == ["run", "old"] and names.index("done") < names.index("skill")
    assert "4, 2 scored" in done.out and "(0.1)" in done.out
    assert "both/spent: " in done.out


def test_a_folder_without_runs_and_one_that_is_not_there(ludus: Ludus, folder: Path):
    (folder / "runs").mkdir()
    assert "no runs yet" in ludus("runs").out
    assert json.loads(ludus("runs", "runs", "--json").out) == []
    done = ludus("runs", "nowhere")
    assert done.code == 2 and "there is no folder nowhere" in done.err


def test_a_run_itself_can_be_named(ludus: Ludus, runs: Path):
    assert [row["run"] for row in json.loads(ludus("runs", "runs/done", "--json").out)] == ["runs/done"]


def test_a_run_that_goes_on_is_read_and_one_that_cannot_be_read_says_why(folder: Path):
    with make_run(folder / "a", 1.0) as directory:
        open_info(directory, "evaluate")
        row = read_card(folder / "a", "a", FactCache(None))
        assert (row.state, row.rollouts) == ("running", 1)
    (folder / "a" / "run.json").write_text("{")
    row = read_card(folder / "a", "a", FactCache(None))
    assert (row.state, row.kind) == ("damaged", "") and "run.json is damaged" in row.message


def test_runs_are_found_a_few_folders_deep_and_hidden_ones_are_not(folder: Path):
    for place in ("a", "b/c", "b/.hidden", "d/e/f", "d/e/f/inner", "g/h/i/j/k"):
        (folder / place).mkdir(parents=True)
        (folder / place / "config.json").touch()
    found = [str(path.relative_to(folder)) for path in find_runs(folder)]
    assert found == ["a", "b/c", "d/e/f"]


def test_training_runs_have_a_score_too(ludus: Ludus, folder: Path, monkeypatch: pytest.MonkeyPatch):
    write_rules(folder)
    monkeypatch.setenv("COLUMNS", "160")
    assert ludus(*train_words("--out", "runs/skill", "--quiet")).code == 0
    ludus(*train_words("--out", "runs/begun", "--quiet", "--budget.calls", "60"))
    with (
        RunDir.open(folder / "runs" / "weights", RECORD | {"rl": {"steps": 2}}) as directory,
        keep_info(directory, "rl"),
    ):
        for step, reward in ((0, None), (1, 0.25), (2, 0.75)):
            record = RlStep(run="r", step=step, version=step, reward=reward)
            directory.put_record(f"step-{step}", RL_STEPS, to_json(record))
    found = {row["run"]: (row["measure"], row["score"]) for row in json.loads(ludus("runs", "--json").out)}
    assert found["skill"] == ("test", 1.0) and found["weights"] == ("reward", 0.75)
    assert found["begun"][0] == "selection"
    out = ludus("runs").out
    assert "1 test" in out and "0.75 reward" in out


def test_the_table_survives_80_columns(ludus: Ludus, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = folder / "runs" / "a-run-with-a-rather-long-name"
    with make_run(path, 1.0) as directory, keep_info(directory, "evaluate"):
        pass
    out = ludus("runs").out
    assert all(len(line) <= 80 for line in out.splitlines()) and "…" not in out
    assert "a-run-with-a-rather-long-name" in "".join(line.split()[0] for line in out.splitlines()[1:])
