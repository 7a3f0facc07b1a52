"""An audit on a terminal."""

from pathlib import Path

import pytest

from ludus.reflact.audit_table import print_audit


def test_harmful_passages_come_first_and_long_ones_are_cut(capsys: pytest.CaptureFixture[str]):
    row = {"text": "x " * 200, "effect": 0.1, "verdict": "not told", "sentence": "Nothing."}
    passages = [{"id": "P1", **row}, {"id": "P2", **row, "verdict": "hurts", "sentence": "It costs."}]
    found = {"rollouts": 9, "tasks": 3, "failed": 2, "score": 0.5, "metric": "soft", "summary": "All in all."}
    print_audit({"passages": passages, **found}, Path("runs/audit"))
    out = capsys.readouterr().out
    assert out.index("P2  It costs.") < out.index("P1  Nothing.") and "…" in out
    assert "9 rollouts on 3 tasks, 2 without a score" in out and "All in all." in out
    assert "mean score 0.5" in out and "runs/audit/audit.json" in out and "ludus show runs/audit TASK" in out


def test_nothing_is_printed_without_a_result(capsys: pytest.CaptureFixture[str]):
    print_audit(None, Path("runs/audit"))
    assert capsys.readouterr().out == ""
