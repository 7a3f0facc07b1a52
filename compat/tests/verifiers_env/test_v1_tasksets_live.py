"""Tasksets with the package verifiers 0.4 itself: one that it ships, and some as its users write them."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from compat.tests.verifiers_kit import roll, roll_all

from ludus.batch import load_tasks
from ludus.cli import main
from ludus.compat.verifiers_env import VerifiersEnv
from ludus.errors import ConfigError, ModelError
from ludus.models.scripted import call, say
from ludus.policy import Limits
from ludus.types import Message, Rollout, StopReason

pytest.importorskip("verifiers.v1.tasksets", reason="verifiers 0.4 is not installed")
pytestmark = pytest.mark.skipif(shutil.which("uv") is None, reason="the programs of verifiers need uv")

OWN = Path(__file__).parents[1] / "environments"
TALK = {"harness": {"id": "null"}}
HERE = {"runtime": {"type": "subprocess"}}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tasksets of this folder, for this process and for servers that it starts. Such a server leaves the file with
    its port, which is removed."""
    monkeypatch.syspath_prepend(str(OWN))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(OWN), os.environ.get("PYTHONPATH", "")]))
    before = set(Path("/tmp").glob("vf-port-*"))
    yield
    for left in set(Path("/tmp").glob("vf-port-*")) - before:
        left.unlink()


def sums(count: int = 1, **args: Any) -> VerifiersEnv:
    taskset = {"count": count, **args.pop("taskset", {})}
    return VerifiersEnv(id="verifiers-sums", args={"taskset": taskset, **(args or {"agent": TALK})})


def add(messages: Sequence[Message], tools: object, sampling: object) -> str:
    first = next(message.content for message in messages if message.role == "user")
    return str(int(first[0]) + 2)


def run_command(command: str) -> Rollout:
    """A rollout whose agent runs one command on this machine."""
    env = VerifiersEnv(id="verifiers-files", args={"agent": HERE})
    return roll(env, call("bash", command=command), "done")


def test_a_game_that_the_package_ships_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nltk = pytest.importorskip("nltk", reason="verifiers[ta] is not installed")
    pytest.importorskip("textarena", reason="verifiers[ta] is not installed")
    words = tmp_path / "corpora" / "words"
    words.mkdir(parents=True)
    for name in ("en", "en-basic", "README"):
        (words / name).write_text("apple\n")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    monkeypatch.setattr(nltk, "download", lambda *_, **__: True)
    env = VerifiersEnv(id="textarena", args={"taskset": {"game": "Hangman-v0"}, "player": TALK, "select": {"limit": 1}})
    won = roll(env, "[A]", "[APPLE]")
    assert won.score is not None and (won.score.value, won.score.parts) == (1.0, {"game_reward": 1.0})
    assert [turn.completion.message.content for turn in won.turns] == ["[A]", "[APPLE]"]
    assert "A   _   _   _   _" in won.turns[0].notices[0].content
    lost = roll(env, *(f"[{letter}]" for letter in "BCDFGHI"))
    assert lost.score is not None and not lost.score.passed


def test_groups_run_side_by_side_with_a_skill():
    rollouts = roll_all(sums(2), add, skill="Think first.", size=2)
    for rollout in rollouts:
        assert rollout.score is not None and rollout.score.passed
        assert rollout.score.parts == {"exact": 1.0, "length": 1.0}
        assert rollout.opening == (
            Message("system", "Think first.\n\nAnswer with a number."),
            Message("user", rollout.task.prompt),
        )
        assert (len(rollout.turns), rollout.stop) == (1, StopReason.FINISHED)


@pytest.mark.parametrize(
    ("broken", "boundary", "words", "retryable"),
    [
        ("raise", "verifier", "the grader is gone", False),
        ("nan", "verifier", "the reward is nan", False),
        ("setup", "setup", "the data base is gone", True),
    ],
)
def test_a_taskset_that_breaks_gives_no_score(broken: str, boundary: str, words: str, retryable: bool):
    (rollout,) = roll_all(sums(taskset={"broken": broken}), add)
    assert rollout.score is None and rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.retryable) == (boundary, retryable)
    assert words in rollout.failure.message
    assert len(rollout.turns) == (0 if broken == "setup" else 1)


def test_a_taskset_that_hangs_gives_no_score():
    hangs = {"broken": "hang"}
    (rollout,) = roll_all(sums(taskset=hangs), add, limits=Limits(rollout_seconds=20.0))
    assert rollout.failure is not None and "limits.rollout_seconds" in rollout.failure.message
    args = {"taskset": hangs, "agent": {**TALK, "timeout": {"scoring": 0.1}}}
    (rollout,) = roll_all(VerifiersEnv(id="verifiers-sums", args=args), add)
    assert rollout.failure is not None and "exact was not computed (scoring_timeout)" in rollout.failure.message


def test_a_model_server_that_fails_is_no_zero():
    def fail(*_: object) -> str:
        raise ModelError("no server", retryable=False)

    (rollout,) = roll_all(sums(), fail)
    assert rollout.failure is not None and (rollout.failure.boundary, rollout.failure.message) == ("model", "no server")


def test_tools_of_a_server_are_called():
    def act(messages: Sequence[Message], tools: Sequence[Any], sampling: object) -> Message:
        last = messages[-1]
        return say(f"It is {last.content}") if last.role == "tool" else call(tools[0].name, code="sesame")

    (rollout,) = roll_all(VerifiersEnv(id="verifiers-vault", args={"agent": TALK}), act)
    assert rollout.score is not None and rollout.score.passed
    assert rollout.turns[0].results[0].content == "4711"
    assert rollout.provenance.tools == (rollout.turns[0].results[0].call.name,)


def test_an_agent_that_runs_commands_is_scored_and_one_that_kills_its_program_has_a_zero():
    good = run_command("expr $(cat given.txt) + 1 > out.txt")
    assert good.score is not None and good.score.passed
    killed = run_command("kill -9 $PPID")
    assert killed.score is not None and (killed.score.value, killed.stop) == (0.0, StopReason.CRASHED)
    assert "The agent's program ended with an error" in killed.score.feedback


def test_a_user_that_is_a_model_is_no_part_of_the_rollout():
    def play(messages: Sequence[Message], tools: object, sampling: object) -> str:
        if "USER" not in messages[0].content:
            return "2"
        return "###DONE###" if any(message.role == "assistant" for message in messages) else "0 + 2, please"

    (rollout,) = roll_all(sums(id="user-sim", assistant=TALK), play)
    assert rollout.score is not None and rollout.score.passed
    assert [message.content for message in rollout.opening] == ["Answer with a number.", "0 + 2, please"]
    assert [turn.completion.message.content for turn in rollout.turns] == ["2"]


@pytest.mark.parametrize(
    ("id", "args", "words"),
    [
        ("no-such-taskset", {}, r"env\.id: no-such-taskset cannot be loaded"),
        ("verifiers-sums", {"taskset": {"cuont": 2}, "agent": TALK}, r"env\.args\.taskset\.cuont: "),
        ("verifiers-sums", {"agent": {"harness": {"id": "nul"}}}, r"env\.id: .*'nul' not found"),
        ("verifiers-sums", {"agent": TALK, "select": {"limit": -1}}, r"env\.args\.select\.limit: "),
        ("verifiers-sums", {}, r'env\.args\.agent\.runtime: the program "bash"'),
        ("verifiers-sums", {"agent": {**HERE, "harness": {"id": "codex"}}}, "needs a container"),
    ],
)
def test_what_is_wrong_is_named(id: str, args: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        load_tasks(VerifiersEnv(id=id, args=args), "test")


MODEL = """
from pathlib import Path
from ludus.errors import ModelError

def answer(messages, tools, sampling):
    first = messages[-1].content
    with open("calls.txt", "a") as calls:
        calls.write(first[0])
    if first[0] == "1" and not Path("repaired").exists():
        raise ModelError("no server", retryable=False)
    return str(int(first[0]) + 2)
"""


def test_a_resumed_run_runs_what_has_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(MODEL)
    args = json.dumps({"taskset": {"count": 2}, "agent": TALK})
    model = ["--model.type", "scripted", "--model.script", "models.py:answer"]
    main(["evaluate", "verifiers:verifiers-sums", "--env.args", args, *model, "--out", "r", "--quiet"])
    before = Path("calls.txt").read_text()
    assert "0" in before
    Path("repaired").touch()
    capsys.readouterr()
    assert main(["evaluate", "--resume", "--out", "r", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]["overall"]
    assert (summary["scored"], summary["mean"]) == (2, 1.0)
    assert Path("calls.txt").read_text() == before + "1"
