"""`ludus replay`: a rollout runs again with its recorded replies, and every tool result is compared."""

import json
from pathlib import Path

import pytest
from tests.cli_kit import (
    Ludus,
    read_calls,
    script_flags,
    serve_engine,
    token_flags,
    train_words,
    write_doubles,
    write_rules,
    write_sums,
)

from ludus.store import RunDir

CLOCK = """
import itertools
from pathlib import Path
from ludus.models.scripted import call, join_calls, say

def act(messages, tools, sampling):
    n = sum(m.role == "assistant" for m in messages)
    if n == 0:
        return join_calls(call("terminal", command="echo $RANDOM$RANDOM 12:30 && echo one > a.txt"),
                          call("write_file", path="greeting.txt", content="Hello from the sandbox"))
    return call("terminal", command="cat a.txt") if n == 1 else say("Done.")
"""


def test_tools_run_again_in_a_slot_and_differences_are_shown_and_masked(ludus: Ludus, folder: Path):
    (folder / "clock.py").write_text(CLOCK)
    flags = ["--model.type", "scripted", "--model.script", "clock.py:act"]
    assert ludus("evaluate", "terminal-test", "--env.limit", "1", "--out", "r", *flags).code == 0
    before = {path.name: path.read_bytes() for path in Path("r").iterdir() if path.is_file()}
    (folder / "clock.py").write_text("")  # no model is asked
    code, out, _ = ludus("replay", "r", "greeting")
    assert code == 1 and "3 turns, 3 tool results, score: 1 difference" in " ".join(out.split())
    assert "turn 1: terminal returned something else" in out
    code, out, _ = ludus("replay", "r", "greeting", "--ignore", r"\d{3,}", "--json", "--out", "again")
    report = json.loads(out)
    assert (code, report["equal"], report["score"], report["score_now"]) == (0, True, 1.0, 1.0)
    code, out, _ = ludus("replay", "r", report["outcome"][:8], "--no-judge", "--json", "--ignore", r"\d{3,}")
    assert (code, json.loads(out)["score_now"]) == (0, None)
    assert {path.name: path.read_bytes() for path in Path("r").iterdir() if path.is_file()} == before
    assert "turns 1 to 3 were played from" in " ".join(ludus("show", "again", "greeting").out.split())
    with RunDir.read(Path("again")) as directory:
        ((_, rollout),) = directory.read_outcomes()
    assert rollout.files, "its files are kept"
    assert "cannot resume" in ludus("evaluate", "--resume", "--out", "again").err
    assert "already holds a run" in ludus("replay", "r", "greeting", "--out", "again").err
    assert "is not a regular expression" in ludus("replay", "r", "greeting", "--ignore", "(").err


def test_an_environment_that_has_changed_is_found(ludus: Ludus, folder: Path):
    write_sums(folder)
    assert ludus("evaluate", "sums.py", "--out", "r", *script_flags()).code == 0
    asked = len(read_calls(folder))
    assert ludus("replay", "r", "sum-1").code == 0
    changed = (folder / "sums.py").read_text().replace("Score.of(float(", "Score.of(0.5 * float(")
    (folder / "other.py").write_text(changed)
    record = json.loads(Path("r/config.json").read_text())
    Path("r/config.json").write_text(json.dumps({**record, "env": {**record["env"], "name": "other.py"}}))
    code, out, _ = ludus("replay", "r", "sum-1")
    assert code == 1 and "another score" in out and "-1, passed" in out and "+0.5, not passed" in out
    assert len(read_calls(folder)) == asked


def test_a_rollout_of_a_training_run_has_the_skill_of_its_step(ludus: Ludus, folder: Path):
    write_rules(folder)
    assert ludus(*train_words("--out", "skill", "--quiet")).code == 0
    with RunDir.read(Path("skill")) as directory:
        keys = {rollout.provenance.skill: key for key, rollout in directory.read_outcomes()}
    assert len(keys) > 2
    for key in keys.values():
        code, out, err = ludus("replay", "skill", key, "--json")
        assert (code, json.loads(out)["differences"]) == (0, []), err


def test_exact_tokens_are_played_too(ludus: Ludus, folder: Path, shipped: Path):
    write_doubles(folder)
    with serve_engine(shipped) as url:
        words = ["evaluate", "doubles.py", "--out", "r", "--quiet", *token_flags(url, shipped)]
        assert ludus(*words).code == 0
    assert ludus("replay", "r", "task-1", "--out", "again").code == 0
    with RunDir.read(Path("r")) as one, RunDir.read(Path("again")) as other:
        recorded = next(rollout for _, rollout in one.read_outcomes() if rollout.task.id == "task-1")
        ((_, played),) = other.read_outcomes()
    assert [turn.completion for turn in played.turns] == [turn.completion for turn in recorded.turns]


JUDGED = """
from typing import ClassVar
from ludus.env import Env
from ludus.types import Score, Task
from ludus.verify.grading import Criterion

class Judged(Env, frozen=True):
    name: ClassVar[str] = "judged"
    sandbox: ClassVar[None] = None
    graded: ClassVar[bool] = True

    def tasks(self, split):
        yield Task(id="essay", prompt="Write.", split=split)

    async def grade(self, rollout, box, judges):
        return await judges.grade(rollout.task.prompt, [Criterion("It is good.")], rollout.answer)
"""
JUDGE = """
import json
from pathlib import Path

def judge(messages, tools, sampling):
    with Path("verdicts").open("a") as file:
        file.write(".")
    return json.dumps({"verdicts": [{"criterion": 1, "met": not Path("strict").exists(), "why": "so"}]})

def write(messages, tools, sampling):
    return "An essay."
"""


def test_verdicts_are_asked_again_unless_the_user_says_no(ludus: Ludus, folder: Path):
    (folder / "judged.py").write_text(JUDGED)
    (folder / "models.py").write_text(JUDGE)
    flags = ["--model.type", "scripted", "--model.script", "models.py:write"]
    flags += ["--judge.type", "scripted", "--judge.script", "models.py:judge"]
    assert ludus("evaluate", "judged.py", "--out", "r", *flags).code == 0
    asked = len((folder / "verdicts").read_text())
    assert ludus("replay", "r", "essay").code == 0
    assert len((folder / "verdicts").read_text()) == 2 * asked
    (folder / "strict").touch()
    assert "another score" in ludus("replay", "r", "essay").out
    (folder / "models.py").unlink()
    assert ludus("replay", "r", "essay", "--no-judge").code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["r", "nothing"], "no rollout of a task 'nothing'"),
        (["r", "sum"], "'sum' could be any of: sum-0, sum-1"),
        (["nowhere", "sum-0"], "is not a run directory"),
        (["r", "sum-0", "--model.name", "x"], "--model.name has no effect on `ludus replay`"),
        (["r", "sum-0", "--sampling.temperature", "0"], "has no effect on `ludus replay`"),
        (["r", "sum-0", "--env.limit", "3"], "env.limit: the record has decided it"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_words(ludus: Ludus, folder: Path, words: list[str], message: str):
    write_sums(folder)
    assert ludus("evaluate", "sums.py", "--out", "r", *script_flags()).code == 0
    code, _, err = ludus("replay", *words)
    assert code == 2 and message in err


def test_a_rollout_without_a_reply_cannot_be_replayed(ludus: Ludus, folder: Path):
    write_sums(folder)
    assert ludus("evaluate", "sums.py", "--out", "r", *script_flags("broken")).code == 1
    assert "has no reply that could be played" in ludus("replay", "r", "sum-0").err
