"""The numbers of `ludus headroom` in words."""

from pathlib import Path
from typing import Any

import pytest

from ludus.reflact.headroom_table import print_headroom


def test_every_number_is_said_in_words(capsys: pytest.CaptureFixture[str]):
    found: dict[str, Any] = {
        "tasks": 40, "rollouts": 80, "failed": 2, "score": 0.25, "interval": {"low": 0.1, "high": 0.4},
        "difference": -0.05, "changed": 0.3, "noise": 0.18, "smallest_effect": 0.26, "tasks_needed": 1081,
        "hinted": None, "unhinted": None, "hints": 0, "advice": "Worth it.",
        "training": {"agent": {"calls": 800, "tokens": 1_200_000}, "optimizer": {"calls": 60, "tokens": 9}},
    }  # fmt: skip
    print_headroom(found, Path("run"))
    text = capsys.readouterr().out
    for words in ("25% [10%, 40%] of 40", "2 of 80 rollouts", "-5 points; 30%", "up to 18 points", "26 points can",
                  "1081", "unknown", "800 rollouts (1.20M tokens)", "Worth it."):  # fmt: skip
        assert words in text
    print_headroom({**found, "passes": 6, "smallest_effect": 0.37, "tasks_needed": 277, "tasks": 1}, Path("run"))
    text = capsys.readouterr().out
    assert "of 1 selection task," in text and "37 points can be shown by shipping (80 % power, 6 passes)" in text
    assert "about 277 selection tasks" in text
    print_headroom({**found, "passes": 6, "smallest_effect": None, "tasks_needed": None}, Path("run"))
    assert "none that there is room for" in capsys.readouterr().out
    print_headroom(None, Path("run"))
    assert capsys.readouterr().out == ""
