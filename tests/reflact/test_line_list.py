"""Lines on a terminal."""

import pytest
from tests.ledger_kit import make_line, make_situation
from tests.reflact_kit import EVIL

from ludus.reflact.line_list import list_rollouts, print_lines
from ludus.reflact.report.line_histories import LineEvent, LineHistory, RolloutPlace

HISTORY = LineHistory(
    line=make_line("L7", EVIL, text=EVIL),
    situation=make_situation(EVIL, ["t1"], 4, 3),
    working=True,
    assessment=None,
    evidence_for=(RolloutPlace(3, "t1"), RolloutPlace(4, "t/2")),
    evidence_against=(),
    suspected=(RolloutPlace(5, EVIL),),
    rollouts=9,
    passed=6,
    events=(LineEvent(2, "new"), LineEvent(6, "retired", EVIL)),
)


def test_a_line_is_printed_with_its_evidence(capsys: pytest.CaptureFixture[str]):
    print_lines([HISTORY])
    text = capsys.readouterr().out
    for words in ("L7  working: works with", "for        2: t1 (step 3), t/2 (step 4)", "against    nothing",
                  "6 of 9 with it passed", "step 2: proposed", "1 working, 0 waiting, 0 retired"):  # fmt: skip
        assert words in text
    print_lines([])
    assert "no line has been proposed yet" in capsys.readouterr().out


def test_long_lists_are_cut():
    assert list_rollouts([RolloutPlace(1, f"t{n}") for n in range(20)]).endswith("t7 (step 1) and 12 more")
