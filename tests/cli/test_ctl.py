"""`ludus ctl`: words become requests, and a command that runs does what they ask."""

import json
import subprocess
import time
from pathlib import Path

import pytest
from tests.cli_kit import LUDUS, Ludus, write_sums

from ludus.activity import ActivityReport, PhaseCount
from ludus.cli.ctl import describe_status, make_request
from ludus.control_client import (
    ControlRequest,
    PauseRequest,
    RequeueRequest,
    RunStatus,
    SetRequest,
    StatusRequest,
    ask_run,
)
from ludus.errors import ConfigError, StoreError


@pytest.mark.parametrize(
    ("words", "request_"),
    [
        (["status"], StatusRequest()),
        (["pause"], PauseRequest()),
        (["set", "concurrency=32"], SetRequest(concurrency=32)),
        (["requeue", "a", "b#2"], RequeueRequest(ids=("a", "b#2"))),
    ],
)
def test_words_become_requests(words: list[str], request_: ControlRequest):
    assert make_request(words[0], words[1:]) == request_


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["pause", "now"], "takes no more words"),
        (["requeue"], "which rollouts"),
        (["set"], "concurrency=32"),
        (["set", "concurrency=0"], "a number above 0"),
        (["set", "concurrency=-1"], "a number above 0"),
        (["set", "concurrency=²"], "a number above 0"),
        (["set", "retries=3"], "what can be set is concurrency"),
        (["set", "concurrency=1", "concurrency=2"], "what can be set"),
    ],
)
def test_words_that_do_not_fit_are_refused(words: list[str], error: str):
    with pytest.raises(ConfigError, match=error):
        make_request(words[0], words[1:])


def test_a_status_in_words():
    status = RunStatus(
        run="r",
        kind="evaluate",
        pid=7,
        paused=True,
        stopping=False,
        reason="",
        concurrency=4,
        stored=10,
        planned=40,
        requeued=1,
        activity=ActivityReport((PhaseCount("slot", 2, 3.0, "t#1"),), 9, {"model": 2}),
    )
    assert describe_status(status) == (
        "r: evaluate, paused (process 7)\n"
        "10 of 40 rollouts, 2 under way, at most 4; 2 of 9 without a score since it was opened; 1 asked for again\n"
        "slot 2 (longest 3 s: t#1)"
    )


def test_a_run_that_does_not_run_cannot_be_controlled(ludus: Ludus, folder: Path):
    code, _, err = ludus("ctl", "nowhere", "status")
    assert code == 2 and "no run answers there" in err


SLOW = """
import asyncio
from pathlib import Path


async def slow(messages, tools, sampling):
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return str(eval(messages[-1].content))
"""


def wait_for_status(run: Path) -> RunStatus:
    for _ in range(1000):
        try:
            status = ask_run(run, StatusRequest()).status
        except StoreError:
            status = None
        if status is not None and status.activity.running:
            return status
        time.sleep(0.02)
    raise AssertionError("the run does not answer")


def test_a_command_that_runs_is_seen_changed_and_stopped_and_is_resumed(ludus: Ludus, folder: Path):
    write_sums(folder)
    (folder / "slow.py").write_text(SLOW)
    words = ["--model.type", "scripted", "--model.script", "slow.py:slow", "--run.concurrency", "2", "--out", "r"]
    started = [*LUDUS, "evaluate", "sums.py", *words]
    with subprocess.Popen(started, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        status = wait_for_status(folder / "r")
        assert (status.kind, status.planned, status.activity.running, status.concurrency) == ("evaluate", 4, 2, 2)
        assert ludus("ctl", "r", "set", "concurrency=3").code == 0
        assert json.loads(ludus("ctl", "r", "pause", "--json").out)["status"]["paused"]
        code, out, _ = ludus("ctl", "r", "status")
        assert code == 0 and "evaluate, paused" in out and "model 3 (longest" in out
        assert ludus("ctl", "r", "requeue", "sum-0").code == 1
        assert ludus("ctl", "r", "stop").code == 0
        (folder / "go").touch()
        _, err = child.communicate(timeout=60)
    assert child.returncode == 130 and "stopped by ludus ctl; what was under way was finished" in err
    shown = ludus("show", "r").out
    assert "concurrency set to 3" in shown and "drained, 3 of 4 rollouts" in shown
    assert len(json.loads(ludus("show", "r", "--json").out)["events"]) == 3
    assert ludus("evaluate", "--resume", "--out", "r").code == 0
