"""A rollout that is played again, and the settings that it was run with."""

from pathlib import Path

import pytest
from tests.build import make_rollout, make_task

from ludus.command.recorded_rollout import read_rollout, refuse_changes
from ludus.config import assemble
from ludus.config.reading import Layer
from ludus.errors import ConfigError
from ludus.run_info import keep_info
from ludus.store import RunDir
from ludus.types import Replayed

SETTINGS = {
    "env": {"name": "terminal-test", "limit": 3},
    "model": {"type": "scripted", "script": "m.py:act"},
    "run": {"out": "old", "resume": True, "seed": 4},
    "engine": {"type": "ray"},
    "train": {"epochs": 2},
    "content": {"tasks": "x"},
}


def write_run(path: Path, kind: str = "evaluate") -> Path:
    with RunDir.open(path, SETTINGS) as run, keep_info(run, kind):
        run.put("a" * 32, make_rollout(1.0, "x", task=make_task("one")))
        run.put("b" * 32, make_rollout(None, task=make_task("two")))
    return path


def test_the_settings_are_those_with_which_rollouts_are_run_and_not_the_runs_own(tmp_path: Path):
    found = read_rollout(write_run(tmp_path / "r"), "one")
    assert found.settings == {"env": SETTINGS["env"], "model": SETTINGS["model"], "run": {"seed": 4}}
    assert found.make_origin(2) == Replayed(str((tmp_path / "r").resolve()), "a" * 32, 2)


def test_what_cannot_be_played_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="has no reply that could be played"):
        read_rollout(write_run(tmp_path / "r"), "two")
    with pytest.raises(ConfigError, match="is a record of gateway sessions: its rollouts cannot be played again"):
        read_rollout(write_run(tmp_path / "g", "gateway"), "one")


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"limits": {"turns": 3}, "sandbox": {"network": True}}, ""),
        ({"env": {"limit": 4}}, "env.limit"),
        ({"agent": {"skill_as": "file"}}, "agent.skill_as"),
        ({"agent": {"skill": "x.md"}}, "agent.skill: the rollout had no skill"),
        ({"tools": {"disabled": ["web"]}}, "tools.disabled"),
    ],
)
def test_what_the_record_has_decided_cannot_be_changed(tmp_path: Path, change: dict, refused: str):
    recorded = read_rollout(write_run(tmp_path / "r"), "one")
    config = assemble([recorded.make_layer(), Layer("flags", change)])
    if not refused:
        refuse_changes(recorded, config)
        return
    with pytest.raises(ConfigError, match=refused):
        refuse_changes(recorded, config)
