"""Checkers: what a function may take and return, and environments as checkers."""

from pathlib import Path
from typing import Any

import pytest
from tests.build import make_rollout, make_task

from ludus.errors import ConfigError
from ludus.trajectories.checks import describe_row, load_check, make_score
from ludus.types import Rollout, Score

FUNCTIONS = """
from ludus.types import Score

def by_answer(answer, row): return answer == row["answer"]
def by_rollout(rollout): return len(rollout.turns) / 4
async def with_box(box, answer): return Score.of(0.5, "half")
def in_words(answer): return "yes"
def takes_more(answer, weight): ...
def takes_none(): ...
NUMBER = 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "checks.py"
    path.write_text(FUNCTIONS)
    return path


def said(text: str, answer: Any = "4") -> Rollout:
    return make_rollout(1.0, text, task=make_task(answer=answer, details={"metadata": {"topic": "t"}, "cwd": "d"}))


@pytest.mark.parametrize(
    ("name", "value", "uses_box"), [("by_answer", 1.0, False), ("by_rollout", 0.25, False), ("with_box", 0.5, True)]
)
async def test_functions_get_what_they_name(file: Path, name: str, value: float, uses_box: bool):
    check, rollout = load_check(f"{file}:{name}"), said("4")
    assert (await check.score(rollout, describe_row(rollout), None)).value == value
    assert (check.uses_box, check.files) == (uses_box, (file,))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("takes_more", "has the parameter 'weight'; those of a check are some of answer, rollout, row, box"),
        ("takes_none", "has no parameter"),
        ("NUMBER", "neither a function nor an environment"),
        ("missing", "has no 'missing'"),
    ],
)
def test_what_is_no_check_is_refused(file: Path, name: str, words: str):
    with pytest.raises(ConfigError, match=words):
        load_check(f"{file}:{name}")


async def test_a_function_must_return_a_verdict(file: Path):
    with pytest.raises(TypeError, match="returns str"):
        await load_check(f"{file}:in_words").score(said("x"), {}, None)


@pytest.mark.parametrize(("found", "score"), [(True, 1.0), (False, 0.0), (3, 3.0), (Score.of(0.2), 0.2)])
def test_verdicts(found: Any, score: float):
    assert make_score(found).value == score


async def test_an_environment_is_a_checker():
    check, rollout = load_check("gsm8k"), said("so it is\n#### 4", "2+2 = 4\n#### 4")
    assert (await check.score(rollout, {}, None)).passed
    assert (check.uses_box, check.files) == (False, ())


@pytest.mark.parametrize(("name", "words"), [("judge", "a model judges"), ("gsm9k", "gsm8k")])
def test_environments_that_are_none(name: str, words: str):
    with pytest.raises(ConfigError, match=words):
        load_check(name)


def test_the_row_of_a_rollout():
    assert describe_row(said("x")) == {"id": "t1", "prompt": "do it", "answer": "4", "topic": "t", "cwd": "d"}
