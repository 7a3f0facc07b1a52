"""What `ludus process` and `ludus evaluate` share."""

import json
import socket
import subprocess
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.cli_kit import (
    LUDUS,
    SUMS_MODELS,
    Ludus,
    read_calls,
    script_flags,
    write_sums,
)


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_sums(folder)


def test_quiet_prints_the_path_alone(ludus: Ludus):
    assert ludus("evaluate", "sums.py", "--out", "r", "--quiet", *script_flags()) == (0, "r\n", "")


def test_ids_and_limits_choose_tasks(ludus: Ludus):
    one = ludus("evaluate", "sums.py", "--out", "a", "--json", "--env.ids", "sum-2", *script_flags())
    assert json.loads(one.out)["summary"]["overall"]["tasks"] == 1
    two = ludus("evaluate", "sums.py", "--out", "b", "--json", "--env.limit", "2", *script_flags())
    assert json.loads(two.out)["summary"]["overall"]["tasks"] == 2


def test_a_run_without_any_score_ends_with_1(ludus: Ludus):
    code, out, _ = ludus("evaluate", "sums.py", "--out", "r", *script_flags("broken"))
    assert code == 1
    assert "ludus evaluate --resume --out r   4 rollouts have no score: run them again" in out


def test_one_rollout_without_a_score_is_singular(ludus: Ludus):
    out = ludus("evaluate", "sums.py", "--out", "r", "--env.limit", "1", *script_flags("broken")).out
    assert "ludus evaluate --resume --out r   1 rollout has no score: run it again" in out


def test_failed_rollouts_are_stated_and_run_again_on_resume(ludus: Ludus, folder: Path):
    code, out, _ = ludus("evaluate", "sums.py", "--out", "r", *script_flags("half_broken"))
    assert code == 0
    assert "ludus evaluate --resume --out r   2 rollouts have no score: run them again" in out
    (folder / "models.py").write_text(SUMS_MODELS.replace("raise ModelError", "pass  # "))
    again = subprocess.run(
        [*LUDUS, "evaluate", "--resume", "--out", "r", "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(again.stdout)["summary"]["overall"]["scored"] == 4
    assert sorted(read_calls(folder)) == ["0+0", "1+1", "2+2", "3+3"]


def test_settings_are_checked_before_a_run_directory_is_made(
    ludus: Ludus, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    server = ["--model.base_url", "http://127.0.0.1:9/v1", "--model.name", "m", "--model.api_key_var", "NO_SUCH_KEY"]
    code, _, err = ludus("evaluate", "sums.py", "--out", "r", *server)
    assert code == 2
    assert "model.api_key_var: the environment variable NO_SUCH_KEY is not set" in err
    for tools in ("--tools.enabled=nothing", "--tools.enabled=terminal", "--tools.distribution=terminal_tasks"):
        assert ludus("evaluate", "sums.py", "--out", "r", tools, *script_flags()).code == 2
    assert not (folder / "r").exists()


def test_an_environment_that_breaks_on_import_shows_its_error(ludus: Ludus, folder: Path):
    (folder / "bad.py").write_text("import nothing_of_that_name\n")
    code, _, err = ludus("evaluate", "bad.py")
    assert code == 2
    assert "ModuleNotFoundError: No module named 'nothing_of_that_name'" in err


# ---- servers that fail --------------------------------------------------------------------------------------------


@contextmanager
def serve(answer: Callable[[int], tuple[int, dict[str, Any]]]) -> Generator[tuple[list[str], list[str]]]:
    """A model server. `answer` gets the number of the request, from 1. Yields the flags, and the paths so far."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.path)
            status, reply = answer(len(asked))
            body = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        yield ["--model.base_url", url, "--model.name", "m"], asked
        server.shutdown()
        thread.join()


def make_reply(text: str, finish: str = "stop") -> dict[str, Any]:
    usage = {"prompt_tokens": 1000, "completion_tokens": 0}
    return {"choices": [{"message": {"content": text}, "finish_reason": finish}], "usage": usage}


@pytest.mark.parametrize("command", ["evaluate", "process"])
def test_a_wrong_key_stops_the_run_at_once_and_what_is_finished_is_kept(ludus: Ludus, command: str):
    with serve(lambda number: (200, make_reply("0")) if number <= 3 else (401, {"error": "bad key"})) as (flags, asked):
        many = ["--env.size", "192", "--run.concurrency", "4"]
        code, out, err = ludus(command, "sums.py", "--out", "r", "--json", *many, *flags)
    assert code == 1
    assert len(asked) <= 3 + 4, "one for each rollout under way, not 192"
    assert err.count("status 401: bad key") == 1
    assert f"resume with: ludus {command} --resume --out r" in err
    report = json.loads(out)
    assert (report["status"], report["summary"]["overall"]["scored"]) == ("broken", 3)
    with serve(lambda number: (200, make_reply("0"))) as (flags, asked):
        code, out, _ = ludus(command, "--resume", "--out", "r", "--json", *flags)
    assert (code, len(asked)) == (0, 189)
    assert json.loads(out)["summary"]["overall"]["scored"] == 192


def test_a_request_that_is_refused_does_not_stop_the_others(ludus: Ludus):
    with serve(lambda number: (400, {"error": "odd"}) if number == 1 else (200, make_reply("0"))) as (flags, _):
        code, out, _ = ludus("evaluate", "sums.py", "--out", "r", "--json", *flags)
    assert code == 0
    assert json.loads(out)["summary"]["overall"]["scored"] == 3


def test_a_wait_for_the_server_is_reported_where_output_is_piped(folder: Path):
    with socket.socket() as holder:  # bound and not listening: connections are refused
        holder.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{holder.getsockname()[1]}/v1"
        flags = ["--model.base_url", url, "--model.name", "m", "--model.retry.first_patience", "4"]
        flags += ["--model.retry.longest", "1"]
        ended = subprocess.run(
            [*LUDUS, "evaluate", "sums.py", "--out", "r", *flags], capture_output=True, text=True, timeout=120
        )
    assert ended.returncode == 1
    assert f"ludus: waiting for {url}/chat/completions (connection refused), " in ended.stderr
    assert "no server has answered for" in ended.stderr


def test_empty_replies_are_in_the_summary_and_filtered_ones_are_no_scores(ludus: Ludus):
    def answer(number: int) -> tuple[int, dict[str, Any]]:
        return 200, make_reply("", ("content_filter", "length", "stop", "stop")[number - 1])

    with serve(answer) as (flags, _):
        code, out, _ = ludus("evaluate", "sums.py", "--out", "r", *flags)
    assert code == 0
    assert "empty 2, failed 1, length 1" in out
    assert "4, 1 without a score (model 1)" in out


def test_the_cost_that_is_shown_includes_attempts_that_were_repeated(ludus: Ludus, folder: Path):
    """A tool loses its server in the first two attempts of the only task: four replies are paid."""
    (folder / "lost.py").write_text(
        """
from ludus.errors import SandboxError, SlotEvidence
from ludus.tools import tool

calls = []

@tool
async def look() -> str:
    \"\"\"Look.\"\"\"
    calls.append(0)
    if len(calls) < 3:
        raise SandboxError("gone", evidence=SlotEvidence(outside="the server is gone"))
    return "ok"
"""
    )
    look = make_reply("", "tool_calls")
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    look["choices"][0]["message"]["tool_calls"] = [call]
    flags = ["--model.price.prompt", "1000", "--env.limit", "1", "--tools.enabled", "lost.py:look"]
    with serve(lambda number: (200, look if number < 4 else make_reply("0"))) as (server, asked):
        code, out, _ = ludus("evaluate", "sums.py", "--out", "r", *flags, *server)
    assert (code, len(asked)) == (0, 4)
    assert "$4.00" in out
    assert "$4.00" in ludus("show", "r").out
