"""`ludus evaluate`."""

import json
import re
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.cli_kit import (
    Ludus,
    read_calls,
    script_flags,
    write_sums,
)


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_sums(folder)


def test_evaluate_for_machines_is_json_alone(ludus: Ludus, folder: Path):
    code, out, _ = ludus("evaluate", "sums.py", "--out", "r", "--json", *script_flags())
    assert code == 0
    found = json.loads(out)
    assert (found["status"], found["run"], found["resume"]) == ("completed", "r", "")
    assert found["summary"]["overall"]["mean"] == 1.0
    assert found["ledger"]["agent"]["calls"] == 4
    assert json.loads(Path(found["files"]["summary"]).read_text()) == found["summary"]


def test_a_real_sandbox_end_to_end(ludus: Ludus):
    code, out, err = ludus("evaluate", "terminal-test", "--out", "r", "--json", *script_flags("write"))
    assert code == 0, err
    assert json.loads(out)["summary"]["overall"]["mean"] == 1.0


def test_a_verify_that_raises_buys_the_turns_once(ludus: Ludus, folder: Path):
    text = (
        (folder / "sums.py").read_text().replace("return Score.of", "raise KeyError('column')\n        return Score.of")
    )
    (folder / "broken_sums.py").write_text(text)
    code, out, _ = ludus("evaluate", "broken_sums.py", "--out", "r", "--json", *script_flags())
    found = json.loads(out)
    assert (code, found["ledger"]["agent"]["calls"]) == (1, 4)
    assert found["summary"]["failed"] == {"verifier": 4}


def test_answers_that_break_verify_are_zeros_and_the_numbers_show_no_exclusion(ludus: Ludus, folder: Path):
    """The sums of two tasks are wrong in a way that the verifier cannot read."""
    text = (folder / "sums.py").read_text().replace("rollout.answer == ", "int(rollout.answer or 0) == int(")
    (folder / "fragile_sums.py").write_text(text.replace("rollout.task.answer)", "rollout.task.answer))"))
    (folder / "evil.py").write_text(
        "def act(messages, tools, sampling):\n"
        "    number = int(messages[-1].content.partition('+')[0])\n"
        "    return 'no number' if number in (2, 3) else str(2 * number)\n"
    )
    flags = ["--model.type", "scripted", "--model.script", "evil.py:act"]
    code, out, _ = ludus("evaluate", "fragile_sums.py", "--out", "r", "--json", *flags)
    found = json.loads(out)
    overall = found["summary"]["overall"]
    assert (code, overall["mean"], overall["scored"], found["summary"]["failed"]) == (0, 0.5, 4, {})
    assert found["summary"]["stops"] == {"broken": 2, "finished": 2}
    assert found["ledger"]["agent"]["calls"] == 4


def test_the_numbers_show_what_was_left_out(ludus: Ludus):
    code, out, _ = ludus("evaluate", "sums.py", "--out", "r", *script_flags("half_broken"))
    assert code == 0
    assert "with zeros" in out
    assert "warning: 2 of 4 rollouts (50.0 %) have no score and are in no mean" in out
    summary = json.loads(Path("r/summary.json").read_text())
    assert (summary["overall"]["mean"], summary["overall"]["mean_with_zeros"]) == (1.0, 0.5)


SECRET = "sk-this-is-the-secret-value"


@pytest.fixture
def echoing_server() -> Generator[str]:
    """A model server that gives back the key it was sent, as a careless one might."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            reply = {"choices": [{"message": {"role": "assistant", "content": self.headers["Authorization"]}}]}
            body = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def test_a_key_is_in_no_file_and_no_output(
    ludus: Ludus, folder: Path, echoing_server: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MY_KEY", SECRET)
    server = ["--model.base_url", echoing_server, "--model.name", "m", "--model.api_key_var", "MY_KEY"]
    for command in ("process", "evaluate"):
        code, out, err = ludus(command, "sums.py", "--out", command, *server)
        assert code == 0, err
        files = [path for path in (folder / command).rglob("*") if path.is_file()]
        assert len(files) >= 5
        assert not [path for path in files if SECRET.encode() in path.read_bytes()]
        assert any(b"[redacted]" in path.read_bytes() for path in files)
        assert SECRET not in out + err
    assert SECRET not in ludus("process", "sums.py", "--print-config", *server).out


BUGGY = """
from pathlib import Path
from ludus.models.scripted import say
from ludus.types import Call, Message

def buggy(messages, tools, sampling):
    if messages[-1].content == "1+1" and not Path("fixed").exists():
        raise LookupError("nobody expected this")
    return str(sum(map(int, messages[-1].content.split("+"))))

def nested(messages, tools, sampling):
    if messages[-1].role == "tool":
        return say("done \\ud800")
    return Message("assistant", calls=(Call("", "todo", '{"todos":' + "[" * 5000 + "]" * 5000 + "}"),))
"""


@pytest.mark.parametrize("command", ["evaluate", "process"])
def test_a_bug_in_one_rollout_ends_with_1_and_a_message_and_not_the_others(ludus: Ludus, folder: Path, command: str):
    (folder / "buggy.py").write_text(BUGGY)
    model = ["--model.type", "scripted", "--model.script", "buggy.py:buggy"]
    done = ludus(command, "sums.py", "--out", "r", "--json", *model)
    assert done.code == 1
    summary = json.loads(done.out)["summary"]
    assert (summary["overall"]["scored"], summary["overall"]["rollouts"]) == (3, 4)
    assert "Traceback" not in json.dumps(summary) and '{"bug": 1}' in json.dumps(summary)
    assert "1 rollout met a bug and has no score" in done.err and "report" in done.err
    shown = ludus("show", "r", "sum-1")
    assert "LookupError: nobody expected this" in shown.out and "in buggy" in shown.out
    (folder / "fixed").touch()
    assert ludus(command, "--resume", "--out", "r").code == 0


def test_arguments_of_a_thousand_levels_are_stored_and_shown(ludus: Ludus, folder: Path):
    (folder / "buggy.py").write_text(BUGGY)
    model = ["--model.type", "scripted", "--model.script", "buggy.py:nested", "--tools.enabled", "todo"]
    done = ludus("evaluate", "sums.py", "--out", "r", "--json", *model)
    assert done.code == 0, done.err
    assert json.loads(done.out)["summary"]["overall"]["scored"] == 4
    assert ludus("evaluate", "--resume", "--out", "r", "--quiet").code == 0
    assert "nested too deeply" in ludus("show", "r", "sum-1").out


def test_several_models_end_in_a_comparison(ludus: Ludus, folder: Path):
    for name, script in {"right": "right", "wrong": "half_broken"}.items():
        (folder / f"{name}.yaml").write_text(f"model: {{type: scripted, script: 'models.py:{script}'}}\n")
    flags = ["evaluate", "sums.py", "--models", "right.yaml,wrong.yaml", "--out", "both", "--run.retries", "0"]
    code, out, _ = ludus(*flags)
    assert code == 0 and out.index("right.yaml") < out.index("differences on the same tasks")
    assert json.loads(ludus("show", "both/right", "--json").out)["summary"]["overall"]["scored"] == 4
    asked = len(read_calls(folder))
    lines = ludus(*flags, "--resume", "--json").out.splitlines()
    assert [json.loads(line).get("run") for line in lines] == ["both/right", "both/wrong", None]
    assert json.loads(lines[-1])["pairs"][0]["tasks"] == 2
    assert len(read_calls(folder)) == asked, "what is finished is not run again"
    assert ludus(*flags, "--resume", "--quiet").out.split() == ["both/right", "both/wrong"]


def test_models_are_names_or_files(ludus: Ludus, folder: Path):
    flags = ["--model.base_url", "http://localhost:1/v1", "--print-config"]
    code, out, _ = ludus("evaluate", "sums.py", "--models", "small/a,large", "--models", "third", *flags)
    names = re.findall(r"^  name: (\S+)$", out, re.M)
    assert code == 0 and [n for n in names if n not in ("sums.py", "''")] == ["small/a", "large", "third"]
    assert not (folder / "runs").exists()
    (folder / "a.yaml").touch()
    assert "two of them would have the same folder" in ludus("evaluate", "sums.py", "--models", "a,a.yaml").err
    assert "Name their folder with --out" in ludus("evaluate", "sums.py", "--models", "a,b", "--resume").err
    assert "which environment?" in ludus("evaluate", "--models", "a,b", "--out", "x").err
