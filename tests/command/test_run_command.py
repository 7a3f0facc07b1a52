"""The shell of commands that run rollouts: settings and run directories, budgets, Ctrl-C, resuming, a new command."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli_kit import LUDUS, Ludus, read_calls, script_flags, train_words, write_rules, write_sums

from ludus.arguments import RunArguments
from ludus.batch import load_tasks
from ludus.command.run_command import DryRun, RunReport, RunResult, RunWork, Unscored, choose_exit_code, run_command
from ludus.config import Config
from ludus.config.build_agent import build_env
from ludus.engine import address_jobs, run_stored
from ludus.errors import ConfigError
from ludus.models.ledger import Ledger
from ludus.run import Run, RunKind, RunOutcome
from ludus.run_info import RunInfo, read_info
from ludus.runner import Job
from ludus.store import RunDir


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_sums(folder)


def test_printed_settings_are_the_effective_ones_and_can_be_given_back(ludus: Ludus, folder: Path):
    words = ["evaluate", "sums.py", "--env.size", "2", "--run.seed", "7", *script_flags()]
    printed = ludus(*words, "--print-config").out
    (folder / "printed.yaml").write_text(printed)
    assert "size: 2" in printed and "seed: 7" in printed
    assert ludus("evaluate", "--config", "printed.yaml", "--print-config").out == printed
    changed = ludus("evaluate", "--config", "printed.yaml", "--run.seed", "8", "--print-config").out
    assert changed == printed.replace("seed: 7", "seed: 8")
    assert not (folder / "runs").exists()


def test_a_finished_run_resumed_by_its_settings_alone_runs_nothing(ludus: Ludus, folder: Path):
    """Also when the settings were defaults before and are spelled out in the record now."""
    words = ["--out", "r", "--json"]
    first = json.loads(ludus("evaluate", "sums.py", "--sampling.temperature", "1", *words, *script_flags()).out)
    second = json.loads(ludus("evaluate", "--resume", *words).out)
    assert second["summary"] == first["summary"]
    assert len(read_calls(folder)) == 4


def test_a_run_directory_is_not_reused_by_accident(ludus: Ludus):
    words = ["evaluate", "sums.py", "--out", "r", *script_flags()]
    assert ludus(*words).code == 0
    code, _, err = ludus(*words)
    assert code == 2 and "--resume" in err
    code, _, err = ludus("evaluate", "gsm8k", "--resume", "--out", "r")
    assert code == 2 and "r is a run of sums.py, not of gsm8k" in err
    code, _, err = ludus("evaluate", "--resume", "--out", "r", "--sampling.temperature", "0")
    assert code == 2 and "sampling.temperature: 1.0 → 0.0" in err


def test_a_second_process_on_the_same_run_is_refused(ludus: Ludus, folder: Path):
    with RunDir.open(folder / "r", {}):
        code, _, err = ludus("evaluate", "sums.py", "--out", "r", "--resume", *script_flags())
    assert code == 2
    assert "in use by another process" in err


def test_a_spent_budget_ends_with_3_and_is_not_given_twice(ludus: Ludus, folder: Path):
    words = ["evaluate", "sums.py", "--out", "r", "--budget.calls", "3", "--run.concurrency", "1"]
    code, out, err = ludus(*words, "--json", *script_flags())
    assert code == 3
    found = json.loads(out)
    assert (found["status"], found["resume"]) == ("budget", "ludus evaluate --resume --out r")
    assert "Raise budget.calls" in err and "resume with: ludus evaluate --resume --out r" in err
    assert ludus("evaluate", "--resume", "--out", "r").code == 3
    assert len(read_calls(folder)) == 3
    again = json.loads(ludus("evaluate", "--resume", "--out", "r", "--budget.calls", "4", "--json").out)
    assert again["status"] == "completed"
    assert again["ledger"]["agent"]["calls"] == 4
    assert len(read_calls(folder)) == 4
    with (folder / "r" / "ledger.jsonl").open("a") as ledger:
        ledger.write("\0\0\n")
    damaged = ludus("evaluate", "--resume", "--out", "r")
    assert (damaged.code, "ledger.jsonl is damaged" in damaged.err) == (2, True)


def start_run(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """A run whose first two rollouts are kept, and whose next two are under way and wait."""
    child = subprocess.Popen(
        [*LUDUS, "evaluate", "sums.py", "--out", "r", "--json", *script_flags("slow"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    limit = time.monotonic() + 300
    while read_calls(folder).count("waiting") < 2 or count_stored(folder) < 2:
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)
    return child


def count_stored(folder: Path) -> int:
    with RunDir.read(folder / "r") as run:
        return len(run.read_scores())


def test_ctrl_c_finishes_what_runs_and_the_run_can_be_resumed(folder: Path):
    child = start_run(folder, "--run.concurrency", "2", "--env.size", "6")
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
    finished = [call for call in read_calls(folder) if call != "waiting"]
    assert sorted(finished) == ["0+0", "1+1", "2+2", "3+3", "4+4", "5+5"]


def test_a_second_ctrl_c_drops_what_runs(folder: Path):
    child = start_run(folder)
    child.send_signal(signal.SIGINT)
    assert child.stderr is not None
    assert "stopping" in child.stderr.readline()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=300)
    assert child.returncode == 130, err
    assert json.loads(out)["summary"]["overall"]["scored"] == 2
    assert "Traceback" not in err


def test_kill_9_loses_nothing_that_was_finished(folder: Path):
    child = start_run(folder)
    child.kill()
    child.communicate()
    (folder / "go").touch()
    again = subprocess.run(
        [*LUDUS, "evaluate", "--resume", "--out", "r", "--json"], capture_output=True, text=True, check=True, cwd=folder
    )
    assert json.loads(again.stdout)["summary"]["overall"]["scored"] == 4
    finished = [call for call in read_calls(folder) if call != "waiting"]
    assert sorted(finished) == ["0+0", "1+1", "2+2", "3+3"]


# ---- a new command ------------------------------------------------------------------------------------------------

PING = RunKind("ping", files={"answers": "answers.txt"})


class Ping(RunWork):
    """Asks every task once and keeps the answers: all that a command that runs rollouts has to bring."""

    kind = PING

    def __init__(self, config: Config, arguments: RunArguments) -> None:
        self.env = build_env(config)
        self.tasks = load_tasks(self.env, config.env.split)

    async def work(self, run: Run) -> bool:
        jobs = address_jobs([Job(task, run.policy) for task in self.tasks], self.env)
        await run_stored(jobs, run.runner, on_outcome=lambda key, rollout: run.write_spent())
        return not run.control.is_stopping

    def conclude(self, run: Run) -> RunResult:
        answers = [rollout.answer for _, rollout in run.directory.read_outcomes()]
        run.directory.write("answers.txt", "\n".join(answers).encode())
        return RunResult({"answers": sorted(answers)}, lambda out: print(f"answers in {out}"), failed=not answers)


def run_ping(*flags: tuple[str, str], **fields: Any) -> int:
    given = {"command": "ping", "flags": [("model.type", "scripted"), ("model.script", "models.py:right"), *flags]}
    given |= {"config": [], "json": False, "out": "r", "resume": False, "print_config": False, "quiet": False}
    return run_command(RunArguments(**{**given, "env": "sums.py", **fields}), Ping, "ludus ping sums.py")


def read_info_of(out: str = "r") -> RunInfo:
    info = read_info(Path(out))
    assert info is not None
    return info


def test_a_new_command_has_json_people_resuming_and_a_record(capsys: pytest.CaptureFixture[str], folder: Path):
    assert run_ping(typed=("ping", "sums.py", "--out", "r")) == 0
    assert capsys.readouterr().out == "answers in r\n"
    info = read_info_of()
    assert (info.kind, info.state, info.command) == ("ping", "finished", "ludus ping sums.py --out r")
    assert run_ping(resume=True, json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["command"], found["status"], found["answers"]) == ("ping", "completed", ["0", "2", "4", "6"])
    assert found["files"] == {"answers": "r/answers.txt"} and found["ledger"]["agent"]["calls"] == 4
    assert len(read_calls(folder)) == 4, "what is finished is not run again"


def test_a_new_command_ends_as_the_others_do(capsys: pytest.CaptureFixture[str]):
    assert run_ping(("budget.calls", "2"), ("run.concurrency", "1")) == 3
    assert "resume with: ludus ping --resume --out r (with a larger budget: --budget.…)" in capsys.readouterr().err
    assert read_info_of().state == "drained"
    assert run_ping(("budget.calls", "1"), ("run.concurrency", "1"), out="s", quiet=True) == 3
    assert capsys.readouterr().out == "s\n"
    assert run_ping(print_config=True, out="t") == 0
    assert "sums.py" in capsys.readouterr().out and not Path("t").exists()
    with pytest.raises(ConfigError, match=r"which environment\? For example: ludus ping sums\.py"):
        run_ping(env=None, out=None)


def test_a_command_may_only_say_what_it_would_take(capsys: pytest.CaptureFixture[str]):
    arguments = RunArguments(
        command="ping", flags=[], config=[], json=False, out="r", resume=False, print_config=False, quiet=False
    )
    arguments.env = "sums.py"
    assert run_command(arguments, lambda config, arguments: DryRun(lambda: print("4 calls")), "ludus ping") == 0
    assert capsys.readouterr() == ("4 calls\n", "") and not Path("r").exists()


def test_what_an_environment_prints_is_not_in_the_result(capsys: pytest.CaptureFixture[str], folder: Path):
    text = (
        (folder / "sums.py")
        .read_text()
        .replace("        return Score.of", "        print('noise')\n        return Score.of")
    )
    (folder / "loud.py").write_text(text)
    assert run_ping(env="loud.py", json=True) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["status"] == "completed" and err.count("noise") == 4


@pytest.mark.parametrize(
    ("status", "unscored", "code"),
    [
        ("completed", Unscored(), 0),
        ("completed", Unscored(bugs=2), 1),
        ("completed", Unscored(open_files=1), 1),
        ("interrupted", Unscored(), 130),
        ("budget", Unscored(), 3),
        ("budget", Unscored(bugs=2), 3),
        ("broken", Unscored(), 1),
    ],
)
def test_the_exit_code_is_that_of_the_outcome(status: Any, unscored: Unscored, code: int):
    report = RunReport(RunOutcome(status), Path("r"), Ledger(), {}, {}, unscored)
    assert choose_exit_code(report) == code


def test_a_run_without_file_descriptors_says_so_and_fails(folder: Path):
    """In a process of its own, with a limit on open files that a few slots use up."""
    write_sums(folder)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
    words = ["evaluate", "terminal-test", "--out", "r", "--env.group_size", "8", "--run.concurrency", "64"]
    code = f"{limit}import sys\nfrom ludus.cli import main\nsys.exit(main({[*words, *script_flags('write')]!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert "this process ran out of file descriptors (EMFILE)" in done.stderr
    assert "this process may have 64 open files" in " ".join(done.stdout.split())
    with RunDir.read(folder / "r") as run:
        assert any("EMFILE" in failure.message for failure in run.read_failures())


# ---- trackers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["evaluate", "process", "rl"])
def test_an_unknown_tracker_is_an_error_and_no_run_is_made(ludus: Ludus, command: str, folder: Path):
    model = [] if command == "rl" else script_flags()
    done = ludus(command, "sums.py", "--out", "r", "--tracking.use", "nonsense", *model)
    assert done.code == 2 and "tracking.use: unknown tracker 'nonsense'" in done.err
    assert not (folder / "r").exists()


def test_an_unknown_tracker_is_an_error_when_training_too(ludus: Ludus, folder: Path):
    write_rules(folder)
    done = ludus(*train_words("--out", "r", "--tracking.use", "nonsense"))
    assert done.code == 2 and "tracking.use: unknown tracker 'nonsense'" in done.err
    assert not (folder / "r").exists() and not (folder / "calls").exists()


@pytest.mark.parametrize("command", ["evaluate", "process"])
def test_every_report_has_the_ledger_of_failures(ludus: Ludus, folder: Path, command: str):
    write_sums(folder)
    found = json.loads(ludus(command, "sums.py", "--out", "r", "--json", *script_flags("half_broken")).out)
    failures = found["failures"]
    assert (failures["rollouts"], failures["lost"], failures["causes"]) == (4, 2, {"server": 2})
    assert (failures["mean"], failures["lowest"], failures["highest"]) == (1.0, 0.5, 1.0)
    assert failures == found["summary"]["failures"]


def test_a_run_that_stalls_ends_with_its_own_exit_code(ludus: Ludus, folder: Path):
    write_sums(folder)
    (folder / "silent.py").write_text("import asyncio\nasync def wait(*_):\n    await asyncio.sleep(1000)\n")
    words = ["--model.type", "scripted", "--model.script", "silent.py:wait", "--limits.stall_seconds", "0.3"]
    code, out, err = ludus("evaluate", "sums.py", "--out", "r", "--json", *words)
    assert (code, json.loads(out)["status"]) == (4, "stalled")
    assert "It waits for: model 4 (longest" in err and "resume with: ludus evaluate --resume --out r" in err
    assert "nothing has moved for" in ludus("show", "r").out


def test_a_world_that_fails_too_often_ends_the_run_with_its_own_exit_code(ludus: Ludus, folder: Path):
    write_sums(folder)
    words = ["--env.group_size", "15", "--run.concurrency", "2", "--limits.failed_share", "0.3", "--run.retries", "0"]
    code, out, err = ludus("evaluate", "sums.py", "--out", "r", "--json", *words, *script_flags("half_broken"))
    found = json.loads(out)
    assert (code, found["status"]) == (5, "failing") and "more than limits.failed_share 0.3" in err
    assert 20 <= found["failures"]["rollouts"] <= 23
