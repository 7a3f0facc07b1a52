"""`ludus audit-skill`, as a user meets it."""

import json
from pathlib import Path

import pytest
from tests.cli_kit import Ludus, write_rules

pytestmark = pytest.mark.usefixtures("folder")

WORDS = ("audit-skill", "--config", "config.yaml", "--agent.skill", "mine.md", "--out", "run")


def test_an_audit_is_measured_reported_and_found_again(ludus: Ludus, folder: Path):
    write_rules(folder)
    Path("mine.md").write_text("# Rules\n\n- Obey RULE-0.\n- Be brief.\n")
    done = ludus(*WORDS, "--rollouts", "96")
    assert done.code == 0, done.err
    report = json.loads(Path("run/audit.json").read_text())
    assert [each["text"] for each in report["passages"]] == ["- Obey RULE-0.", "- Be brief."]
    assert report["summary"] in done.out.replace("\n", " ")
    again = json.loads(ludus(*WORDS, "--rollouts", "96", "--resume", "--json").out)
    assert again["audit"] == report
    assert json.loads(ludus("show", "run", "--json").out)["audit"] == report
    assert report["summary"] in ludus("show", "run").out.replace("\n", " ")


GRADED = '''
from collections.abc import Iterator
from typing import ClassVar
from ludus.env import Env
from ludus.sandbox import SandboxSpec
from ludus.types import Rollout, Score, Task

class Judged(Env, frozen=True):
    """A judge that never gives the full score."""
    name: ClassVar[str] = "judged_rules"
    sandbox: ClassVar[SandboxSpec | None] = None

    def tasks(self, split: str) -> Iterator[Task]:
        for n in range(24):
            yield Task(id=f"t{n}", prompt=f"Task {n}")

    async def verify(self, rollout, box) -> Score:
        return Score.of(0.8 if "briefly" in rollout.answer else 0.3, "graded")

def act(messages, tools, sampling):
    return "briefly" if "Be brief." in messages[0].content else "at length"
'''


def test_an_audit_uses_the_scores_of_a_judge_that_never_gives_the_full_one(ludus: Ludus, folder: Path):
    Path("judged.py").write_text(GRADED)
    Path("mine.md").write_text("# Rules\n\n- Be brief.\n- Be kind.\n")
    words = ("audit-skill", "judged.py", "--agent.skill", "mine.md", "--rollouts", "96", "--out", "graded")
    done = ludus(*words, "--model.type", "scripted", "--model.script", "judged.py:act")
    assert done.code == 0, done.err
    report = json.loads(Path("graded/audit.json").read_text())
    verdicts = {each["text"]: each for each in report["passages"]}
    assert report["metric"] == "soft" and verdicts["- Be brief."]["verdict"] == "helps"
    assert verdicts["- Be brief."]["effect"] == pytest.approx(0.5, abs=0.01)
    assert "mean score" in done.out


def test_a_stopped_audit_goes_on_with_its_own_number_of_rollouts(ludus: Ludus, folder: Path):
    write_rules(folder)
    Path("mine.md").write_text("# Rules\n\n- Obey RULE-0.\n- Be brief.\n")
    assert ludus(*WORDS, "--rollouts", "96", "--budget.calls", "40").code == 3
    done = ludus("audit-skill", "--resume", "--out", "run", "--budget.calls", "400")
    assert done.code == 0, done.err
    assert json.loads(Path("run/audit.json").read_text())["rollouts"] == 96
    done = ludus("audit-skill", "--resume", "--out", "run", "--rollouts", "200")
    assert done.code == 2 and "content.rollouts" in done.err


def test_mistakes_and_unfinished_audits(ludus: Ludus, folder: Path):
    write_rules(folder)
    Path("mine.md").write_text("# Rules\n\n- Be brief.\n")
    assert "--rollouts is 3" in ludus(*WORDS, "--rollouts", "3").err
    assert ludus(*WORDS, "--rollouts", "96", "--budget.calls", "3").code == 3
    assert "not finished" in ludus("show", "run").err
    Path("mine.md").write_text("# Rules\n")
    assert "no passage to audit" in ludus(*WORDS[:-1], "other", "--rollouts", "96").err
