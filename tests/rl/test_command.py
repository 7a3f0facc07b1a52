"""`ludus rl`: settings, the dry run, and whole runs with the built-in trainer where PyTorch is installed."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.command_kit import TRACKER, read_lines
from tests.conftest import Result
from tests.rl_kit import LETTERS_FILE, TableTrainer

from ludus.rl.command import estimate_rollouts
from ludus.rl.settings import RlSettings
from ludus.store import RunDir

pytestmark = pytest.mark.usefixtures("folder")

Run = Callable[..., Result]
TORCH = importlib.util.find_spec("torch") is not None


@pytest.mark.parametrize(
    ("settings", "held_out", "expected"),
    [
        (RlSettings(steps=10, groups=2, group_size=3, eval_every=5), 7, (60, 21)),
        (RlSettings(steps=11, groups=2, group_size=3, eval_every=5, eval_size=2), 7, (66, 56)),
        (RlSettings(steps=10, groups=2, group_size=3, eval_every=0), 7, (60, 0)),
    ],
)
def test_the_number_of_rollouts(settings: RlSettings, held_out: int, expected: tuple[int, int]):
    assert tuple(estimate_rollouts(settings, held_out).values()) == expected


def test_a_dry_run_starts_nothing(ludus: Run, tmp_path: Path):
    out = tmp_path / "run"
    shown = ludus("rl", "parcels", "--dry-run", "--out", str(out))
    assert shown.code == 0 and "11520 to train on" in shown.out and not out.exists()
    plain = json.loads(ludus("rl", "parcels", "--dry-run", "--json", "--rl.steps", "2").out)
    assert plain["rollouts"] == {"train": 384, "evaluate": 96}
    assert plain["cost"]["rollouts"] == 480 and plain["cost"]["prompt_tokens"] > 0
    assert plain["cost"]["seconds"] is None and plain["cost"]["dollars"] is None
    assert "time: not known" in shown.out and "money: not known: set rl.dollars_per_million" in shown.out
    hourly = ludus("rl", "parcels", "--dry-run", "--rl.dollars_per_hour", "2").out
    assert "money: not known: rl.dollars_per_hour is for a time that is not known" in hourly
    both = ludus("rl", "parcels", "--dry-run", "--rl.dollars_per_hour", "2", "--rl.dollars_per_million", "2").out
    assert "without the hours of the machine" in both
    priced = ludus("rl", "parcels", "--dry-run", "--json", "--rl.steps", "2", "--rl.dollars_per_million", "2")
    cost = json.loads(priced.out)["cost"]
    assert cost["dollars"] == pytest.approx(2e-6 * (cost["prompt_tokens"] + cost["completion_tokens"]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("parcels", "--env.split", "test"), "rl.split"),
        (("parcels", "--env.group_size", "4"), "rl.group_size"),
        (("parcels", "--run.seed", "4"), "rl.seed"),
        (("parcels", "--trainer.type", "x"), "trainer.type"),
        (("parcels", "--trainer.lr", "1"), "trainer.lr"),
        (("parcels", "--trainer.type", "tinker", "--budget.dollars", "1"), "budget.dollars: what Tinker takes"),
        (("parcels", "--rl.eval_split", "nothing"), "rl.eval_split"),
        (("parcels", "--dry-run", "--rl.group_size", "1"), "rl.group_size: advantages compare rollouts"),
        (("parcels", "--dry-run", "--trainer.kl", "-1"), "trainer.kl"),
        ((), "which environment"),
    ],
)
def test_settings_that_cannot_work(ludus: Run, words: tuple[str, ...], message: str):
    shown = ludus("rl", *words)
    assert shown.code == 2 and message in shown.err


@pytest.mark.skipif(TORCH, reason="PyTorch is installed")
def test_without_pytorch_the_command_says_what_to_install(ludus: Run, tmp_path: Path):
    shown = ludus("rl", "parcels", "--out", str(tmp_path / "run"))
    assert shown.code == 2 and "ludus-train[rl]" in shown.err
    assert not (tmp_path / "run").exists()


# ---- trackers -------------------------------------------------------------------------------------------------------


@pytest.fixture
def trainers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[TableTrainer]:
    """The trainers of the runs, which need no PyTorch, beside an environment and a tracker in files."""
    (folder / "letters.py").write_text(LETTERS_FILE)
    (folder / "mine.py").write_text(TRACKER)
    made: list[TableTrainer] = []

    def build(*_: object) -> TableTrainer:
        made.append(TableTrainer())
        return made[-1]

    monkeypatch.setattr("ludus.rl.command.build_trainer", build)
    return made


def list_small(steps: int, *more: str) -> list[str]:
    words = ["rl", "letters.py", "--out", "run", "--quiet", "--rl.steps", str(steps), "--rl.groups", "3"]
    return [*words, "--rl.group_size", "4", "--rl.eval_every", "2", "--rl.eval_split", "test", *more]


@pytest.mark.usefixtures("trainers")
def test_a_tracker_of_the_users_own_gets_the_values_of_each_step(ludus: Run):
    done = ludus(*list_small(2, "--tracking.use", "mine.py:Mine"))
    assert done.code == 0, done.err
    first, *values, last = read_lines("mine.jsonl")
    assert (first, last) == ({"start": "run", "project": "ludus"}, {"close": True})
    stored = read_lines("run/metrics.jsonl")
    assert [{key: line[key] for key in line if key != "time"} for line in stored] == values
    steps = read_lines("run/steps.jsonl")
    assert [line["step"] for line in values] == [line["step"] for line in steps] == [0, 1, 2]
    assert [line.get("train/reward") for line in values] == [line.get("reward") for line in steps]
    assert [line.get("train/held_out") for line in values] == [
        line["held_out"]["mean"] if "held_out" in line else None for line in steps
    ]
    assert values[1]["train/length"] == 1.0 and values[1]["train/entropy"] == 1.0


@pytest.mark.usefixtures("trainers")
def test_a_resumed_run_logs_no_step_twice(ludus: Run):
    assert ludus(*list_small(2)).code == 0
    assert ludus("rl", "--resume", "--out", "run", "--rl.steps", "4", "--tracking.use", "mine.py:Mine").code == 0
    assert [line["step"] for line in read_lines("run/metrics.jsonl")] == [0, 1, 2, 3, 4]
    assert [line["step"] for line in read_lines("mine.jsonl")[1:-1]] == [3, 4]
    assert ludus("rl", "--resume", "--out", "run").code == 0
    assert [line["step"] for line in read_lines("run/metrics.jsonl")] == [0, 1, 2, 3, 4]


def test_an_unknown_tracker_is_an_error_before_anything_runs(ludus: Run, trainers: list[TableTrainer]):
    done = ludus(*list_small(2, "--tracking.use", "wandbb"))
    assert done.code == 2 and "tracking.use: unknown tracker 'wandbb'; did you mean 'wandb'?" in done.err
    assert not trainers and not Path("run").exists()


# ---- with PyTorch ---------------------------------------------------------------------------------------------------

needs_torch = pytest.mark.skipif(not TORCH, reason="the extra 'rl' is not installed: make test-trainers")
SMALL = (
    "--rl.groups",
    "3",
    "--rl.group_size",
    "4",
    "--rl.eval_every",
    "2",
    "--rl.eval_limit",
    "4",
    "--limits.turns",
    "2",
)


def list_flags(out: Path, steps: int) -> list[str]:
    from tests.torch_kit import make_folder

    own = ["--trainer.weights", str(make_folder()), "--trainer.parser", "pythonic", "--trainer.threads", "1"]
    own += ["--rl.equal_scores", "send", "--trainer.kl", "0.1"]  # this policy hardly ever scores
    return [*SMALL, *own, "--sampling.max_tokens", "8", "--rl.steps", str(steps), "--out", str(out)]


@needs_torch
def test_a_run_writes_its_files_and_can_be_shown_and_continued(ludus: Run, tmp_path: Path):
    out = tmp_path / "run"
    shown = ludus("rl", "parcels", *list_flags(out, 2))
    assert shown.code == 0, shown.err
    assert "step 2/2: reward" in shown.err and "report.html" in shown.out
    assert [json.loads(line)["step"] for line in (out / "steps.jsonl").read_text().splitlines()] == [0, 1, 2]
    assert json.loads((out / "summary.json").read_text())["rollouts"] == 24
    assert b'id="snapshot"' in (out / "report.html").read_bytes()
    assert json.loads(ludus("show", str(out), "--json").out)["records"][2]["step"] == 2
    again = ludus("rl", "--resume", "--out", str(out), "--rl.steps", "3")
    assert again.code == 0 and "step 3/3" in again.err and "step 2/2" not in again.err
    refused = ludus("rl", "--resume", "--out", str(out), "--rl.seed", "5")
    assert refused.code == 2 and "rl.seed" in refused.err
    other = ludus("train", "--resume", "--out", str(out))
    assert other.code == 2 and "an RL run" in other.err


@needs_torch
def test_kill_9_leads_to_the_same_records(tmp_path: Path):
    whole, out = tmp_path / "whole", tmp_path / "run"
    command = [sys.executable, "-c", "from ludus.cli import main; raise SystemExit(main())", "rl", "parcels", "--quiet"]
    subprocess.run([*command, *list_flags(whole, 4)], check=True, capture_output=True)
    for wanted in (7, 20, 33):  # rollouts in the store when it is killed
        process = subprocess.Popen([*command, *list_flags(out, 4), "--resume"], stderr=subprocess.DEVNULL)
        while process.poll() is None and count_outcomes(out) < wanted:
            time.sleep(0.005)
        assert process.poll() is None, "it ended before it was killed"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run([*command, *list_flags(out, 4), "--resume"], check=True, capture_output=True)
    assert (out / "steps.jsonl").read_bytes() == (whole / "steps.jsonl").read_bytes()


def count_outcomes(out: Path) -> int:
    try:
        with RunDir.read(out) as run:
            return len(run.read_scores())
    except Exception:  # it is being made
        return 0
