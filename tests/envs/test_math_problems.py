"""The environment `math`: rows of published sets, ids, and scores."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("math_verify")

from ludus.env_checks import validate
from ludus.envs.math_problems import MathProblems
from ludus.errors import ConfigError
from ludus.runner import Runner


def write(tmp_path: Path, *rows: dict[str, Any]) -> MathProblems:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return MathProblems(path=str(path))


@pytest.mark.parametrize("split", ["train", "test"])
async def test_the_bundled_problems_are_valid(split: str):
    env = MathProblems()
    report = await validate(Runner(env), split, list(env.tasks(split)))
    assert report.ok and report.tasks == {"train": 8, "test": 4}[split]


def test_rows_of_published_sets(tmp_path: Path):
    env = write(
        tmp_path,
        {"problem": "p", "solution": "so $\\boxed{\\frac{1}{2}}$", "type": "Algebra", "level": "Level 1"},
        {"problem": "q", "answer": "7", "subject": "Geometry", "unique_id": "test/geometry/1.json"},
        {"question": "r", "answer": 12, "id": 3},
        {"question": "s", "answer": "5 + 5 = 10\n#### 10"},
    )
    tasks = list(env.tasks("test"))
    assert [task.answer for task in tasks] == ["\\frac{1}{2}", "7", "12", "10"]
    assert [task.kind for task in tasks] == ["Algebra", "Geometry", "", ""]
    assert [task.id for task in tasks[1:3]] == ["test/geometry/1.json", "3"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"answer": "1"}, r"rows\.jsonl, line 2: problem: it is missing"),
        ({"problem": "p"}, "line 2: answer: it is missing"),
        ({"problem": "p", "solution": "no box"}, "line 2: answer: it is missing"),
        ({"problem": "p", "answer": ["1"]}, r"line 2: .*\$\.answer"),
        ({"problem": "p", "answer": "1", "id": "a"}, r"line 2: id: 'a' is also that of .*line 1"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        list(write(tmp_path, {"problem": "p", "answer": "1", "id": "a"}, row).tasks("test"))
