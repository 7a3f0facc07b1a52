"""The environment of past work, as `ludus validate` and a rollout see it."""

from pathlib import Path

import pytest

from ludus.cli import main
from ludus.encoding import to_json
from ludus.env_checks import make_rollout
from ludus.errors import ConfigError
from ludus.sleep.checkers import Checker
from ludus.sleep.past_env import PastAnswer, PastWork, read_tasks
from ludus.types import Task


def write_tasks(folder: Path, *tasks: Task) -> str:
    path = folder / "tasks.jsonl"
    path.write_bytes(b"".join(to_json(task) + b"\n" for task in tasks))
    return str(path)


def make_task(*checkers: Checker, split: str = "train", **fields) -> Task:
    return Task(id="past-1", prompt="State of order 7?", split=split, answer=PastAnswer(checkers=checkers, **fields))


TEXT = (Checker(kind="contains", text="open"), Checker(kind="regex", text="Ops$"))


@pytest.mark.parametrize(
    ("text", "value", "soft"), [("It is open.\nOps", 1.0, 1.0), ("It is open.", 0.0, 0.5), ("", 0.0, 0.0)]
)
async def test_all_checkers_must_hold(text: str, value: float, soft: float):
    score = await PastWork().verify(make_rollout(make_task(*TEXT), text), None)
    assert (score.value, score.passed, score.soft) == (value, value == 1.0, soft)


@pytest.mark.parametrize(("split", "told"), [("train", True), ("selection", False), ("test", False)])
async def test_objections_are_told_for_train_tasks_only(split: str, told: bool):
    task = make_task(*TEXT, split=split, objections=("No, sign it",))
    score = await PastWork().verify(make_rollout(task, "It is open."), None)
    assert ("No, sign it" in score.feedback) is told


def test_tasks_with_files_and_commands_pass_validate_in_slots(tmp_path: Path, capsys):
    task = make_task(
        Checker(kind="command", text='python3 -c "import a; assert a.x == 3" && ! test -e /etc/shadow.copy'),
        reference="Done.",
        files={"a.py": "x = 3\n"},
    )
    task = Task(id=task.id, prompt="Set x to 3", files={"a.py": "x = 1\n"}, split="train", answer=task.answer)
    path = write_tasks(tmp_path, task)
    assert main(["validate", "past-work", "--env.path", path, "--env.slots", "true"]) == 0
    assert main(["validate", "past-work", "--env.path", path]) == 1  # a command without a slot is an error by name
    assert "env.slots: a task has a command" in capsys.readouterr().out


def test_files_that_are_no_tasks_are_refused(tmp_path: Path):
    path = write_tasks(tmp_path, make_task())
    with pytest.raises(ConfigError, match="task past-1 has no checkers"):
        read_tasks(Path(path))
    with pytest.raises(ConfigError, match="which tasks"):
        list(PastWork().tasks("train"))
