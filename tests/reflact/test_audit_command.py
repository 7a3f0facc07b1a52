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


def test_mistakes_and_unfinished_audits(ludus: Ludus, folder: Path):
    write_rules(folder)
    Path("mine.md").write_text("# Rules\n\n- Be brief.\n")
    assert "--rollouts is 3" in ludus(*WORDS, "--rollouts", "3").err
    assert ludus(*WORDS, "--rollouts", "96", "--budget.calls", "3").code == 3
    assert "not finished" in ludus("show", "run").err
    Path("mine.md").write_text("# Rules\n")
    assert "no passage to audit" in ludus(*WORDS[:-1], "other", "--rollouts", "96").err
