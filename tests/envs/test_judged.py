"""The environment `judge`: rows, and whole runs with judges of the user's own."""

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.cli import main
from ludus.envs.judged import Judged
from ludus.errors import ConfigError

JUDGE = '''
import json
from ludus.types import Completion, Message, Usage


class Strict:
    """Meets every criterion if the reply is the reference."""

    name = "strict"

    def __init__(self, always: bool = False) -> None:
        self.always = always

    async def complete(self, messages, tools, sampling):
        facts = json.loads(messages[-1].content)
        met = self.always or facts["reply"] == facts["reference"]
        verdicts = [{"criterion": n["criterion"], "met": met} for n in facts["rubric"]]
        return Completion(Message("assistant", json.dumps({"verdicts": verdicts})), usage=Usage(10, 5))

    async def close(self):
        pass
'''


AGENT = """
from ludus.types import Completion, Message


class Agreeable:
    name = "agreeable"

    async def complete(self, messages, tools, sampling):
        return Completion(Message("assistant", "Yes."))

    async def close(self):
        pass
"""


@pytest.fixture
def judge(tmp_path: Path) -> str:
    (tmp_path / "judge.py").write_text(JUDGE)
    return f"{tmp_path}/judge.py"


def write(tmp_path: Path, row: dict[str, Any]) -> Judged:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    return Judged(path=f"{tmp_path}/rows.jsonl")


def test_the_bundled_tasks_are_valid(judge: str, capsys: pytest.CaptureFixture[str]):
    assert main(["validate", "judge", "--judge.type", judge]) == 0
    assert "no problems" in capsys.readouterr().out


def test_a_run_books_both_judges_and_reports_their_agreement(
    judge: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["evaluate", "judge", "--out", f"{tmp_path}/run", "--json", "--judge.type", judge]
    words += ["--second_judge.type", judge, "--second_judge.options.always", "true"]
    (tmp_path / "agent.py").write_text(AGENT)
    words += ["--model.type", f"{tmp_path}/agent.py"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert {role: entry["calls"] for role, entry in report["ledger"].items()} == {
        "agent": 4,
        "judge": 4,
        "second_judge": 4,
    }
    assert report["summary"]["agreement"] == {"rollouts": 4, "same": 0.0, "kappa": None, "difference": 1.0}
    assert report["summary"]["overall"]["mean"] == 0.0
    assert main(["show", f"{tmp_path}/run"]) == 0
    assert "judges agree" in capsys.readouterr().out


UNREADABLE = """
import json
from ludus.types import Completion, Message


class Silent:
    name = "silent"

    def __init__(self, only: str = "") -> None:
        self.only = only

    async def complete(self, messages, tools, sampling):
        facts = json.loads(messages[1].content)
        if not self.only or facts["reply"] == self.only:
            return Completion(Message("assistant", "no verdict"))
        verdicts = [{"criterion": n["criterion"], "met": False} for n in facts["rubric"]]
        return Completion(Message("assistant", json.dumps({"verdicts": verdicts})))

    async def close(self):
        pass
"""


@pytest.mark.parametrize(("only", "ended"), [("", {"failed": 4}), ("Yes.", {"broken": 4})])
def test_a_judge_that_gives_no_verdict_on_any_reply_is_the_world_s_failure(
    only: str, ended: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "judge.py").write_text(UNREADABLE)
    words = ["evaluate", "judge", "--out", f"{tmp_path}/run", "--json", "--judge.type", f"{tmp_path}/judge.py"]
    words += ["--model.type", f"{tmp_path}/agent.py", *(["--judge.options.only", only] if only else [])]
    main(words)
    assert json.loads(capsys.readouterr().out)["summary"]["stops"] == ended


@pytest.mark.parametrize(
    "words",
    [
        ["validate", "judge"],
        ["evaluate", "judge", "--model.type", "agent.py"],
        ["process", "judge", "--model.type", "agent.py"],
        ["headroom", "judge", "--model.type", "agent.py", "--data.ratio", "1:1:1"],
    ],
    ids=lambda words: words[0],
)
def test_without_a_judge_the_command_says_what_to_set(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    assert main(words) == 2
    assert "--judge.base_url URL" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_headroom_is_measured_with_judges(judge: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "agent.py").write_text(AGENT)
    words = ["headroom", "judge", "--out", f"{tmp_path}/run", "--json", "--judge.type", judge]
    words += ["--model.type", f"{tmp_path}/agent.py", "--hints", "1", "--data.ratio", "1:1:1"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["headroom"]["score"] == 0.0
    assert report["ledger"]["judge"]["calls"] == report["ledger"]["agent"]["calls"] > 0


def test_rubrics_in_three_forms(tmp_path: Path):
    for rubric in ("a", ["a"], [{"criterion": "a", "weight": 1.0}]):
        (task,) = write(tmp_path, {"prompt": "p", "rubric": rubric}).tasks("train")
        assert task.answer["rubric"] == [{"criterion": "a", "weight": 1.0}]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": "p"}, "line 1: .*`rubric`"),
        ({"prompt": "p", "rubric": []}, "line 1: rubric: it has no criterion"),
        ({"prompt": " ", "rubric": "a"}, "line 1: prompt: it is empty"),
        ({"prompt": "p", "rubric": [{"criterion": "a", "weight": 0}]}, r"line 1: .*weight"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        list(write(tmp_path, row).tasks("train"))
