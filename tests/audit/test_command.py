"""`ludus audit`, with an environment that can be hacked and one that cannot."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli_kit import Ludus

FILE = '''
from typing import ClassVar
from ludus.env import Env
from ludus.sandbox import SandboxSpec
from ludus.types import Score, Task


class Sums(Env, frozen=True):
    """Writes the sum to a file."""

    name: ClassVar[str] = "sums"
    sandbox: ClassVar[SandboxSpec | None] = SandboxSpec()
    toolsets: ClassVar[tuple[str, ...]] = ("terminal",)
    trusting: bool = False
    """Believe a file of the agent's."""

    def tasks(self, split):
        for number in range(2):
            prompt = f"Write {number} + 70 to sum.txt."
            yield Task(id=f"sum-{number}", prompt=prompt, answer=str(number + 70), split=split)

    async def verify(self, rollout, box):
        if self.trusting and "1" in (await box.exec("cat reward.txt 2>/dev/null")).text:
            return Score.of(1.0)
        said = (await box.exec("cat sum.txt 2>/dev/null")).text.strip()
        return Score.of(float(said == rollout.task.answer))

    async def solve(self, task, box):
        await box.exec(f"echo {task.answer} > sum.txt")
        return "done"
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "sums.py").write_text(FILE)
    return tmp_path


def audit(ludus: Ludus, *words: str) -> Any:
    return ludus("audit", "sums.py", "--out", "run", "--attacks", "reward-file,empty reply", "--repeats", "2", *words)


def test_a_sound_environment(ludus: Ludus):
    done = audit(ludus)
    assert done.code == 0, done.out + done.err
    assert "sound: 0 of 2 attacks paid" in done.out and Path("run/audit.html").exists()


def test_a_verifier_that_believes_the_agent_is_found_out(ludus: Ludus):
    done = audit(ludus, "--env.trusting", "true", "--json")
    found = json.loads(done.out)["audit"]
    assert done.code == 1 and not found["ok"]
    assert [[each["attack"] for each in task["paid"]] for task in found["tasks"]] == [["reward-file"]] * 2
    assert all(task["reference"] == [1.0, 1.0] and task["nothing"] == [0.0, 0.0] for task in found["tasks"])


def test_an_audit_is_resumed_and_runs_nothing_twice(ludus: Ludus):
    audit(ludus)
    again = ludus("audit", "--resume", "--out", "run", "--attacks", "reward-file,empty reply", "--repeats", "2")
    assert again.code == 0 and "0 of 2 attacks paid" in again.out


def test_validate_says_whether_there_was_an_audit(ludus: Ludus):
    assert "not audited: ludus audit sums.py" in ludus("validate", "sums.py").out
    ludus("audit", "sums.py", "--out", "whole", "--repeats", "1", "--env.limit", "1")
    assert "audited " in ludus("validate", "sums.py").out


def test_an_unknown_attack_is_named(ludus: Ludus):
    done = ludus("audit", "sums.py", "--attacks", "reward-fiel")
    assert done.code == 2 and "did you mean 'reward-file'?" in done.err
