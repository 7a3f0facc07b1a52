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
from tests.conftest import Result

from ludus.cli.rl import estimate_rollouts
from ludus.rl.rl_settings import RlSettings
from ludus.store import RunDir

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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("parcels", "--env.split", "test"), "rl.split"),
        (("parcels", "--env.group_size", "4"), "rl.group_size"),
        (("parcels", "--run.seed", "4"), "rl.seed"),
        (("parcels", "--trainer.type", "x"), "trainer.type"),
        (("parcels", "--trainer.lr", "1"), "trainer.lr"),
        (("parcels", "--rl.eval_split", "nothing"), "rl.eval_split"),
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
    assert b"<svg" in (out / "report.html").read_bytes()
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
