import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ludus.envs.gsm8k import Gsm8k
from ludus.errors import ConfigError
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.types import Score, Task
from ludus.verify.numbers import find_number

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "gsm8k"


async def score(env: Gsm8k, task: Task, answer: str) -> Score | None:
    return (await run(Job(task, Policy(ScriptedModel([answer]))), Runner(env))).score


def test_a_dozen_items_are_bundled_and_their_answers_are_right():
    env = Gsm8k()
    tasks = [*env.tasks("train"), *env.tasks("test")]
    assert len(tasks) == 12
    assert len({t.id for t in tasks}) == 12
    for task in tasks:
        for sum_ in task.answer.split("<<")[1:]:
            left, right = sum_.split(">>")[0].split("=")
            assert eval(left) == float(right), task.prompt
        assert str(find_number(task.answer)) == task.answer.rsplit(" ", 1)[1]


def test_a_split_that_is_not_bundled_has_no_tasks():
    assert list(Gsm8k().tasks("tset")) == []


async def test_scoring():
    env = Gsm8k()
    task = next(iter(env.tasks("train")))
    right = await score(env, task, "3 * 12 - 9 = 27\n#### 27")
    assert right is not None
    assert right.passed
    wrong = await score(env, task, "#### 28")
    assert wrong is not None
    assert wrong.value == 0.0
    assert "right is 27" in wrong.feedback


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"question": "q"}', "line 2.*answer"),
        ('{"question": "q", "answer": "no mark"}', "line 2.*####"),
        ('{"question": "q", "answer"', "line 2"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, says: str):
    path = tmp_path / "data.jsonl"
    path.write_text('{"question": "q", "answer": "#### 1"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=says):
        list(Gsm8k(path=str(path)).tasks("train"))


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"env.path: .*nowhere.jsonl"):
        list(Gsm8k(path=str(tmp_path / "nowhere.jsonl")).tasks("train"))


def test_the_published_configuration_is_loaded_from_the_hub(monkeypatch: pytest.MonkeyPatch):
    asked: list[object] = []

    class Datasets(ModuleType):
        @staticmethod
        def load_dataset(*arguments: object, **options: object) -> list[dict[str, str]]:
            asked.append((arguments, options))
            return [{"question": "1 + 1?", "answer": "#### 2"}]

    monkeypatch.setitem(sys.modules, "datasets", Datasets("datasets"))
    (task,) = Gsm8k(path="hub:openai/gsm8k").tasks("test")
    assert asked == [(("openai/gsm8k", "main"), {"split": "test"})]
    assert task.answer == "#### 2"


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"ludus-train\[hub\]"):
        list(Gsm8k(path="hub:openai/gsm8k").tasks("test"))


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published items are not on this machine")
@pytest.mark.parametrize("split", ["train", "valid"])
async def test_the_published_items_load_and_their_own_answers_pass(split: str):
    path = PUBLISHED / f"{split}.jsonl"
    env = Gsm8k(path=str(path))
    tasks = list(env.tasks(split))
    assert len(tasks) == len(path.read_text().splitlines())
    assert json.loads(path.read_text().splitlines()[0])["question"] == tasks[0].prompt
    for task in tasks[:50]:
        got = await score(env, task, await env.solve(task, None))
        assert got is not None
        assert got.passed
