"""Every command that runs rollouts, killed and resumed, stores what it would have stored: each request, byte for byte.

The settings of a resumed run are read from its record. A value that is null, empty or the default must be the same
there as when it was first given, also in what is written of it. `rescore` is not here: it cannot be resumed, and a run
that is half rescored is not there (`tests/batch/test_rescore_command.py`).
"""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli_kit import is_killed, write_rules
from tests.rl_kit import TableTrainer
from tests.worker_kit import COINS, TrajectoryServer, list_words, serve_in_thread

from ludus.cli import main

LETTERS = """
from models import count
from tests.rl_kit import Letters as _Letters

class Letters(_Letters, frozen=True):
    async def verify(self, rollout, box):
        count()
        return await super().verify(rollout, box)
"""

SAMPLINGS = {
    "default": (),
    "null": ("--sampling.temperature", "null", "--sampling.extra", "{}"),
    "given": ("--sampling.temperature", "1.0", "--sampling.max_tokens", "64"),
}
AGENT = ("--model.type", "scripted", "--model.script", "models.py:agent", "--run.concurrency", "1")
TRAIN = ("train", "--config", "config.yaml", "--train.sampling.temperature", "null")
LONG = (
    "--rl.steps",
    "3",
    "--rl.groups",
    "3",
    "--rl.group_size",
    "4",
    "--rl.eval_every",
    "2",
    "--rl.eval_split",
    "test",
)

COMMANDS: dict[str, tuple[str, ...]] = {
    "evaluate": ("evaluate", "rules.py", *AGENT),
    "process": ("process", "rules.py", *AGENT, "--env.group_size", "2"),
    "reflact": ("train", "--config", "config.yaml"),
    "reflact, null for the optimizer": TRAIN,
    "ledger": ("train", "--config", "lines.yaml"),
    "ledger, null for the optimizer": ("train", "--config", "lines.yaml", *TRAIN[3:]),
    "headroom": ("headroom", "--config", "config.yaml"),
    "rl": ("rl", "letters.py:Letters", *LONG, "--run.concurrency", "1"),
}


def drop_times(value: Any) -> Any:
    """A stored value without what a clock says."""
    if isinstance(value, dict):
        return {key: drop_times(item) for key, item in value.items() if key not in ("seconds", "times")}
    return [drop_times(item) for item in value] if isinstance(value, list) else value


def read_stored(out: str) -> dict[str, Any]:
    """Every record and every rollout of a run, by content address."""
    with sqlite3.connect(Path(out, "store.sqlite")) as db:
        rows = db.execute("SELECT key, body FROM records WHERE body LIKE '{%'").fetchall()
        rows += db.execute("SELECT key, body FROM outcomes JOIN rollouts ON rollouts.id = rollout").fetchall()
    return {key: drop_times(json.loads(body)) for key, body in rows}


def kill_at(call: int, run: Callable[[], object]) -> None:
    Path("calls").unlink()
    Path("kill").write_text(str(call))
    assert is_killed(run)
    Path("kill").unlink()


@pytest.fixture(autouse=True)
def _files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rules(folder)
    (folder / "letters.py").write_text(LETTERS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr("ludus.rl.command.build_trainer", lambda *_: TableTrainer())


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_run_stores_what_it_would_have_stored(command: str, sampling: str):
    words = [*COMMANDS[command], *SAMPLINGS[sampling], "--quiet", "--out"]
    assert main([*words, "whole"]) == 0
    calls = Path("calls").stat().st_size
    kill_at(calls // 2, lambda: main([*words, "cut"]))
    assert 0 < len(read_stored("cut")) < len(read_stored("whole"))
    assert main([words[0], "--resume", "--quiet", "--out", "cut"]) == 0
    assert read_stored("cut") == read_stored("whole")
    settings = [json.loads(Path(out, "config.json").read_text()) for out in ("whole", "cut")]
    for each in settings:
        del each["run"]["out"], each["run"]["resume"]
    assert settings[0] == settings[1]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_killed_worker_stores_what_it_would_have_stored(folder: Path, sampling: str):
    """How many groups it runs is a matter of time; what is in a group is not."""
    (folder / "coins.py").write_text(COINS)
    for out, call in (("whole", 0), ("cut", 10)):
        with serve_in_thread(TrajectoryServer(num_steps=3, durable=True)) as url:
            words = [*list_words(url, *SAMPLINGS[sampling], "--quiet"), "--out", out]
            if call:
                kill_at(call, lambda words=words: main(words))
                assert main(["serve", "--resume", "--quiet", "--out", out]) == 0
            else:
                assert main(words) == 0
    whole, cut = read_stored("whole"), read_stored("cut")
    both = [key for key, value in whole.items() if key in cut and "task" in value]
    assert len(both) >= 16
    assert [whole[key] for key in both] == [cut[key] for key in both]
