"""HumanEval's format: rows become tasks, and wrong rows are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.env_checks import validate
from ludus.envs.humaneval import HumanEval
from ludus.errors import ConfigError
from ludus.runner import Runner
from ludus.sandbox.profiles import open_pool

ROW = {
    "task_id": "T/0",
    "prompt": "def one():\n    '''Return 1.'''\n",
    "entry_point": "one",
    "canonical_solution": "    return 1\n",
    "test": "def check(candidate):\n    assert candidate() == 1\n",
}


def list_tasks(tmp_path: Path, *rows: dict[str, Any]) -> list[Any]:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return list(HumanEval(path=str(path)).tasks("test"))


async def test_bundled_items_pass_the_checks(bwrap: str):
    env = HumanEval()
    tasks = [*env.tasks("train"), *env.tasks("test")]
    assert len(tasks) == 6
    async with open_pool(bwrap) as pool:
        report = await validate(Runner(env, pool), "all", tasks[3:4])  # `ludus validate humaneval` checks all
    assert report.ok, report


def test_a_row_becomes_a_task_without_its_tests(tmp_path: Path):
    (task,) = list_tasks(tmp_path, ROW)
    assert task.files == {"solution.py": ROW["prompt"]}
    assert task.answer["solution"] == ROW["prompt"] + ROW["canonical_solution"]
    assert "candidate" not in task.prompt and "Return 1." in task.prompt


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"task_id": 5}, r"line 1: .*task_id"),
        ({"entry_point": "two"}, "line 1: entry_point: the prompt defines no function 'two'"),
        ({"prompt": "def one("}, "line 1: prompt: it is not Python"),
        ({"test": "assert True"}, r"line 1: test: it has no function check\(candidate\)"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, change: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        list_tasks(tmp_path, ROW | change)


def test_ids_are_unique(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"line 2: task_id: 'T/0' is also that of .*line 1"):
        list_tasks(tmp_path, ROW, ROW)
