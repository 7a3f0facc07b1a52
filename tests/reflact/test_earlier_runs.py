"""Which earlier runs an estimate goes by, and what it takes from them."""

import json
import os
from pathlib import Path
from typing import Any

from ludus.reflact.earlier_runs import EarlierRun, find_earlier_run
from ludus.types import Usage

CONFIG: dict[str, Any] = {
    "env": {"name": "orders"},
    "model": {"type": "openai", "name": "small"},
    "agent": {"harness": ""},
    "optimizer": {"type": "openai", "name": "large"},
    "train": {"update_mode": "patch", "batch_size": 4},
}


def changed(section: str, **values: Any) -> dict[str, Any]:
    return {**CONFIG, section: {**CONFIG[section], **values}}


def spent(role: str, stage: str, calls: int, prompt: int) -> dict[str, Any]:
    return {"role": role, "stage": stage, "calls": calls, "usage": {"prompt_tokens": prompt, "completion_tokens": 4}}


def line(calls: int, hard: float = 0.25) -> dict[str, Any]:
    batch = {"seed": 1, "tasks": calls, "failed": 0, "hard": hard, "soft": hard}
    took = [spent("agent", "rollout", calls, 40), spent("optimizer", "rank", calls, 80)]
    return {"record": "step", "spent": took, "batches": [batch]}


def left(folder: Path, name: str, when: int, config: dict[str, Any] = CONFIG, *lines: dict[str, Any]) -> None:
    run = folder / name
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(config))
    (run / "steps.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines or (line(4),)))
    os.utime(run / "steps.jsonl", (when, when))


def test_the_latest_run_that_is_alike(tmp_path: Path):
    left(tmp_path, "old", 1, CONFIG, line(1))
    left(tmp_path, "new", 2, CONFIG, line(4), line(4, 0.75))
    left(tmp_path, "other-env", 3, changed("env", name="gsm8k"))
    left(tmp_path, "other-model", 4, changed("model", name="large"))
    found = find_earlier_run(tmp_path, CONFIG)
    assert found.run == str(tmp_path / "new")
    assert found.failing == 0.5
    assert found.average_usage("agent", "rollout") == found.average_usage("agent", "test") == Usage(10, 1)
    assert found.average_usage("optimizer", "rank") == Usage(20, 1)
    assert found.average_usage("optimizer", "merge") is None


def test_another_optimizer_or_other_batches_say_nothing_about_what_it_is_asked(tmp_path: Path):
    left(tmp_path, "run", 1)
    same = {**CONFIG, "optimizer": {"type": "same"}}
    for config in (changed("optimizer", name="other"), same, changed("train", batch_size=8)):
        found = find_earlier_run(tmp_path, config)
        assert found.average_usage("agent", "rollout") is not None and found.average_usage("optimizer", "rank") is None
    left(tmp_path, "later", 2, same)
    assert find_earlier_run(tmp_path, same).average_usage("optimizer", "rank") is not None


def test_what_cannot_be_read_is_passed_over(tmp_path: Path):
    assert find_earlier_run(tmp_path / "nowhere", CONFIG) == EarlierRun()
    left(tmp_path, "good", 1)
    left(tmp_path, "damaged", 2)
    (tmp_path / "damaged" / "config.json").write_text("{")
    left(tmp_path, "empty", 3)
    (tmp_path / "empty" / "steps.jsonl").write_text("")
    with (tmp_path / "good" / "steps.jsonl").open("a") as file:
        file.write('{"record": "st')  # it goes on
    os.utime(tmp_path / "good" / "steps.jsonl", (1, 1))
    assert find_earlier_run(tmp_path, CONFIG).run == str(tmp_path / "good")
