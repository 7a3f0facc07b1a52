"""The command line, as a user meets it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ludus import __version__
from ludus.cli import COMMANDS, split_flags
from ludus.store import RunDir

LUDUS = [sys.executable, "-c", "import sys; from ludus.cli import main; sys.exit(main())"]

ENV = """
from collections.abc import Iterator
from typing import ClassVar
from ludus.env import Env
from ludus.sandbox import SandboxSpec
from ludus.types import Rollout, Score, Task

class Sums(Env, frozen=True):
    \"\"\"Add two numbers.\"\"\"
    name: ClassVar[str] = "sums"
    sandbox: ClassVar[SandboxSpec | None] = None
    size: int = 4

    def tasks(self, split: str) -> Iterator[Task]:
        for n in range(self.size):
            yield Task(id=f"sum-{n}", prompt=f"{n}+{n}", split=split, answer=str(2 * n))

    async def verify(self, rollout: Rollout, box: object) -> Score:
        return Score.of(float(rollout.answer == rollout.task.answer))

    async def solve(self, task: Task, box: object) -> str:
        return task.answer
"""

SCRIPT = """
import asyncio
from pathlib import Path
from ludus.errors import ModelError
from ludus.models.scripted import call, say

def note(text):
    with Path("calls.txt").open("a") as file:
        file.write(text + "\\n")

def right(messages, tools, sampling):
    note(messages[-1].content)
    return str(sum(map(int, messages[-1].content.split("+"))))

def broken(messages, tools, sampling):
    raise ModelError("the server is on fire", retryable=False)

def half_broken(messages, tools, sampling):
    if messages[-1].content in ("0+0", "1+1"):
        raise ModelError("the server is on fire", retryable=False)
    return right(messages, tools, sampling)

async def slow(messages, tools, sampling):
    '''The first two answer at once; the others wait until they may.'''
    if messages[-1].content in ("0+0", "1+1"):
        return right(messages, tools, sampling)
    note("waiting")
    while not Path("go").exists():
        await asyncio.sleep(0.02)
    return right(messages, tools, sampling)

def doubling(messages, tools, sampling):
    if messages[-1].role == "tool":
        return messages[-1].content
    return call("double", number=int(messages[-1].content.split("+")[0]))

def write(messages, tools, sampling):
    if messages[-1].role == "tool":
        return say("Done.")
    prompt = messages[-1].content
    path = prompt.split("called ")[1].split(" that")[0]
    return call("write_file", path=path, content=prompt.split('"')[1])
"""


Ludus = Callable[..., Any]
"""The fixture `ludus`: what a command ends with, prints and says."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user is: with an environment and some scripted models."""
    (tmp_path / "sums.py").write_text(ENV)
    (tmp_path / "models.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def scripted(function: str = "right") -> list[str]:
    return ["--model.type", "scripted", "--model.script", f"models.py:{function}"]


def calls(folder: Path) -> list[str]:
    path = folder / "calls.txt"
    return path.read_text().split() if path.exists() else []


# ---- help and lists -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_every_command_has_help_with_an_example(ludus: Ludus, command: str):
    code, out, _ = ludus(command, "--help")
    assert code == 0
    assert f"example:\n  ludus {command}" in out


def test_help_says_how_commands_end_and_version_is_told(ludus: Ludus):
    assert "130 interrupted" in ludus("--help").out
    assert ludus("--version").out == f"ludus {__version__}\n"


def test_help_imports_nothing_heavy():
    code = """
import sys
from ludus.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
heavy = {"rich", "msgspec", "yaml", "asyncio", "sqlite3", "mcp", "xllamacpp", "ssl", "ludus.config"}
print("heavy:", sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("heavy: []\n")


def test_settings_import_nothing_that_only_some_runs_need():
    code = "import sys, ludus.config; print(sorted({'rich', 'mcp', 'xllamacpp', 'sqlite3'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_environments_are_listed(ludus: Ludus):
    rows = {row["name"]: row for row in json.loads(ludus("envs", "--json").out)}
    assert rows["gsm8k"]["tasks"] == {"train": 8, "validation": 0, "test": 4}
    assert rows["orders"]["tasks"] == {"train": 24, "validation": 32, "test": 64}
    assert list(rows["gsm8k"]["options"]) == ["path"]
    assert rows["terminal-test"]["sandbox"] is True
    text = ludus("envs").out
    assert "--env.path" in text and "--env.version" not in text


def test_toolsets_and_distributions_are_listed(ludus: Ludus):
    listed = json.loads(ludus("tools", "--json", "--tools.distributions.mine", "{file: 50}").out)
    rows = {row["name"]: row for row in listed["toolsets"]}
    assert "terminal" in [tool["name"] for tool in rows["terminal"]["tools"]]
    assert rows["coding"]["includes"] == ["terminal", "file", "code"]
    assert "tools.web.provider" in rows["search"]["missing"]
    assert listed["distributions"]["mine"] == {"file": 50}
    assert "write_file" in ludus("tools").out


def test_settings_are_listed(ludus: Ludus):
    assert "| `env.group_size` |" in ludus("config").out


MCP = """
import logging
from mcp.server.mcpserver import MCPServer

logging.disable()
app = MCPServer("demo")

@app.tool()
def double(number: int) -> int:
    'Twice the number.'
    return 2 * number

app.run(transport="stdio")
"""


def test_tools_of_an_mcp_server_are_listed_and_used(ludus: Ludus, folder: Path):
    pytest.importorskip("mcp")
    (folder / "server.py").write_text(MCP)
    server = ["--tools.mcp.maths.command", json.dumps([sys.executable, "server.py"])]
    server += ["--tools.mcp.maths.start_seconds", "300"]
    rows = json.loads(ludus("tools", "--json", *server).out)["toolsets"]
    assert [tool["name"] for tool in rows[-1]["tools"]] == ["double"]
    code, out, err = ludus("evaluate", "sums.py", "--out", "r", "--json", *server, *scripted("doubling"))
    assert code == 0, err
    assert json.loads(out)["summary"]["tools"] == [{"tool": "double", "calls": 4, "errors": 0}]
    assert json.loads(out)["summary"]["overall"]["mean"] == 1.0


def test_an_mcp_server_that_cannot_start_is_a_setting_to_mend(ludus: Ludus):
    pytest.importorskip("mcp")
    code, _, err = ludus("tools", "--tools.mcp.maths.command", "[no-such-program]")
    assert code == 2
    assert "tools.mcp.maths" in err
    assert "tools.mcp.maths: give either `command` or `url`" in ludus("tools", "--tools.mcp.maths.prefix", "x").err
    spaced = ludus("tools", "--tools.mcp.maths.command", "my-server --stdio")
    assert (spaced.code, "as a list: [my-server, --stdio]" in spaced.err) == (2, True)


# ---- what was typed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "rest", "flags", "lacking"),
    [
        (["process", "x", "--a.b", "1"], ["process", "x"], [("a.b", "1")], ""),
        (["--a.b=1=2", "--out", "d"], ["--out", "d"], [("a.b", "1=2")], ""),
        (["--a.b", "-1", "--a.c", ""], [], [("a.b", "-1"), ("a.c", "")], ""),
        (["--a.b=--x"], [], [("a.b", "--x")], ""),
        (["--a.b"], [], [], "a.b"),
        (["--a.b", "--a.c", "1"], [], [], "a.b"),
        (["my.env:X", "--config", "a.yaml"], ["my.env:X", "--config", "a.yaml"], [], ""),
    ],
)
def test_dotted_flags_are_taken_out(typed: list[str], rest: list[str], flags: list[tuple[str, str]], lacking: str):
    assert split_flags(typed) == (rest, flags, lacking)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "gsm8k", "--group_size", "4"], "did you mean --env.group_size?"),
        (["evaluate", "gsm8k", "--group-size=4"], "did you mean --env.group_size?"),
        (["evaluate", "gsm8k", "--env.group_size"], "--env.group_size needs a value"),
        (["evaluate", "gsm8k", "extra"], "unknown argument extra"),
        (["evaluate", "--env.limit", "3"], "which environment?"),
        (["validate"], "which environment?"),
        (["evaluate", "gsm8k", "--env.limt", "4"], "env.limt: unknown setting; did you mean 'env.limit'?"),
        (["evaluate", "gsm9k"], "did you mean 'gsm8k'?"),
        (["evaluate", "gsm8k", "--env.split", "none", "--env.path", "no.jsonl"], "no.jsonl"),
        (["evaluate", "gsm8k", "--resume"], "run.out: which run should be resumed?"),
        (["show", "somewhere", "--env.limit", "3"], "show takes no settings, such as --env.limit"),
        (["evaluate", "--resume", "--out", "nowhere"], "nowhere: there is no run to go on with"),
        (["evaluate", "gsm8k", "--config", "none.yaml"], "--config none.yaml: No such file"),
        (["show", "nowhere"], "nowhere is not a run directory"),
        ([], "COMMAND"),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(ludus: Ludus, words: list[str], message: str):
    code, out, err = ludus(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_printed_settings_are_the_effective_ones_and_can_be_given_back(ludus: Ludus, folder: Path):
    words = ["evaluate", "sums.py", "--env.size", "2", "--run.seed", "7", *scripted()]
    printed = ludus(*words, "--print-config").out
    (folder / "printed.yaml").write_text(printed)
    assert "size: 2" in printed and "seed: 7" in printed
    assert ludus("evaluate", "--config", "printed.yaml", "--print-config").out == printed
    changed = ludus("evaluate", "--config", "printed.yaml", "--run.seed", "8", "--print-config").out
    assert changed == printed.replace("seed: 7", "seed: 8")
    assert not (folder / "runs").exists()


# ---- running ------------------------------------------------------------------------------------------------------


def test_process_writes_groups_and_says_what_to_do_next(ludus: Ludus, folder: Path):
    code, out, err = ludus("process", "sums.py", "--env.group_size", "2", *scripted())
    assert code == 0, err
    (run,) = (folder / "runs").iterdir()
    assert run.name.startswith("sums-")
    rows = [json.loads(line) for line in (run / "groups.jsonl").read_text().splitlines()]
    assert sorted(row["task"]["id"] for row in rows) == ["sum-0", "sum-1", "sum-2", "sum-3"]
    assert all(len(row["rollouts"]) == 2 for row in rows)
    assert f"ludus show runs/{run.name}" in out
    assert (run / "trajectories.html").as_uri() in out


def test_evaluate_for_machines_is_json_alone(ludus: Ludus, folder: Path):
    code, out, _ = ludus("evaluate", "sums.py", "--out", "r", "--json", *scripted())
    assert code == 0
    found = json.loads(out)
    assert (found["status"], found["run"], found["resume"]) == ("completed", "r", "")
    assert found["summary"]["overall"]["mean"] == 1.0
    assert found["ledger"]["agent"]["calls"] == 4
    assert json.loads(Path(found["files"]["summary"]).read_text()) == found["summary"]


def test_a_real_sandbox_end_to_end(ludus: Ludus):
    code, out, err = ludus("evaluate", "terminal-test", "--out", "r", "--json", *scripted("write"))
    assert code == 0, err
    assert json.loads(out)["summary"]["overall"]["mean"] == 1.0


def test_quiet_prints_the_path_alone(ludus: Ludus):
    assert ludus("evaluate", "sums.py", "--out", "r", "--quiet", *scripted()) == (0, "r\n", "")


def test_ids_and_limits_choose_tasks(ludus: Ludus):
    one = ludus("evaluate", "sums.py", "--out", "a", "--json", "--env.ids", "sum-2", *scripted())
    assert json.loads(one.out)["summary"]["overall"]["tasks"] == 1
    two = ludus("evaluate", "sums.py", "--out", "b", "--json", "--env.limit", "2", *scripted())
    assert json.loads(two.out)["summary"]["overall"]["tasks"] == 2


def test_a_run_without_any_score_ends_with_1(ludus: Ludus):
    code, out, _ = ludus("evaluate", "sums.py", "--out", "r", *scripted("broken"))
    assert code == 1
    assert "ludus evaluate --resume --out r   4 rollouts have no score: run them again" in out


def test_failed_rollouts_are_stated_and_run_again_on_resume(ludus: Ludus, folder: Path):
    code, out, _ = ludus("evaluate", "sums.py", "--out", "r", *scripted("half_broken"))
    assert code == 0
    assert "ludus evaluate --resume --out r   2 rollouts have no score: run them again" in out
    (folder / "models.py").write_text(SCRIPT.replace("raise ModelError", "pass  # "))
    again = subprocess.run(
        [*LUDUS, "evaluate", "--resume", "--out", "r", "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(again.stdout)["summary"]["overall"]["scored"] == 4
    assert sorted(calls(folder)) == ["0+0", "1+1", "2+2", "3+3"]


def test_a_finished_run_resumed_by_its_settings_alone_runs_nothing(ludus: Ludus, folder: Path):
    """Also when the settings were defaults before and are spelled out in the record now."""
    words = ["--out", "r", "--json"]
    first = json.loads(ludus("evaluate", "sums.py", "--sampling.temperature", "1", *words, *scripted()).out)
    second = json.loads(ludus("evaluate", "--resume", *words).out)
    assert second["summary"] == first["summary"]
    assert len(calls(folder)) == 4


def test_a_run_directory_is_not_reused_by_accident(ludus: Ludus):
    words = ["evaluate", "sums.py", "--out", "r", *scripted()]
    assert ludus(*words).code == 0
    code, _, err = ludus(*words)
    assert code == 2 and "--resume" in err
    code, _, err = ludus("evaluate", "gsm8k", "--resume", "--out", "r")
    assert code == 2 and "r is a run of sums.py, not of gsm8k" in err
    code, _, err = ludus("evaluate", "--resume", "--out", "r", "--sampling.temperature", "0")
    assert code == 2 and "sampling.temperature: 1.0 → 0.0" in err


def test_a_second_process_on_the_same_run_is_refused(ludus: Ludus, folder: Path):
    with RunDir.open(folder / "r", {}):
        code, _, err = ludus("evaluate", "sums.py", "--out", "r", "--resume", *scripted())
    assert code == 2
    assert "in use by another process" in err


def test_a_spent_budget_ends_with_3_and_is_not_given_twice(ludus: Ludus, folder: Path):
    words = ["evaluate", "sums.py", "--out", "r", "--budget.calls", "3", "--run.concurrency", "1"]
    code, out, err = ludus(*words, "--json", *scripted())
    assert code == 3
    found = json.loads(out)
    assert (found["status"], found["resume"]) == ("budget", "ludus evaluate --resume --out r")
    assert "Raise budget.calls" in err and "go on with: ludus evaluate --resume --out r" in err
    assert ludus("evaluate", "--resume", "--out", "r").code == 3
    assert len(calls(folder)) == 3
    again = json.loads(ludus("evaluate", "--resume", "--out", "r", "--budget.calls", "4", "--json").out)
    assert again["status"] == "completed"
    assert again["ledger"]["agent"]["calls"] == 4
    assert len(calls(folder)) == 4
    with (folder / "r" / "ledger.jsonl").open("a") as ledger:
        ledger.write("\0\0\n")
    damaged = ludus("evaluate", "--resume", "--out", "r")
    assert (damaged.code, "ledger.jsonl is damaged" in damaged.err) == (2, True)


def test_settings_are_checked_before_a_run_directory_is_made(
    ludus: Ludus, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    server = ["--model.base_url", "http://127.0.0.1:9/v1", "--model.name", "m", "--model.api_key_var", "NO_SUCH_KEY"]
    code, _, err = ludus("evaluate", "sums.py", "--out", "r", *server)
    assert code == 2
    assert "model.api_key_var: the environment variable NO_SUCH_KEY is not set" in err
    for tools in ("--tools.enabled=nothing", "--tools.enabled=terminal", "--tools.distribution=terminal_tasks"):
        assert ludus("evaluate", "sums.py", "--out", "r", tools, *scripted()).code == 2
    assert not (folder / "r").exists()


def test_an_environment_that_breaks_on_import_shows_its_error(ludus: Ludus, folder: Path):
    (folder / "bad.py").write_text("import nothing_of_that_name\n")
    code, _, err = ludus("evaluate", "bad.py")
    assert code == 2
    assert "ModuleNotFoundError: No module named 'nothing_of_that_name'" in err


# ---- secrets ------------------------------------------------------------------------------------------------------

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


# ---- interruption -------------------------------------------------------------------------------------------------


def started(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """A run whose first two rollouts are kept, and whose next two are under way and wait."""
    child = subprocess.Popen(
        [*LUDUS, "evaluate", "sums.py", "--out", "r", "--json", *scripted("slow"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    limit = time.monotonic() + 300
    while calls(folder).count("waiting") < 2 or kept(folder) < 2:
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)
    return child


def kept(folder: Path) -> int:
    with RunDir.read(folder / "r") as run:
        return run.count()


def test_ctrl_c_finishes_what_runs_and_the_run_can_be_resumed(folder: Path):
    child = started(folder, "--run.concurrency", "2", "--env.size", "6")
    child.send_signal(signal.SIGINT)
    assert child.stderr is not None
    assert "stopping" in child.stderr.readline()
    (folder / "go").touch()
    out, err = child.communicate(timeout=300)
    assert child.returncode == 130, err
    found = json.loads(out)
    assert (found["status"], found["summary"]["overall"]["scored"]) == ("interrupted", 4)
    again = subprocess.run(
        [*LUDUS, *found["resume"].split()[1:], "--json"], capture_output=True, text=True, check=True, cwd=folder
    )
    assert json.loads(again.stdout)["summary"]["overall"]["scored"] == 6
    finished = [call for call in calls(folder) if call != "waiting"]
    assert sorted(finished) == ["0+0", "1+1", "2+2", "3+3", "4+4", "5+5"]


def test_a_second_ctrl_c_drops_what_runs(folder: Path):
    child = started(folder)
    child.send_signal(signal.SIGINT)
    assert child.stderr is not None
    assert "stopping" in child.stderr.readline()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=300)
    assert child.returncode == 130, err
    assert json.loads(out)["summary"]["overall"]["scored"] == 2
    assert "Traceback" not in err


def test_kill_9_loses_nothing_that_was_finished(folder: Path):
    child = started(folder)
    child.kill()
    child.communicate()
    (folder / "go").touch()
    again = subprocess.run(
        [*LUDUS, "evaluate", "--resume", "--out", "r", "--json"], capture_output=True, text=True, check=True, cwd=folder
    )
    assert json.loads(again.stdout)["summary"]["overall"]["scored"] == 4
    finished = [call for call in calls(folder) if call != "waiting"]
    assert sorted(finished) == ["0+0", "1+1", "2+2", "3+3"]


def test_a_terminal_that_knows_no_arrows_is_no_error():
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*LUDUS, "config"], capture_output=True, check=True, env=ascii_only)
    assert b"?" in done.stdout and not done.stderr


def test_a_closed_pipe_is_no_error():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*LUDUS, "config"], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


# ---- looking ------------------------------------------------------------------------------------------------------


def test_show_prints_a_run_and_its_transcripts(ludus: Ludus):
    ludus("evaluate", "sums.py", "--out", "r", "--env.group_size", "2", *scripted())
    text = ludus("show", "r").out
    assert "mean score" in text and "sum-0" in text
    assert "2+2" in ludus("show", "r", "sum-2").out
    assert "task sum-2, rollout 2" in ludus("show", "r", "sum-2#2").out
    code, _, err = ludus("show", "r", "sum-2#3")
    assert code == 2 and "has 2 rollouts in this run, not 3" in err
    code, _, err = ludus("show", "r", "som-2")
    assert code == 2 and "did you mean 'sum-2'?" in err


def test_show_for_machines(ludus: Ludus):
    ludus("evaluate", "sums.py", "--out", "r", *scripted())
    found = json.loads(ludus("show", "r", "--json").out)
    assert found["summary"]["overall"]["mean"] == 1.0
    assert len(found["rollouts"]) == 4
    row = json.loads(ludus("show", "r", "sum-3", "--json").out)
    assert (row["task"]["id"], row["answer"]) == ("sum-3", "6")


def test_validate_ends_with_its_verdict(ludus: Ludus, folder: Path):
    assert ludus("validate", "sums.py") == (0, ludus("validate", "sums.py").out, "")
    assert json.loads(ludus("validate", "sums.py", "--json").out)["ok"] is True
    (folder / "wrong.py").write_text(ENV.replace("return task.answer", "return 'x'"))
    code, out, _ = ludus("validate", "wrong.py", "--env.limit", "2")
    assert code == 1
    assert "fail    the gold solution passes with value 1: 2 of 2 tasks" in out
    assert json.loads(ludus("validate", "wrong.py", "--json").out)["ok"] is False


def test_validate_in_a_real_sandbox(ludus: Ludus):
    code, out, err = ludus("validate", "terminal-test", "--env.limit", "2")
    assert code == 0, out + err
    assert "ok      setup makes the same files twice" in out


def test_doctor_for_people_and_machines(ludus: Ludus):
    code, out, _ = ludus("doctor")
    assert "python: 3." in out
    findings = json.loads(ludus("doctor", "--json").out)
    assert code == int(any(finding["status"] == "fail" for finding in findings))
