"""Bad data, for every environment that reads some: the error names the file, the row and the field."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from tests.envs.test_docvqa import make_png

from ludus.config.references import load_env_class
from ludus.errors import ConfigError
from ludus.types import Task


class Format(Struct, frozen=True):
    """A good row of an environment, and what must be in it."""

    row: dict[str, Any]
    id: str = ""
    """The field with the id; empty: rows have none."""
    required: tuple[str, ...] = ()
    """Fields that must be there and not empty."""
    package: str = ""
    """The package that it needs."""


FORMATS = {
    "gsm8k": Format({"question": "1 + 3?", "answer": "#### 4"}, required=("question", "answer")),
    "humaneval": Format(
        {
            "task_id": "T/1",
            "prompt": "def f(x):\n    pass\n",
            "entry_point": "f",
            "canonical_solution": "    return x\n",
            "test": "def check(candidate):\n    assert candidate(1) == 1\n",
        },
        id="task_id",
        required=("task_id", "prompt", "entry_point", "test"),
    ),
    "mbpp": Format(
        {
            "task_id": "1",
            "text": "Give it back.",
            "code": "def f(x):\n    return x\n",
            "test_list": ["assert f(1) == 1"],
        },
        id="task_id",
        required=("task_id", "text", "code", "test_list"),
    ),
    "repair": Format(
        {
            "id": "r",
            "prompt": "It prints 1.",
            "files": {"a.py": "print(1)\n"},
            "tests": {"test_a.py": "def test_a():\n    pass\n"},
            "solution": {"a.py": "print(2)\n"},
        },
        id="id",
        required=("id", "prompt", "files", "tests", "solution"),
    ),
    "math": Format(
        {"id": "m", "problem": "1 + 3?", "answer": "4"},
        id="id",
        required=("problem", "answer"),
        package="math_verify",
    ),
    "judge": Format({"id": "j", "prompt": "Write.", "rubric": ["It is good."]}, id="id", required=("prompt", "rubric")),
    "swe-smith-oracle": Format(
        {
            "instance_id": "s",
            "repo": "own/pkg",
            "base_commit": "main",
            "problem_statement": "It is 2.",
            "FAIL_TO_PASS": ["test_a.py::test_x"],
            "PASS_TO_PASS": ["test_a.py::test_y"],
        },
        id="instance_id",
        required=("instance_id", "repo", "base_commit", "problem_statement", "FAIL_TO_PASS"),
    ),
    "searchqa": Format(
        {"key": "k", "question": "Who?", "context": "She did.", "answers": ["She"]},
        id="key",
        required=("question", "answers"),
    ),
    "docvqa": Format(
        {"questionId": "7", "question": "When?", "answer": "['May']", "image_path": "a.png"},
        id="questionId",
        required=("question", "answer", "image_path"),
    ),
    "officeqa": Format(
        {"uid": "u", "question": "How much?", "ground_truth": "4", "source_files": ["a.txt"]},
        id="uid",
        required=("question", "ground_truth"),
    ),
    "livemathematicianbench": Format(
        {
            "id": "l",
            "question": "Which?",
            "choices": [{"label": "A", "text": "x"}, {"label": "B", "text": "y"}],
            "correct_choice": {"label": "A", "text": "x"},
        },
        id="id",
        required=("question", "choices", "correct_choice"),
    ),
    "spreadsheetbench": Format(
        {"id": "b", "instruction": "Add.", "spreadsheet_path": "sheets", "answer_position": "A1"},
        id="id",
        required=("id", "instruction", "spreadsheet_path", "answer_position"),
        package="openpyxl",
    ),
    "alfworld": Format(
        {"id": "g", "gamefile": "absent/game.tw-pddl"}, id="id", required=("gamefile",), package="alfworld"
    ),
}


def list_tasks(name: str, path: Path) -> list[Task]:
    package = FORMATS[name].package
    if package and find_spec(package) is None:
        pytest.skip(f"{package} is not installed (make test-envs)")
    return list(load_env_class(name)(path=str(path)).tasks("train"))  # pyright: ignore[reportCallIssue]


def write_rows(folder: Path, *rows: Mapping[str, Any] | str) -> Path:
    """A file with rows, beside what they name."""
    (folder / "docs").mkdir()
    (folder / "docs" / "a.txt").write_text("4")
    (folder / "sheets").mkdir()
    for name in ("1_input.xlsx", "1_answer.xlsx"):
        (folder / "sheets" / name).touch()
    (folder / "a.png").write_bytes(make_png())
    path = folder / "rows.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def list_faults() -> list[tuple[str, str, Any]]:
    """Environment, field, and what the field of the second row is: None for missing, an empty value, or blanks."""
    fields = [(name, field, kind.row[field]) for name, kind in FORMATS.items() for field in kind.required]
    faults = [(name, field, value) for name, field, good in fields for value in (None, type(good)())]
    return faults + [(name, field, " ") for name, field, good in fields if isinstance(good, str)]


@pytest.mark.parametrize(("name", "field", "value"), list_faults())
def test_a_field_that_is_missing_or_empty(tmp_path: Path, name: str, field: str, value: Any):
    kind = FORMATS[name]
    first = kind.row | ({kind.id: "first"} if kind.id else {})
    second = {key: each for key, each in kind.row.items() if key != field}
    path = write_rows(tmp_path, first, second if value is None else {**second, field: value})
    with pytest.raises(ConfigError, match=rf"env\.path: .*rows\.jsonl, line 2: .*{field}"):
        list_tasks(name, path)


@pytest.mark.parametrize("name", [name for name, kind in FORMATS.items() if kind.id])
def test_an_id_that_occurs_twice(tmp_path: Path, name: str):
    kind = FORMATS[name]
    path = write_rows(tmp_path, kind.row, kind.row)
    says = rf"rows\.jsonl, line 2: {kind.id}: '{kind.row[kind.id]}' is also that of .*rows\.jsonl, line 1"
    if name == "alfworld":  # a game is needed before its row counts
        says = r"line 1: gamefile: there is no file .*absent/game\.tw-pddl"
    with pytest.raises(ConfigError, match=rf"env\.path: .*{says}"):
        list_tasks(name, path)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("text", "says"), [("[1]", "line 2: Expected `object`"), ("{", "line 2: ")])
def test_a_row_that_is_no_object(tmp_path: Path, name: str, text: str, says: str):
    with pytest.raises(ConfigError, match=rf"env\.path: .*rows\.jsonl, {says}"):
        list_tasks(name, write_rows(tmp_path, FORMATS[name].row, text))


@pytest.mark.parametrize("name", FORMATS)
def test_an_empty_or_absent_split(tmp_path: Path, name: str):
    with pytest.raises(ConfigError, match=r"env\.path: .*rows\.jsonl has no rows"):
        list_tasks(name, write_rows(tmp_path, "", ""))
    (tmp_path / "rows.jsonl").rename(tmp_path / "train.jsonl")
    with pytest.raises(ConfigError, match=r"env\.path: .*train\.jsonl has no rows"):
        list_tasks(name, tmp_path)
    (tmp_path / "train.jsonl").rename(tmp_path / "other.jsonl")
    with pytest.raises(ConfigError, match=r"env\.path: .* has no file for split 'train'"):
        list_tasks(name, tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(ConfigError, match=r"env\.path: .*/train has no file that ends in"):
        list_tasks(name, tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_an_absent_file(tmp_path: Path, name: str):
    write_rows(tmp_path)
    with pytest.raises(ConfigError, match=r"env\.path: cannot read .*absent\.jsonl: No such file"):
        list_tasks(name, tmp_path / "absent.jsonl")
