"""What lines are worth, which are in the working text, and which are retired."""

import pytest
from msgspec.structs import replace
from tests.ledger_kit import make_ledger, make_line, make_situation

from ludus.reflact.ledger.assessment import assess_lines, update_working
from ludus.reflact.ledger.settings import LedgerTuning

TUNING = LedgerTuning()
OFTEN = make_situation(called=[f"t{n}" for n in range(5)], tries=8, named=7)


def test_the_gain_is_how_sure_times_how_often_times_for_how_many():
    ledger = make_ledger([make_line("L1", weight=0.0)], [OFTEN])
    found = assess_lines(ledger, TUNING)["L1"]
    assert found.gain == pytest.approx(0.5 * (0.8 - 0.08) * 0.5)
    assert found.net == pytest.approx(found.gain, abs=0.02) and found.pays > 0.9


def test_the_best_line_of_each_situation_is_in_the_working_text():
    lines = [make_line("L1", weight=1.0), make_line("L2", weight=2.0), make_line("L3", "other", weight=1.0)]
    ledger = make_ledger(lines, [OFTEN, replace(OFTEN, label="other")])
    after, changes = update_working(ledger, 4, TUNING)
    assert after.working == ("L2", "L3")
    assert [(c.line, c.change) for c in changes] == [("L2", "entered"), ("L3", "entered")]


def test_a_member_stays_where_another_line_would_not_enter():
    ledger = make_ledger([make_line("L1", weight=0.0)], [OFTEN])
    assert update_working(ledger, 1, TUNING)[0].working == ()
    assert update_working(replace(ledger, working=("L1",)), 1, TUNING)[0].working == ("L1",)


@pytest.mark.parametrize(
    ("line", "situation", "reason"),
    [
        (make_line("L1", weight=-3.0), OFTEN, "works with probability 0.05"),
        (make_line("L1", weight=1.0, harm={"": 6.0}), make_situation(called=["t1"]), "pays with probability"),
        (make_line("L1", weight=0.0), make_situation(called=["t1"], tries=9), "does not come back"),
    ],
)
def test_lines_are_retired_with_a_reason(line, situation, reason: str):
    ledger = replace(make_ledger([line], [situation]), working=("L1",) if line.weight == 1.0 else ())
    after, changes = update_working(ledger, 7, TUNING)
    assert after.lines[0].retired == 7 and reason in after.lines[0].reason
    assert after.working == () and "retired" in [change.change for change in changes]


def test_a_suspected_line_is_worth_less_on_the_kinds_that_it_hurts():
    ledger = replace(make_ledger([make_line("L1", harm={"a": 6.0})], [OFTEN]), seen={"t1": "a", "t2": "b"})
    free = replace(ledger, lines=(make_line("L1"),))
    lost = assess_lines(free, TUNING)["L1"].net - assess_lines(ledger, TUNING)["L1"].net
    assert lost == pytest.approx(0.5 * 0.25, abs=0.005)
