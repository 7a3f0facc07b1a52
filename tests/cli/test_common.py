"""What commands share: settings and run directories, budgets, Ctrl-C, resuming."""

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.cli_kit import (
    LUDUS,
    Ludus,
    read_calls,
    script_flags,
    write_sums,
)

from ludus.cli.common import RunOutcome, choose_out, read_spent, run_to_end
from ludus.config import load
from ludus.errors import BudgetExhausted, ModelError, ModelUnusable, StoreError
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


# ---- the parts, one by one ----------------------------------------------------------------------------------------


def test_a_new_run_directory_has_the_name_of_the_environment_and_is_never_one_that_exists(folder: Path):
    config = load(flags=[("env.name", "sums.py")])
    first = choose_out(config)
    assert re.fullmatch(r"runs/sums-\d{8}-\d{6}", str(first))
    for number in range(3):  # those of this second and the next ones
        for second in range(120):
            moment = time.strftime("%Y%m%d-%H%M%S", time.localtime(time.time() + second))
            (folder / "runs" / f"sums-{moment}{f'-{number + 1}' if number else ''}").mkdir(parents=True)
        assert choose_out(config).name.endswith(f"-{number + 2}")
    assert choose_out(load(flags=[("env.name", "sums.py"), ("run.out", "mine")])) == Path("mine")


def test_what_was_spent_is_in_the_last_whole_line_of_the_ledger(folder: Path):
    assert read_spent(folder) == {}
    line = '{"agent": {"calls": %d, "seconds": 0.5, "usage": {"prompt_tokens": 3}}}\n'
    (folder / "ledger.jsonl").write_text(line % 1 + line % 2 + '{"agent": {"ca')
    assert read_spent(folder)["agent"].calls == 2
    (folder / "ledger.jsonl").write_text("nonsense\n")
    with pytest.raises(StoreError, match=r"ledger\.jsonl is damaged"):
        read_spent(folder)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (None, "completed", 0),
        (BudgetExhausted("the budget is spent"), "budget", 3),
        (ModelError("the server is gone"), "broken", 1),
        (ModelUnusable("status 401"), "broken", 1),
    ],
)
def test_how_work_ends(error: Exception | None, status: str, code: int):
    async def work(stop: asyncio.Event) -> bool:
        if error is not None:
            raise error
        return True

    outcome = asyncio.run(run_to_end(work, (ModelError,)))
    assert (outcome.status, outcome.message, outcome.exit_code) == (status, str(error or ""), code)


@pytest.mark.parametrize(("signals", "words"), [(1, "was finished"), (2, "was dropped")])
def test_one_signal_asks_the_work_to_stop_and_a_second_one_cancels_it(signals: int, words: str):
    async def work(stop: asyncio.Event) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        if signals == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        return False

    async def run() -> RunOutcome:
        return await run_to_end(work)

    outcome = asyncio.run(run())
    assert (outcome.status, outcome.exit_code) == ("interrupted", 130)
    assert outcome.message == f"interrupted; what was under way {words}"


def test_an_error_that_nobody_expects_is_not_an_outcome():
    async def work(stop: asyncio.Event) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_to_end(work, (ModelError,)))


@pytest.mark.parametrize("name", ["env.split", "env.limit", "env.ids", "env.group_size", "run.seed"])
@pytest.mark.parametrize(("command", "aim"), [("train", "to train"), ("rl", "for rl")])
def test_settings_of_batches_are_refused_elsewhere_with_what_to_use(ludus: Ludus, command: str, aim: str, name: str):
    done = ludus(command, "sums.py", f"--{name}", "3", *script_flags())
    assert done.code == 2 and f"{name} is for process and evaluate; {aim}, use " in done.err
