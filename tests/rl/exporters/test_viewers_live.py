"""Exported trajectories and logs, read by the code that they are for. `make test-viewers` installs it.

Each test is skipped where its package is not installed.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.export_kit import write_run

from ludus.cli import main

pytestmark = pytest.mark.filterwarnings("ignore")  # of foreign code


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run()


def test_harbors_validator_accepts_every_trajectory():
    validator: Any = pytest.importorskip("harbor.utils.trajectory_validator", reason="make test-viewers installs it")
    assert main(["export", "run", "--format", "atif", "--to", "lines.jsonl"]) == 0
    assert main(["export", "run", "--format", "atif", "--to", "job"]) == 0
    checked = [*map(json.loads, Path("lines.jsonl").read_text().splitlines()), *Path("job").glob("*/agent/*.json")]
    assert len(checked) == 6
    for each in checked:
        check = validator.TrajectoryValidator()
        assert check.validate(each), check.errors


@pytest.fixture
def inspect_log() -> Any:
    found: Any = pytest.importorskip("inspect_ai.log", reason="make test-viewers installs it")
    assert main(["export", "run", "--format", "inspect", "--to", "logs/run.eval"]) == 0
    return found


def test_inspect_reads_header_summaries_and_samples(inspect_log: Any):
    header = inspect_log.read_eval_log("logs/run.eval", header_only=True)
    assert (header.status, header.eval.task, header.results.scores[0].metrics["mean"].value) == (
        "success",
        "scenes",
        0.75,
    )
    summaries = inspect_log.read_eval_log_sample_summaries("logs/run.eval")
    assert [each.error for each in summaries] == [None, None, "sandbox: the slot is gone"]
    log = inspect_log.read_eval_log("logs/run.eval")
    samples = list(inspect_log.read_eval_log_samples("logs/run.eval"))
    assert len(samples) == len(log.samples) == 3
    first = next(each for each in samples if each.epoch == 1)
    assert (first.scores["score"].value, first.limit.type, first.turn_count) == (0.5, "turn", 3)
    reply, seen, refused = first.messages[5:8]
    assert [part.type for part in reply.content] == ["reasoning", "text"]
    assert seen.content[1].image.startswith("data:image/png;base64,")
    assert refused.error.type == "parsing"
    asked = [event for event in first.events if event.event == "model"]
    assert [len(event.input) for event in asked] == [5, 8, 10], "references are resolved"
    assert first.model_usage["m"].total_tokens == 120
    assert inspect_log.read_eval_log_sample("logs/run.eval", id="scenes/one", epoch=3).error is not None


def test_inspect_lists_bundles_and_tabulates_the_log(inspect_log: Any):
    (listed,) = inspect_log.list_eval_logs("logs")
    assert listed.name.endswith("run.eval")
    inspect_log.bundle_log_dir("logs", "bundle")
    assert Path("bundle/index.html").exists()
    assert any(name.endswith(".eval") for _, _, names in os.walk("bundle") for name in names)
    inspect_log.write_eval_log(inspect_log.read_eval_log("logs/run.eval"), "again.eval")
    assert len(inspect_log.read_eval_log("again.eval").samples) == 3, "Inspect can write it again"
