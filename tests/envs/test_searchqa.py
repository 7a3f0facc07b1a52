"""SearchQA on rows in its published format."""

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.env_checks import validate
from ludus.envs.searchqa import SearchQA, cut_passages
from ludus.errors import ConfigError
from ludus.runner import Runner

ROW = {
    "key": "k1",
    "question": "capital of Spain",
    "context": "[DOC] Madrid is big. [DOC] Paris",
    "answers": ["Madrid"],
}


def write(tmp_path: Path, *rows: dict[str, Any]) -> SearchQA:
    (tmp_path / "test").mkdir(exist_ok=True)
    (tmp_path / "test" / "items.json").write_text(json.dumps(rows))
    return SearchQA(path=str(tmp_path))


async def test_it_is_valid(tmp_path: Path):
    env = write(tmp_path, ROW, {**ROW, "key": "k2", "answers": ["The Prado", "Prado"]})
    tasks = list(env.tasks("valid_unseen"))
    assert [task.id for task in tasks] == ["k1", "k2"]
    assert "Madrid is big" in tasks[0].prompt and "capital of Spain" in tasks[0].prompt
    assert (await validate(Runner(env), "test", tasks)).ok


def test_passages_are_cut_at_their_ends():
    assert cut_passages("[DOC] one [DOC] two", 15) == "[DOC] one"
    assert cut_passages("[DOC] one [DOC] two", 100) == "[DOC] one [DOC] two"
    assert cut_passages("x" * 20, 5) == "xxxxx"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({**ROW, "key": "k2", "answers": []}, "row 2: answers: there is none"),
        ({"key": "k2", "question": "q", "answers": ["a"]}, "row 2: .*`context`"),
        (ROW, "row 2: key: 'k1' is also that of .*row 1"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        list(write(tmp_path, ROW, row).tasks("test"))


def test_without_a_path_the_error_says_so():
    with pytest.raises(ConfigError, match=r"env\.path: searchqa comes without tasks"):
        list(SearchQA().tasks("test"))
