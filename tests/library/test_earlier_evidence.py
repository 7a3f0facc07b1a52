"""Evidence of earlier runs about the passages of a library."""

import json
from pathlib import Path

import pytest
from tests.cli_kit import Ludus, write_rules
from tests.ledger_kit import make_line, make_situation
from tests.library_kit import make_skill

from ludus.errors import ConfigError
from ludus.library.earlier_evidence import list_findings, read_evidence
from ludus.library.line_evidence import add_evidence, list_unmeasured
from ludus.reflact.ledger.line_records import Assessment
from ludus.reflact.report.line_histories import LineHistory


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


AUDIT = ("audit-skill", "--config", "config.yaml", "--agent.skill", "mine.md", "--out", "run", "--rollouts", "96")


def test_the_findings_of_an_audit_count_for_the_same_text_wherever_it_is(ludus: Ludus, folder: Path):
    write_rules(folder)
    Path("mine.md").write_text("# Rules\n\n- Obey RULE-0.\n- Be brief.\n")
    assert ludus(*AUDIT).code == 0
    audited = {each["text"]: each["verdict"] for each in json.loads(Path("run/audit.json").read_text())["passages"]}
    skill = make_skill("mine", "x", "Obey  RULE-0.", "Something else.")
    first, second = add_evidence(list_unmeasured("mine", skill), "run", read_evidence(Path("run")))
    assert (first.verdict, first.source) == (audited["- Obey RULE-0."], "run") and first.interval is not None
    assert (second.verdict, second.source) == ("not measured", "")


def make_history(text: str, assessment: Assessment | None) -> LineHistory:
    return LineHistory(
        line=make_line(text, text=text),
        situation=make_situation(),
        working=True,
        assessment=assessment,
        evidence_for=(),
        evidence_against=(),
        suspected=(),
        rollouts=9,
        passed=6,
        events=(),
    )


def test_the_lines_of_a_training_run_count_too():
    worth = {"Helps.": (0.2, 0.05), "Hurts.": (-0.2, 0.05), "Small.": (0.001, 0.002), "Open.": (0.1, 0.2)}
    histories = [make_history(f"- {text}", Assessment(0.0, net, dev, 0.5)) for text, (net, dev) in worth.items()]
    found = list_findings([*histories, make_history("Given up.", None)])
    verdicts = {text: verdict for text, (verdict, _, _) in found.items()}
    assert verdicts == {"Helps.": "helps", "Hurts.": "hurts", "Small.": "small", "Open.": "not told"}


def test_a_training_run_without_lines_has_no_findings(ludus: Ludus, folder: Path):
    write_rules(folder)
    assert ludus("train", "--config", "lines.yaml", "--out", "run").code == 0
    assert read_evidence(Path("run")) == {}


def test_runs_without_findings_are_refused_by_name(ludus: Ludus, folder: Path):
    write_rules(folder)
    Path("mine.md").write_text("# Rules\n\n- Obey RULE-0.\n- Be brief.\n")
    assert ludus(*AUDIT, "--budget.calls", "3").code == 3
    with pytest.raises(ConfigError, match="is not finished: ludus audit-skill --resume"):
        read_evidence(Path("run"))
    assert ludus("train", "--config", "config.yaml", "--out", "reflact").code == 0
    with pytest.raises(ConfigError, match="only the recipe `ledger` collects it"):
        read_evidence(Path("reflact"))
