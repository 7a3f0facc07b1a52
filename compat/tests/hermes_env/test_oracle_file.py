"""A file with all hooks of the sandbox branch: every method is called where Hermes calls it."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import tests.cli_kit as cli_kit
from compat.tests.file_kit import flags, read_jsonl, write_files
from tests.cli_kit import Ludus

pytestmark = pytest.mark.usefixtures("bwrap")
FILE = "hermes_oracle_env.py"
AGENTS = """
from ludus.models.scripted import call


def fix(messages, tools, sampling):
    if messages[-1].role == "tool":
        return "mended"
    return call("terminal", command="cd calc && sed -i 's,return.*,return sum(xs) / len(xs) if xs else 0,' calc.py")


def look(messages, tools, sampling):
    return "fine" if messages[-1].role == "tool" else call("terminal", command="cat calc/calc.py")
"""
TESTS = """from calc import mean


def test_mean():
    assert mean([1, 3]) == 2


def test_empty():
    assert mean([]) == 0
"""


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


def run_git(folder: Path, *words: str) -> str:
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    done = subprocess.run(
        ["git", "-C", folder, *words], check=True, capture_output=True, text=True, env=os.environ | who
    )
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a repository, and the data set with one bug in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TERMINAL_ENV", raising=False)
    write_files(tmp_path, FILE)
    (tmp_path / "agents.py").write_text(AGENTS)
    repo = tmp_path / "repos/acme/calc"
    (repo / "tests").mkdir(parents=True)
    (repo / "calc.py").write_text("def mean(xs):\n    return sum(xs) / len(xs)\n")
    (repo / "tests/test_calc.py").write_text(TESTS)
    run_git(repo, "init", "-q")
    run_git(repo, "add", "-A")
    run_git(repo, "commit", "-qm", "one")
    run_git(tmp_path, "clone", "-q", "--bare", str(repo), "repos/acme/calc.git")
    run_git(tmp_path / "repos/acme/calc.git", "update-server-info")
    row = {
        "repo": "acme/calc",
        "base_commit": run_git(repo, "rev-parse", "HEAD"),
        "problem_statement": "The mean of nothing is 0.",
        "PASS_TO_PASS": ["tests/test_calc.py::test_mean"],
        "FAIL_TO_PASS": ["tests/test_calc.py::test_empty"],
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=tmp_path / "repos")) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def read_calls() -> list[str]:
    return json.loads(Path("calls.json").read_text())


@pytest.mark.parametrize(("agent", "score"), [("fix", 1.0), ("look", 0.0)])
def test_a_file_of_the_sandbox_branch_runs_as_it_is(ludus: Ludus, address: str, agent: str, score: float):
    words = flags(agent, "--env.repo_base_url", address)
    done = ludus("process", f"hermes:{FILE}", "--out", "run", "--json", *words)
    assert done.code == 0, done.err
    assert [group["scores"] for group in read_jsonl("run/atropos_groups.jsonl")] == [[score]]
    begun = ["local", "process_manager", "start local False", "setup"]
    assert read_calls() == [*begun, "local", "loop", f"row {score} []", "stop False", "over"]
    assert "TERMINAL_ENV" not in os.environ


def test_with_a_pool_the_methods_of_the_pool_are_called(ludus: Ludus, address: str):
    pool = ["--env.tool_pool_mode", "modal", "--env.modal_image", "python:3.11", "--sandbox.backend", "bwrap"]
    done = ludus("process", f"hermes:{FILE}", "--out", "run", *flags("fix", "--env.repo_base_url", address, *pool))
    assert done.code == 0, done.err
    assert [group["scores"] for group in read_jsonl("run/atropos_groups.jsonl")] == [[1.0]]
    begun = ["local", "process_manager", "start slot_pool True", "setup"]
    assert read_calls() == [*begun, "sandbox", "loop", "row 1.0 []", "stop False", "over"]


def test_it_runs_with_its_own_command_line(address: str):
    words = [sys.executable, "-m", "ludus.compat.hermes", FILE, "process", "--out", "run"]
    words += flags("fix", "--env.repo_base_url", address)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [group["scores"] for group in read_jsonl("run/atropos_groups.jsonl")] == [[1.0]]


def test_the_tools_and_distributions_of_hermes_can_be_called(ludus: Ludus):
    done = ludus("evaluate", f"hermes:{FILE}", "--out", "run", "--json", *flags("fix"))
    assert done.code == 0, done.err
    assert json.loads(done.out)["metrics"] == {"eval/code": 3, "eval/said": "hi\n"}


def mend(prompt: str) -> str:
    """A model in token mode that plays the task."""
    if "<tool_response>" in prompt:
        return "done " * 30
    return '<tool_call>\n{"name": "terminal", "arguments": {"command": "cat calc/calc.py"}}\n</tool_call>'


def test_a_row_that_the_file_cuts_is_cut_in_all_columns(
    ludus: Ludus, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cli_kit, "reply", mend)
    with cli_kit.serve_engine(tmp_path) as url:
        words = ["--openai.server_type", "vllm", "--openai.base_url", f"{url}/v1", "--env.tokenizer_name", "."]
        words += ["--env.repo_base_url", address, "--env.max_token_length", "60", "--out", "run", "--json"]
        done = ludus("process", f"hermes:{FILE}", *words)
    assert done.code == 0, done.err
    (group,) = read_jsonl("run/atropos_groups.jsonl")
    assert [len(group[name][0]) for name in ("tokens", "masks", "inference_logprobs")] == [52, 52, 52]
