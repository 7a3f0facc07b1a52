"""What a run says of itself: its state while it runs, when it has ended, and when its process was killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from ludus.config import load, to_record
from ludus.config.tree import CONTENT, TRAINING, WEIGHTS
from ludus.errors import BudgetExhausted, ConfigError, StoreError
from ludus.run_info import (
    INFO,
    RunInfo,
    State,
    describe_kind,
    find_kind,
    guess_kind,
    keep_info,
    open_info,
    read_info,
    read_spent,
    read_state,
    refuse_other_kind,
)
from ludus.store import RunDir


def read_known(path: Path) -> RunInfo:
    info = read_info(path)
    assert info is not None
    return info


# ---- states -------------------------------------------------------------------------------------------------------


def test_a_run_is_running_and_then_finished(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as directory:
        with keep_info(directory, "evaluate", "ludus evaluate gsm8k"):
            info = read_known(tmp_path)
            assert (info.kind, info.command, info.pid) == ("evaluate", "ludus evaluate gsm8k", os.getpid())
            assert read_state(info) == "running" and info.ended == 0.0
        info = read_known(tmp_path)
    assert (read_state(info), info.message, info.pid, info.host) == ("finished", "", 0, "")
    assert 0 < info.started <= info.ended


@pytest.mark.parametrize("state", ["drained", "failed"])
def test_a_run_says_how_and_why_it_ended(tmp_path: Path, state: State):
    with RunDir.open(tmp_path, {}) as directory, keep_info(directory, "evaluate") as end:
        end.state, end.message = state, "the budget is spent"
    info = read_known(tmp_path)
    assert (read_state(info), info.message) == (state, "the budget is spent")


@pytest.mark.parametrize("error", [BudgetExhausted("spent"), ZeroDivisionError("bug"), KeyboardInterrupt()])
def test_a_run_that_raises_has_failed(tmp_path: Path, error: BaseException):
    with RunDir.open(tmp_path, {}) as directory, pytest.raises(type(error)), keep_info(directory, "train"):
        raise error
    info = read_known(tmp_path)
    assert (info.state, info.message) == ("failed", str(error) or "KeyboardInterrupt")


OPENS = """
import sys, time
from pathlib import Path
from ludus.run_info import open_info
from ludus.store import RunDir
with RunDir.open(Path(sys.argv[1]), {}) as directory:
    open_info(directory, "evaluate")
    print("open", flush=True)
    time.sleep(600)
"""


def test_a_process_that_was_killed_is_seen_as_killed_also_before_its_parent_knows(tmp_path: Path):
    command = [sys.executable, "-c", OPENS, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "open\n"
        info = read_known(tmp_path / "run")
        assert (read_state(info), info.pid) == ("running", child.pid)
        child.send_signal(signal.SIGKILL)
        limit = time.monotonic() + 60
        while read_state(info) == "running":  # nobody has waited for the child: it is a zombie
            assert time.monotonic() < limit
            time.sleep(0.01)
        assert read_state(info) == "killed"
    assert read_state(read_known(tmp_path / "run")) == "killed"


def test_another_process_with_the_same_number_is_not_the_run(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as directory:
        info = open_info(directory, "evaluate")
    assert read_state(msgspec.structs.replace(info, born=f"{info.born}0")) == "killed"


def test_a_run_on_another_host_is_believed():
    info = RunInfo(kind="evaluate", pid=2**22 + 1, host=f"not-{socket.gethostname()}")
    assert read_state(info) == "running"
    assert read_state(msgspec.structs.replace(info, host=socket.gethostname())) == "killed"


def test_a_resumed_run_keeps_its_start_and_its_parent(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as directory:
        first = open_info(directory, "evaluate", parent="runs/before")
        second = open_info(directory, "evaluate")
    assert (first.resumed, second.started, second.parent) == (0.0, first.started, "runs/before")
    assert second.resumed >= first.started


def test_a_damaged_file_is_named_and_a_missing_one_is_no_error(tmp_path: Path):
    assert read_info(tmp_path) is None
    for text in ("{", '{"kind": 3}', "[" * 100_000):
        (tmp_path / INFO).write_text(text)
        with pytest.raises(StoreError, match=r"run\.json is damaged .*remove it"):
            read_info(tmp_path)


def test_what_was_spent_is_in_the_last_whole_line_of_the_ledger(tmp_path: Path):
    assert read_spent(tmp_path) == {}
    line = '{"agent": {"calls": %d, "seconds": 0.5, "usage": {"prompt_tokens": 3}}}\n'
    (tmp_path / "ledger.jsonl").write_text(line % 1 + line % 2 + '{"agent": {"ca')
    assert read_spent(tmp_path)["agent"].calls == 2
    (tmp_path / "ledger.jsonl").write_text("nonsense\n")
    with pytest.raises(StoreError, match=r"ledger\.jsonl is damaged"):
        read_spent(tmp_path)


# ---- kinds --------------------------------------------------------------------------------------------------------

EVERYTHING = to_record(load())
RUNS = {
    "train": {**EVERYTHING, CONTENT: {"tasks": "0"}},
    "headroom": {**EVERYTHING, CONTENT: {"tasks": "0", "command": "headroom"}},
    "evaluate": {name: value for name, value in EVERYTHING.items() if name not in TRAINING | WEIGHTS},
    "rl": {name: value for name, value in EVERYTHING.items() if name not in TRAINING},
    "serve": {name: value for name, value in EVERYTHING.items() if name not in (TRAINING | WEIGHTS) - {"serve"}},
    "gateway": EVERYTHING,
}
"""What runs of 0.1 recorded, which had no `run.json`."""


@pytest.mark.parametrize("kind", RUNS)
def test_the_recorded_settings_tell_the_kind_of_an_old_run(tmp_path: Path, kind: str):
    assert guess_kind(RUNS[kind], tmp_path) == kind


def test_an_old_run_with_groups_was_processed(tmp_path: Path):
    (tmp_path / "groups.jsonl").touch()
    assert guess_kind(RUNS["evaluate"], tmp_path) == "process"
    assert guess_kind(RUNS["rl"], tmp_path) == "rl"


def test_what_a_run_says_counts_more_than_its_settings(tmp_path: Path):
    with RunDir.open(tmp_path, RUNS["evaluate"]) as directory:
        assert find_kind(directory) == "evaluate"
        open_info(directory, "train")
        assert find_kind(directory) == "train"


def write_run(path: Path, kind: str, *, old: bool) -> None:
    """A run directory as far as its kind goes."""
    path.mkdir()
    if not old:
        (path / INFO).write_text(json.dumps({"kind": kind}))


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("train", "train"),
        ("headroom", "headroom"),
        ("rl", "rl"),
        ("evaluate", "evaluate"),
        ("evaluate", "process"),
        ("serve", "serve"),
    ],
)
def test_a_run_is_resumed_by_the_commands_of_its_kind_alone(tmp_path: Path, kind: str, command: str, old: bool):
    def refuse(which: str) -> None:
        path = tmp_path / which
        write_run(path, which, old=old)
        refuse_other_kind(path, RUNS[which] if old else {}, command)

    refuse(kind)
    for other in RUNS.keys() - {kind}:
        with pytest.raises(ConfigError, match=f" is .* which `ludus {command}` cannot resume: .*another --out$"):
            refuse(other)


def test_the_right_command_is_named():
    with pytest.raises(ConfigError, match=r"a training run.*resume it with ludus train --resume --out 'a b', or"):
        refuse_other_kind(Path("a b"), RUNS["train"], "evaluate")
    with pytest.raises(ConfigError, match="ludus evaluate --resume --out r or ludus process --resume --out r, or"):
        refuse_other_kind(Path("r"), RUNS["evaluate"], "train")
    with pytest.raises(ConfigError, match=r"r is a record of gateway sessions, .*: name another --out$"):
        refuse_other_kind(Path("r"), RUNS["gateway"], "evaluate")


def test_a_kind_that_a_package_brings_has_words_too():
    assert describe_kind("distill") == "a run of distill"
