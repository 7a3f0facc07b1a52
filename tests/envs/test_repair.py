"""Repair tasks: both kinds of rows, wrong rows, and agents that attack the tests."""

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.env_checks import validate
from ludus.envs.repair import Repair
from ludus.errors import ConfigError
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.sandbox.profiles import open_pool
from ludus.types import Task

OWN = {
    "id": "one",
    "prompt": "It prints 1.",
    "files": {"one.py": "print(2)"},
    "tests": {"test_one.py": "def test_one(): ..."},
    "solution": {"one.py": "print(1)"},
}
PACK = {
    "task_id": "P/0",
    "declaration": "def one():\n",
    "buggy_solution": "    return 2\n",
    "canonical_solution": "    return 1\n",
    "entry_point": "one",
    "test": "def check(one):\n    assert one() == 1\n\ncheck(one)\n",
    "bug_type": "value misuse",
}


def list_tasks(tmp_path: Path, *rows: dict[str, Any]) -> list[Task]:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return list(Repair(path=str(path)).tasks("test"))


async def test_bundled_items_of_both_kinds_pass_the_checks(bwrap: str):
    tasks = [*Repair().tasks("train"), *Repair().tasks("test")]
    assert [len(tasks), *({"names" in task.answer for task in tasks})] == [6, False, True]
    async with open_pool(bwrap) as pool:
        report = await validate(Runner(Repair(), pool), "all", [tasks[0]])  # `ludus validate repair` checks all
    assert report.ok, report


def test_rows_become_tasks(tmp_path: Path):
    own, pack = list_tasks(tmp_path, OWN, PACK)
    assert own.files == {"one.py": "print(2)"} and own.answer["separate"]
    assert pack.files == {"solution.py": "\ndef one():\n    return 2\n"} and pack.kind == "value misuse"
    (importing,) = list_tasks(tmp_path, OWN | {"tests": {"test_one.py": "from one import x\ndef test_one(): ..."}})
    assert not importing.answer["separate"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({**OWN, "solution": {}}, "line 1: solution: it is missing or empty"),
        ({**OWN, "files": {"../x.py": ""}}, r"line 1: files: '\.\./x\.py' is not a path below the workspace"),
        ({**OWN, "tests": {"helper.py": ""}}, "line 1: tests: the hidden tests hold no test"),
        ({**PACK, "entry_point": ""}, "line 1: entry_point: it is missing or empty"),
        ({**PACK, "entry_point": "two"}, "line 1: entry_point: the code defines no function 'two'"),
        ({**PACK, "buggy_solution": "  ("}, "line 1: buggy_solution: it is not Python"),
        ({**PACK, "test": "check(one)"}, "line 1: test: it has no function check"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, row: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        list_tasks(tmp_path, row)


ATTACKS = {
    "ends the tests": "import os; print(321); os.kill(os.getppid(), 9)",
    "writes a conftest and looks for the tests": (
        "import pathlib\n"
        "open('conftest.py', 'w').write('def pytest_runtest_makereport(item, call): call.excinfo = None')\n"
        "for p in pathlib.Path('/tmp').rglob('*'):\n"
        "    try: print(p.read_text())\n    except Exception: pass"
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_attacks_score_zero(bwrap: str, attack: str):
    task = next(task for task in Repair().tasks("train") if task.id == "column-sum")
    turns = [call("write_file", path="total.py", content=ATTACKS[attack]), say("Done.")]

    async with open_pool(bwrap) as pool:
        score = (await run(Job(task, Policy(ScriptedModel(turns))), Runner(Repair(), pool))).score
    assert score is not None and (score.value, score.passed) == (0.0, False)
