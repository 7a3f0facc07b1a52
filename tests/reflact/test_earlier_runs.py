"""The earlier run that an estimate uses, and what is taken from it."""

import json
import os
from pathlib import Path
from typing import Any

from ludus.reflact.earlier_runs import EarlierRun, StepPace, find_earlier_run
from ludus.types import Usage

CONFIG: dict[str, Any] = {
    "env": {"name": "orders"},
    "model": {"type": "openai", "name": "small"},
    "agent": {"harness": ""},
    "optimizer": {"type": "openai", "name": "large"},
    "train": {"update_mode": "patch", "batch_size": 4},
}


def change_config(section: str, **values: Any) -> dict[str, Any]:
    return {**CONFIG, section: {**CONFIG[section], **values}}


def make_cost(role: str, stage: str, calls: int, prompt: int) -> dict[str, Any]:
    return {"role": role, "stage": stage, "calls": calls, "usage": {"prompt_tokens": prompt, "completion_tokens": 4}}


def make_line(calls: int, hard: float = 0.25) -> dict[str, Any]:
    batch = {"seed": 1, "tasks": calls, "failed": 0, "hard": hard, "soft": hard}
    took = [make_cost("agent", "rollout", calls, 40), make_cost("optimizer", "rank", calls, 80)]
    return {"record": "step", "spent": took, "batches": [batch]}


def write_run(folder: Path, name: str, when: int, config: dict[str, Any] = CONFIG, *lines: dict[str, Any]) -> None:
    run = folder / name
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(config))
    (run / "steps.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines or (make_line(4),)))
    os.utime(run / "steps.jsonl", (when, when))


def test_the_latest_run_with_the_same_environment_and_agent_is_used(tmp_path: Path):
    write_run(tmp_path, "old", 1, CONFIG, make_line(1))
    write_run(tmp_path, "new", 2, CONFIG, make_line(4), make_line(4, 0.75))
    write_run(tmp_path, "other-env", 3, change_config("env", name="gsm8k"))
    write_run(tmp_path, "other-model", 4, change_config("model", name="large"))
    found = find_earlier_run(tmp_path, CONFIG)
    assert found.run == str(tmp_path / "new")
    assert found.failing == 0.5
    assert found.average_usage("agent", "rollout") == found.average_usage("agent", "test") == Usage(10, 1)
    assert found.average_usage("optimizer", "rank") == Usage(20, 1)
    assert found.average_usage("optimizer", "merge") is None


def test_how_long_steps_took_is_known_of_a_finished_run_with_the_ledger(tmp_path: Path):
    write_run(tmp_path, "run", 1, CONFIG, make_line(8), make_line(8))
    assert find_earlier_run(tmp_path, CONFIG).pace is None
    times = {"draw": 0.1, "rollout": 20.0, "reflect": 10.0}
    (tmp_path / "run" / "summary.json").write_text(json.dumps({"steps": 2, "seconds": times}))
    found = find_earlier_run(tmp_path, CONFIG)
    assert found.pace == StepPace(8, 10.0, 5.0)
    assert found.estimate_seconds(10, 8, 16) == 150.0
    assert found.estimate_seconds(4, 24, 16) == 100.0, "24 rollouts take two rounds of 16"
    assert EarlierRun().estimate_seconds(10, 8, 16) is None


def test_cached_tokens_are_averaged(tmp_path: Path):
    line = make_line(4)
    line["spent"][0]["usage"]["cached_tokens"] = 20
    write_run(tmp_path, "run", 1, CONFIG, line)
    assert find_earlier_run(tmp_path, CONFIG).average_usage("agent", "rollout") == Usage(10, 1, 5)


def test_another_optimizer_or_other_batches_say_nothing_about_what_it_is_asked(tmp_path: Path):
    write_run(tmp_path, "run", 1)
    same = {**CONFIG, "optimizer": {"type": "same"}}
    for config in (change_config("optimizer", name="other"), same, change_config("train", batch_size=8)):
        found = find_earlier_run(tmp_path, config)
        assert found.average_usage("agent", "rollout") is not None and found.average_usage("optimizer", "rank") is None
    write_run(tmp_path, "later", 2, same)
    assert find_earlier_run(tmp_path, same).average_usage("optimizer", "rank") is not None


def test_a_run_that_cannot_be_read_is_skipped(tmp_path: Path):
    assert find_earlier_run(tmp_path / "nowhere", CONFIG) == EarlierRun()
    write_run(tmp_path, "good", 1)
    write_run(tmp_path, "damaged", 2)
    (tmp_path / "damaged" / "config.json").write_text("{")
    write_run(tmp_path, "empty", 3)
    (tmp_path / "empty" / "steps.jsonl").write_text("")
    with (tmp_path / "good" / "steps.jsonl").open("a") as file:
        file.write('{"record": "st')  # the run is still going on
    os.utime(tmp_path / "good" / "steps.jsonl", (1, 1))
    assert find_earlier_run(tmp_path, CONFIG).run == str(tmp_path / "good")
