"""MBPP's format: rows become tasks, and wrong rows are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.envs.mbpp import Mbpp
from ludus.errors import ConfigError
from ludus.types import Task

ROW = {
    "task_id": 11,
    "text": "Add two numbers.",
    "code": "def helper(): ...\ndef add(a, b=0):\n    return a + b",
    "test_list": ["assert add(1, 2) == 3", "assert add(4) == 4"],
}


def list_tasks(tmp_path: Path, *rows: dict[str, Any], **options: Any) -> list[Task]:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return list(Mbpp(path=str(path), **options).tasks("test"))


def test_a_row_becomes_a_task_that_shows_one_test(tmp_path: Path):
    (task,) = list_tasks(tmp_path, ROW)
    assert (task.id, task.files) == ("11", {"solution.py": "def add(a, b=0):\n    ...\n"})
    assert "add(1, 2) == 3" in task.prompt and "add(4)" not in task.prompt
    (task,) = list_tasks(tmp_path, ROW, shown_tests=0)
    assert "add(1, 2) == 3" not in task.prompt


def test_the_sanitized_form_is_read_too(tmp_path: Path):
    row = {**ROW, "prompt": "Add.", "test_imports": ["import math"], "challenge_test_list": ["assert add(0) == 0"]}
    del row["text"]
    (task,) = list_tasks(tmp_path, row)
    assert len(task.answer["tests"]) == 3 and task.answer["preamble"].startswith("import math")


def test_rows_that_need_objects_of_the_solution_are_left_out(tmp_path: Path):
    code = "class Node: ...\ndef depth(root):\n    return 1"
    row = {"task_id": 2, "text": "t", "code": code, "test_list": ["assert depth(root) == 1"]}
    assert len(list_tasks(tmp_path, ROW, {**row, "test_setup_code": "root = Node()"})) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"text": " "}, "line 1: text: it is empty, and so is prompt"),
        ({"code": "def ("}, "line 1: code: it is not Python"),
        ({"test_list": []}, "line 1: test_list: it is empty"),
        ({"test_list": ["assert ("]}, "line 1: test_list: it is not Python"),
        ({"test_list": ["assert sub(1)"]}, "line 1: test_list: the tests call no function of the code"),
        ({"test_list": "x"}, r"line 1: .*test_list"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, change: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        list_tasks(tmp_path, ROW | change)


def test_bundled_items():
    assert [len(list(Mbpp().tasks(split))) for split in ("train", "test", "none")] == [4, 2, 0]
