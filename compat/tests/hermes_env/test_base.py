"""Files of Hermes from the command line."""

import itertools
import json
from pathlib import Path

import pytest
import tests.cli_kit as cli_kit
from compat.tests.file_kit import count_calls, flags, read_jsonl, write_files
from tests.cli_kit import Ludus

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


@pytest.mark.parametrize(("agent", "score"), [("mend", 1.0), ("mend_half", 0.5), ("ruin", 0.0)])
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


def write_note(prompt: str) -> str:
    """A model in token mode that plays the first task of hermes_notes_env.py."""
    if "<tool_response>" in prompt:
        return "done"
    arguments = {"path": "notes/shopping.txt", "content": "bread\nmilk\npears"}
    return f"<tool_call>\n{json.dumps({'name': 'write_file', 'arguments': arguments})}\n</tool_call>"


def test_a_model_with_exact_ids_gives_rows_with_logprobs(ludus: Ludus, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli_kit, "reply", write_note)
    with cli_kit.serve_engine(folder) as url:
        words = ["--openai.server_type", "vllm", "--openai.base_url", f"{url}/v1", "--env.tokenizer_name", "."]
        given = [*words, "--env.use_wandb", "false", "--env.total_steps", "1", "--out", "run", "--json"]
        done = ludus("process", f"hermes:{NOTES}", *given)
    assert done.code == 0, done.err
    (group,) = read_jsonl("run/atropos_groups.jsonl")
    assert group["scores"] == [1.0, 1.0] and [m["role"] for m in group["messages"][0]][-1] == "assistant"
    for ids, masks, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
        assert len(ids) == len(masks) == len(logprobs)
        assert sum(a == -100 and b != -100 for a, b in itertools.pairwise(masks)) == 2  # two replies
    assert ludus("check", "run").code == 0
