"""SpreadsheetBench on workbooks in its format, with programs in real slots."""

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.env_checks import validate
from ludus.envs.spreadsheetbench import SpreadsheetBench
from ludus.errors import ConfigError
from ludus.models.scripted import ScriptedModel, call
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.sandbox.pool import Pool
from ludus.sandbox.profiles import open_pool
from ludus.types import Score

openpyxl: Any = pytest.importorskip("openpyxl")
ROW = {
    "id": "12-3",
    "instruction": "Write the sum of column A into B1.",
    "instruction_type": "Cell-Level Manipulation",
    "answer_position": "Sheet1!B1",
    "answer_sheet": "Sheet1",
    "spreadsheet_path": "spreadsheet/12-3",
}
PROGRAM = """\
import os, openpyxl
book = openpyxl.load_workbook(os.environ["INPUT_PATH"])
sheet = book.active
sheet["B1"] = sum(cell.value for cell in sheet["A"] if cell.value)
book.save(os.environ["OUTPUT_PATH"])
"""


def write_book(path: Path, numbers: list[int], total: int | None = None) -> None:
    book: Any = openpyxl.Workbook()
    book.active.title = "Sheet1"
    for row, number in enumerate(numbers, 1):
        book.active[f"A{row}"] = number
    if total is not None:
        book.active["B1"] = total
    book.save(path)


def write(tmp_path: Path, *rows: dict[str, Any]) -> SpreadsheetBench:
    folder = tmp_path / "spreadsheet" / "12-3"
    folder.mkdir(parents=True, exist_ok=True)
    for number, numbers in enumerate([[1, 2], [3, 4, 5]], 1):
        write_book(folder / f"{number}_12-3_input.xlsx", numbers)
        write_book(folder / f"{number}_12-3_answer.xlsx", numbers, sum(numbers))
    (tmp_path / "dataset.json").write_text(json.dumps(rows or [ROW]))
    return SpreadsheetBench(path=f"{tmp_path}/dataset.json")


async def attempt(env: SpreadsheetBench, program: str, pool: Pool) -> Score:
    (task,) = env.tasks("test")
    policy = Policy(ScriptedModel([call("write_file", path="solution.py", content=program), "Done."]))
    score = (await run(Job(task, policy), Runner(env, pool))).score
    assert score is not None
    return score


async def test_it_is_valid(tmp_path: Path):
    env = write(tmp_path)
    tasks = list(env.tasks("test"))

    async with open_pool("bwrap") as pool:
        result = (await validate(Runner(env, pool), "test", tasks)).ok
    assert result


async def test_scores(tmp_path: Path):
    env = write(tmp_path)
    three = PROGRAM.replace('sum(cell.value for cell in sheet["A"] if cell.value)', "3")
    table = [
        (PROGRAM, 1.0, 1.0, "Every test case"),
        (three, 0.0, 0.5, "Sheet1!B1 is 3.0"),
        ("raise SystemExit(3)", 0.0, 0.0, "exit code 3"),
        ("import os; open(os.environ['OUTPUT_PATH'], 'w').write('no')", 0.0, 0.0, "no workbook"),
        ("", 0.0, 0.0, "no output"),
    ]

    async def go() -> list[Score]:
        async with open_pool("bwrap") as pool:
            return [await attempt(env, program, pool) for program, *_ in table]

    for score, (_, hard, soft, says) in zip(await go(), table, strict=True):
        assert (score.value, score.soft) == (hard, soft)
        assert says in score.feedback


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({**ROW, "spreadsheet_path": "no"}, r"dataset\.json, row 1: spreadsheet_path: there is no folder"),
        ({**ROW, "spreadsheet_path": "spreadsheet"}, "row 1: spreadsheet_path: .* has no test case"),
        ({**ROW, "answer_position": "somewhere else"}, "row 1: answer_position: "),
        ({"id": 1}, "row 1: .*instruction"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        list(write(tmp_path, row).tasks("test"))


def test_the_other_names_of_test_cases(tmp_path: Path):
    for index, names in enumerate([("initial.xlsx", "golden.xlsx"), ("1_x_init.xlsx", "1_x_golden.xlsx")]):
        folder = tmp_path / str(index)
        folder.mkdir()
        for name in names:
            write_book(folder / name, [1], 1)
    rows = [{**ROW, "id": index, "spreadsheet_path": str(index)} for index in range(2)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    tasks = list(SpreadsheetBench(path=f"{tmp_path}/rows.json").tasks("test"))
    assert [len(task.answer["cases"]) for task in tasks] == [1, 1]
    (tmp_path / "1" / "1_x_golden.xlsx").unlink()
    with pytest.raises(ConfigError, match=r"row 2: .*1_x_init\.xlsx has no 1_x_golden\.xlsx"):
        list(SpreadsheetBench(path=f"{tmp_path}/rows.json").tasks("test"))
