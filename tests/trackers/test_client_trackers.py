"""Trackers of services. The real client libraries are used where they are installed (`make test-consumers`)."""

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from ludus.errors import ConfigError
from ludus.trackers import Table, TrackedRun
from ludus.trackers.client_trackers import TrackioTracker, WandbTracker

pytestmark = pytest.mark.filterwarnings("ignore")  # of foreign code
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
    pytest.importorskip("wandb", reason="make test-consumers installs it")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracker = WandbTracker(mode="offline")
    tracker.start(make_run(tmp_path))
    tracker.log(VALUES, 3)
    tracker.close()
    (path,) = tmp_path.rglob("*.wandb")
    deadline = time.monotonic() + 60  # a process of wandb writes the file, and may still be at it
    while b"train/reward" not in path.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (table,) = tmp_path.rglob("*rollouts*.table.json")
    assert json.loads(table.read_text())["data"] == [["[user] hi", 1.0], ["[user] ho", 0.0]]


TRACKIO = """
import sys
from pathlib import Path
from ludus.trackers import Table, TrackedRun
from ludus.trackers.client_trackers import TrackioTracker

tracker = TrackioTracker()
tracker.start(TrackedRun(name="worker", project="ludus-tests", folder=Path(sys.argv[1]), config={"a": {"b": 1}}))
tracker.log({"train/reward": 0.5, "train/rollouts": Table(("text", "score"), (("[user] hi", 1.0),))}, 3)
tracker.close()
"""


def test_trackio_keeps_values_on_this_machine(tmp_path: Path):
    """In a process of its own: the library chooses its folder when it is imported."""
    if not importlib.util.find_spec("trackio"):
        pytest.skip("make test-consumers installs it")
    env = {**os.environ, "TRACKIO_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(
        [sys.executable, "-c", TRACKIO, str(tmp_path)], env=env, check=True, capture_output=True, timeout=120
    )
    with closing(sqlite3.connect(tmp_path / "ludus-tests.db")) as db:
        ((step, text),) = db.execute("SELECT step, metrics FROM metrics").fetchall()
    assert step == 3 and json.loads(text)["train/reward"] == 0.5
