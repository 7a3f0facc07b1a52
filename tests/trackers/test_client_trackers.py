"""Trackers of services. The real client libraries are used where they are installed (`make test-trainers`)."""

import importlib.util
import json
from pathlib import Path

import pytest

from ludus.errors import ConfigError
from ludus.trackers import Table, TrackedRun
from ludus.trackers.client_trackers import TrackioTracker, WandbTracker

VALUES = {"train/reward": 0.5, "train/rollouts": Table(("text", "score"), (("[user] hi", 1.0), ("[user] ho", 0.0)))}


def make_run(folder: Path) -> TrackedRun:
    return TrackedRun(name="worker", project="ludus-tests", group="g", folder=folder, config={"a": {"b": 1}})


@pytest.mark.parametrize(("kind", "module"), [(WandbTracker, "wandb"), (TrackioTracker, "trackio")])
def test_a_library_that_is_not_installed_is_named_with_its_extra(kind, module):
    if importlib.util.find_spec(module):
        pytest.skip(f"{module} is installed")
    with pytest.raises(ConfigError, match=rf"pip install 'ludus-train\[{module}\]'"):
        kind()


def test_wandb_keeps_values_and_tables_offline(tmp_path: Path, monkeypatch):
    pytest.importorskip("wandb", reason="make test-trainers installs it")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracker = WandbTracker(mode="offline")
    tracker.start(make_run(tmp_path))
    tracker.log(VALUES, 3)
    run = tracker._run
    assert run.summary["train/reward"] == 0.5 and run.step == 3
    assert (run.project, run.name, run.group) == ("ludus-tests", "worker", "g")
    tracker.close()
    (table,) = tmp_path.rglob("*rollouts*.table.json")
    assert json.loads(table.read_text())["data"] == [["[user] hi", 1.0], ["[user] ho", 0.0]]


def test_trackio_keeps_values_on_this_machine(tmp_path: Path, monkeypatch):
    pytest.importorskip("trackio", reason="make test-trainers installs it")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    tracker = TrackioTracker()
    tracker.start(make_run(tmp_path))
    tracker.log(VALUES, 3)
    tracker.close()
    import trackio

    (run,) = trackio.Api().runs("ludus-tests")
    assert run.name == "worker"
    (row,) = run.history() if hasattr(run, "history") else []
    assert row["train/reward"] == 0.5
