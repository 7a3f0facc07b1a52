"""`ludus serve`."""

import json
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
from tests.cli_kit import LUDUS
from tests.worker_kit import COINS, TrajectoryServer, list_words, read_metrics, serve_in_thread

from ludus.rl.worker_journal import WorkerJournal
from ludus.store import RunDir

pytestmark = pytest.mark.usefixtures("folder")

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    (folder / "coins.py").write_text(COINS)


def test_a_run_ends_with_the_trainer_and_reports(typed, folder: Path):
    server = TrajectoryServer(num_steps=3)
    with serve_in_thread(server) as url:
        code, out, err = typed(*list_words(url))
    assert code == 0, err
    assert "registered as coins_0, step 0" in err
    assert "groups sent" in out
    assert len(server.batches) >= 3 and server.disconnected == [0]
    assert read_metrics(folder / "run")
    recorded = json.loads(Path("run/config.json").read_text())
    assert recorded["serve"]["max_batches_offpolicy"] == 1 and "train" not in recorded and "tracking" not in recorded


def test_the_report_for_machines(typed, folder: Path):
    with serve_in_thread(TrajectoryServer(num_steps=1)) as url:
        code, out, _ = typed(*list_words(url, "--json"))
    report = json.loads(out)
    assert code == 0 and report["status"] == "completed"
    assert report["report"]["finished"] and report["report"]["verdicts"]["sent"] >= 2
    assert report["files"]["metrics"] == "run/metrics.jsonl"


def test_a_group_of_one_is_refused_before_anything_runs(typed, folder: Path):
    code, _, err = typed("serve", "coins.py:Coins", "--model.type", "coins.py:Counted")
    assert code == 2 and "env.group_size is 1" in err and not Path("runs").exists()


@pytest.mark.parametrize(
    "model",
    [
        ["--model.base_url", "http://127.0.0.1:9/v1", "--model.name", "m"],
        ["--model.type", "anthropic", "--model.name", "m"],
        ["--model.type", "embedded"],
    ],
)
def test_chat_mode_is_refused_before_anything_is_opened(typed, folder: Path, model: list[str]):
    words = ["serve", "gsm8k", "--env.group_size", "2", "--server", "http://127.0.0.1:9", "--out", "run"]
    code, _, err = typed(*words, *model)
    assert code == 2 and "model.mode: a trainer needs the exact ids" in err
    assert not (folder / "run").exists()


def test_chat_mode_is_refused(typed, folder: Path):
    (folder / "chat.py").write_text("def reply(messages, tools, sampling):\n    return 'yes'\n")
    with serve_in_thread(TrajectoryServer()) as url:
        words = ["serve", "coins.py:Coins", "--server", url, "--env.group_size", "2", "--out", "run"]
        code, _, err = typed(*words, "--model.type", "scripted", "--model.script", "chat.py:reply")
    assert code == 2 and "was run in chat mode" in err


def test_a_split_without_tasks_to_evaluate_on_is_named(typed, folder: Path):
    only_train = "\n    def tasks(self, split):\n        return super().tasks(split) if split == 'train' else ()\n"
    (folder / "coins.py").write_text(COINS.replace('    """Say yes."""\n', '    """Say yes."""\n' + only_train))
    with serve_in_thread(TrajectoryServer()) as url:
        code, _, err = typed(*list_words(url, "--serve.eval_every", "5"))
    assert code == 2 and "serve.eval_split" in err and "has no tasks in split 'test'" in err


def test_another_command_does_not_resume_a_worker(typed, folder: Path):
    with serve_in_thread(TrajectoryServer(num_steps=1)) as url:
        assert typed(*list_words(url))[0] == 0
    code, _, err = typed("process", "--resume", "--out", "run")
    assert code == 2 and "run is a run of serve" in err and "ludus serve --resume --out run" in err


def test_a_worker_s_run_is_exported(typed, folder: Path):
    with serve_in_thread(TrajectoryServer(num_steps=1)) as url:
        assert typed(*list_words(url))[0] == 0
    code, out, _ = typed("export", "run")
    assert code == 0 and {row["split"] for row in map(json.loads, out.splitlines())} == {"train"}


# ---- kills --------------------------------------------------------------------------------------------------------


def start(url: str, *more: str) -> subprocess.Popen:
    return subprocess.Popen(
        [*LUDUS, *list_words(url, *more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )


def read_groups(server: TrajectoryServer) -> dict[int, list]:
    """The tokens of every group that the server has, by the number that the worker gave it."""
    with RunDir.open(Path("run"), json.loads(Path("run/config.json").read_text()), resume=True) as run:
        journal = WorkerJournal(run)
        assert journal.list_open() == []
        numbers = {journal.make_key(number): number for number in range(journal.next_number)}
        assert journal.count_verdicts()["sent"] == len(server.keys)
    found = {}
    for key, groups in server.posts:
        assert found.setdefault(numbers[key], groups[0]["tokens"]) == groups[0]["tokens"]  # a repeated post is the same
    assert found.keys() == {numbers[key] for key in server.keys}
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_worker_loses_no_finished_group_and_sends_none_twice(folder: Path, seed: int):
    """Kills at random calls of the model, and at random posts: before they are accepted, or before the answer."""
    sample = random.Random(seed)
    server = TrajectoryServer(num_steps=5, durable=True)
    process: subprocess.Popen
    kills = [sample.choice(["call", "before", "after"]) for _ in range(3)]

    async def kill_at_post(number: int):
        if plan == "call" or number != at:
            return None
        os.kill(process.pid, signal.SIGKILL)
        return "lose" if plan == "after" else (500, "gone")

    server.on_post = kill_at_post
    with serve_in_thread(server) as url:
        for plan in kills:
            calls = Path("calls").stat().st_size if Path("calls").exists() else 0
            at = len(server.posts) + sample.randint(1, 3)
            Path("kill").write_text(str(calls + sample.randint(1, 12)) if plan == "call" else "0")
            process = start(url, "--resume")
            output, _ = process.communicate(timeout=120)
            assert process.returncode == -signal.SIGKILL, output.decode()
        plan = "call"
        Path("kill").write_text("0")
        process = start(url, "--resume")
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output.decode()
    found = read_groups(server)
    assert len(server.keys) == len(set(server.keys))
    with RunDir.read(Path("run")) as run:
        outcomes = len(run.read_scores())
    assert outcomes <= Path("calls").stat().st_size <= outcomes + 8 * len(kills)  # only what ran at a kill runs again
    reference = TrajectoryServer(num_steps=5, durable=True)
    Path("run").rename("killed")
    with serve_in_thread(reference) as url:
        process = start(url)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output.decode()
    undisturbed = read_groups(reference)
    common = found.keys() & undisturbed.keys()
    assert len(common) >= 8 and all(found[number] == undisturbed[number] for number in common)


def test_the_first_interrupt_drains_and_disconnects(folder: Path):
    server = TrajectoryServer(num_steps=10**6)
    process: subprocess.Popen

    async def interrupt(number: int):
        if number == 3:
            os.kill(process.pid, signal.SIGINT)

    server.on_post = interrupt
    with serve_in_thread(server) as url:
        process = start(url)
        output, _ = process.communicate(timeout=120)
    assert process.returncode not in (0, -signal.SIGINT), output.decode()
    assert "stopping: what runs is finished first" in output.decode()
    assert "ludus serve --resume --out run" in output.decode()
    assert server.disconnected == [0]
    read_groups(server)
