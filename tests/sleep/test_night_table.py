"""What `ludus sleep --list` prints."""

from pathlib import Path

import pytest

from ludus.sleep.night_table import StagedRow, print_nights


def test_words_of_a_model_are_neither_markup_nor_commands(capsys: pytest.CaptureFixture[str]):
    claim = "nothing is proposed: [/bold] \x1b[2J \u202e"
    row = StagedRow(night="2026-11-18", skill="forms", status="nothing", claim=claim, measured=False, live="/forms")
    print_nights([row], Path("nights"))
    shown = capsys.readouterr().out
    assert "[/bold]" in shown and "␛[2J" in shown and "\u202e" not in shown
