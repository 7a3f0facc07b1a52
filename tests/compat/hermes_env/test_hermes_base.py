"""Files of Hermes from the command line."""

import json
from pathlib import Path

import pytest
from tests.cli_kit import Ludus
from tests.file_kit import count_calls, flags, read_jsonl, write_files

NOTES, REPO = "hermes_notes_env.py", "hermes_repo_fix_env.py"
pytestmark = pytest.mark.usefixtures("bwrap")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, NOTES, REPO)
    return tmp_path


def process(ludus: Ludus, file: str, agent: str, *words: str) -> list[list[float]]:
    done = ludus("process", f"hermes:{file}", "--out", "run", "--json", *flags(agent, *words))
    assert done.code == 0, done.err
    return [group["scores"] for group in read_jsonl("run/atropos_groups.jsonl")]


@pytest.mark.parametrize(("agent", "score"), [("notes", 1.0), ("messy", 0.5), ("empty", 0.0)])
def test_a_file_with_the_five_hooks_runs_as_it_is(ludus: Ludus, agent: str, score: float):
    assert process(ludus, NOTES, agent) == [[score] * 2] * 3
    assert read_jsonl("run/metrics.jsonl")[0]["train/mean_reward"] == score


@pytest.mark.parametrize(("agent", "score"), [("mend", 1.0), ("mend_half", 0.5), ("ruin", 0.0), ("empty", 0.0)])
def test_a_file_with_the_hooks_of_the_pool_runs_as_it_is(ludus: Ludus, agent: str, score: float):
    assert process(ludus, REPO, agent, "--env.tool_pool_mode", "default") == [[score] * 2] * 2


def test_evaluate_runs_single_rollouts(ludus: Ludus):
    done = ludus("evaluate", f"hermes:{NOTES}", "--out", "run", "--json", *flags("notes"))
    assert done.code == 0, done.err
    assert json.loads(done.out)["metrics"] == {"eval/mean_reward": 1.0}
    done = ludus(
        "evaluate", f"hermes:{REPO}", "--out", "two", "--json", "--env.tool_pool_mode", "default", *flags("mend")
    )
    assert json.loads(done.out)["metrics"] == {"eval/solved": 1.0}
    assert "ready" in ludus("show", "run", "evaluate-00000").out


def test_a_resumed_run_asks_only_for_what_is_missing(ludus: Ludus):
    words = ["process", f"hermes:{NOTES}", "--out", "run", "--json", *flags("notes")]
    assert ludus(*words, "--budget.calls", "5").code == 3
    assert ludus("process", "--resume", "--out", "run", "--budget.calls", "99").code == 0
    assert count_calls() == 2 * (2 + 3 + 2)
    assert [group["scores"] for group in read_jsonl("run/atropos_groups.jsonl")] == [[1.0, 1.0]] * 3
