"""OfficeQA on a CSV file and documents in its format."""

from pathlib import Path

import pytest

from ludus.env_checks import validate
from ludus.envs.officeqa import OfficeQA
from ludus.errors import ConfigError
from ludus.models.scripted import Reply, ScriptedModel, call
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.types import Rollout

HEADER = "uid,question,ground_truth,category,source_files\n"
ROW = 'u1,What was spent in 1950?,"1,234 million dollars",hard,bulletin_1950.txt\n'


def write(tmp_path: Path, rows: str = ROW) -> OfficeQA:
    (tmp_path / "questions.csv").write_text(HEADER + rows)
    (tmp_path / "docs").mkdir(exist_ok=True)
    (tmp_path / "docs" / "bulletin_1950.txt").write_text("Receipts 900\nSpent 1,234 million\n" + "x\n" * 100)
    (tmp_path / "docs" / "bulletin_1951.txt").write_text("Spent 5\n")
    (tmp_path / "secret.txt").write_text("Spent nothing\n")
    return OfficeQA(path=f"{tmp_path}/questions.csv")


async def act(env: OfficeQA, *replies: Reply) -> Rollout:
    task = next(iter(env.tasks("test")))
    return await run(Job(task, Policy(ScriptedModel(list(replies)))), Runner(env))


async def test_it_is_valid(tmp_path: Path):
    env = write(tmp_path)
    assert (await validate(Runner(env), "test", list(env.tasks("test")))).ok


async def test_the_tools_find_and_read_the_documents_of_the_task_only(tmp_path: Path):
    rollout = await act(
        write(tmp_path),
        call("glob", pattern="*"),
        call("grep", text="SPENT"),
        call("read", document="bulletin_1950.txt", first_line=2, lines=1),
        call("read", document="bulletin_1951.txt"),
        call("read", document="../secret.txt"),
        "<answer>$1234</answer>",
    )
    shown = [result for turn in rollout.turns for result in turn.results]
    assert shown[0].content == "bulletin_1950.txt"
    assert shown[1].content == "bulletin_1950.txt:2: Spent 1,234 million"
    assert shown[2].content.endswith("Spent 1,234 million")
    assert [bool(result.error) for result in shown] == [False, False, False, True, True]
    assert rollout.score is not None and rollout.score.passed


async def test_only_an_answer_in_tags_counts(tmp_path: Path):
    score = (await act(write(tmp_path), "1234")).score
    assert score is not None and score.value == 0.0


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("u1,q,,c,\n", r"questions\.csv, row 1: ground_truth: it is missing"),
        ("u1,q,1,c,no.txt\n", "row 1: source_files: there is no document 'no.txt'"),
        (ROW + ROW, "row 2: uid: 'u1' is also"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, rows: str, says: str):
    with pytest.raises(ConfigError, match=says):
        list(write(tmp_path, rows).tasks("test"))


def test_missing_documents_are_named(tmp_path: Path):
    (tmp_path / "q.csv").write_text(HEADER + ROW)
    with pytest.raises(ConfigError, match=r"env\.docs: there is no folder"):
        list(OfficeQA(path=f"{tmp_path}/q.csv").tasks("test"))
