"""Exercises in Exercism's layout: which are read, what the agent sees, and wrong folders."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from ludus.env_checks import validate
from ludus.envs.exercism import Exercism
from ludus.errors import ConfigError
from ludus.runner import Runner
from ludus.sandbox.profiles import open_pool
from ludus.types import Task

PROGRAMS = {"awk": "gawk", "jq": "jq", "sqlite": "sqlite3"}


def list_tasks(split: str = "train", **options: object) -> list[Task]:
    return list(msgspec.convert(options, Exercism).tasks(split))


def test_tracks_that_run_everywhere_are_the_default():
    assert [task.id for task in list_tasks()] == ["python/seat-map", "bash/shout"]
    assert [task.id for task in list_tasks("test")] == ["python/tide-table", "bash/ticket-price"]
    assert {task.kind for task in list_tasks(tracks=["awk", "jq", "sqlite"])} == set(PROGRAMS)
    with pytest.raises(ConfigError, match=r"env\.tracks: 'cobol' is not one of python, bash, awk, jq, sqlite"):
        list_tasks(tracks=["cobol"])


def test_neither_tests_nor_examples_are_shown():
    for task in list_tasks(tracks=["python", "bash", "awk", "jq", "sqlite"]):
        shown = set(task.files)
        assert not [name for name in shown if "test" in name or name.startswith(".") or name.endswith(".bash")], shown
        assert task.answer["solution"] in shown
    (task,) = list_tasks(tracks=["sqlite"])
    assert {"create_fixture.sql", "data.csv"} < set(task.files)
    assert "create_test_table.sql" in task.answer["tests"]


async def test_one_exercise_of_each_track_passes_the_checks(bwrap: str):
    tracks = ["python", "bash", *(track for track, program in PROGRAMS.items() if shutil.which(program))]

    env = msgspec.convert({"tracks": tracks}, Exercism)
    async with open_pool(bwrap) as pool:
        report = await validate(Runner(env, pool), "train", env.tasks("train"))
    assert report.ok, report


def write(folder: Path, config: object, **more: str) -> Path:
    exercise = folder / "exercises" / "practice" / "one"
    (exercise / ".meta").mkdir(parents=True)
    (exercise / ".docs").mkdir()
    (exercise / ".meta" / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    (exercise / ".docs" / "instructions.md").write_text("Return 1.")
    for name, text in {"one.py": "", "one_test.py": "def test_one(): ...", **more}.items():
        (exercise / name).write_text(text)
    return folder


GOOD = {"files": {"solution": ["one.py"], "test": ["one_test.py"], "example": [".meta/example.py"]}, "blurb": "b"}


def test_a_checkout_of_a_track_is_read(tmp_path: Path):
    write(tmp_path, GOOD)
    (tmp_path / "exercises" / "practice" / "one" / "picture.png").write_bytes(b"\x89\xff")
    (task,) = list_tasks(path=str(tmp_path))
    assert (task.id, set(task.files), task.answer["example"]) == ("python/one", {"one.py"}, "")
    assert task.prompt == "Return 1.\n\nWrite the solution in one.py. Tests that you do not see will run it."


def test_exercises_of_other_tracks_are_left_out(tmp_path: Path):
    write(tmp_path, {"files": {"solution": ["one.rs"], "test": ["one_test.rs"]}})
    assert list_tasks(path=str(tmp_path)) == []


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("{", r"practice/one/\.meta/config\.json: "),
        ({"files": {"test": []}}, "config.json: .*solution"),
        ({"files": {"solution": ["one.py"], "test": []}}, r"files\.test: it is empty"),
        ({"files": {"solution": ["one.py"], "test": ["two_test.py"]}}, r"files\.test: there is no file two_test\.py"),
    ],
)
def test_wrong_exercises_are_named(tmp_path: Path, config: object, says: str):
    with pytest.raises(ConfigError, match=says):
        list_tasks(path=str(write(tmp_path, config)))


def test_folders_without_exercises_are_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="has no exercises"):
        list_tasks(path=str(tmp_path))
    with pytest.raises(ConfigError, match="there is no folder"):
        list_tasks(path=str(tmp_path / "absent"))


def test_an_exercise_without_instructions_and_one_that_is_there_twice_are_named(tmp_path: Path):
    config = {"files": {"solution": ["one.py"], "test": ["one_test.py"]}}
    path = write(tmp_path, config)
    (folder,) = (found.parent.parent for found in path.rglob("config.json"))
    shutil.copytree(folder, path / "concept" / folder.name)
    with pytest.raises(ConfigError, match=r"practice/one and .*concept/one are both the exercise python/one"):
        list_tasks(path=str(path))
    (folder / ".docs" / "instructions.md").unlink()
    with pytest.raises(ConfigError, match=r"practice/one: there is no \.docs/instructions\.md, or it is empty"):
        list_tasks(path=str(folder))
