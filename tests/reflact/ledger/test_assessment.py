"""What lines are worth, which are in the working text, and which are retired."""

import pytest
from msgspec.structs import replace
from tests.ledger_kit import make_ledger, make_line, make_situation, read

from ludus.reflact.ledger.assessment import assess_lines, update_working
from ludus.reflact.ledger.credit import add_readings
from ludus.reflact.ledger.line_records import LineLedger
from ludus.reflact.ledger.settings import LedgerTuning

TUNING = LedgerTuning()
OFTEN = make_situation(called=[f"t{n}" for n in range(5)], tries=8, named=7)


def test_the_gain_is_how_sure_times_how_often_times_for_how_many():
    ledger = make_ledger([make_line("L1", weight=0.0)], [OFTEN])
    found = assess_lines(ledger, TUNING)["L1"]
    assert found.gain == pytest.approx(0.5 * (0.8 - 0.08) * 0.5, rel=0.2), "a little less: it may do harm"
    assert 0.05 < found.net < found.gain and 0.6 < found.pays < 0.95


def test_a_situation_counts_on_the_tasks_on_which_it_comes_back():
    once, often = (3, 0), (5, 4)
    mistaken = make_situation("s", ["t1", "t2", "t3"], 11, 4, t1=often, t2=once, t3=once)
    own = make_situation("s", ["t1"], 5, 4, t1=often)
    gains = [assess_lines(make_ledger([make_line("L1")], [each]), TUNING)["L1"].gain for each in (mistaken, own)]
    assert gains[0] == pytest.approx(gains[1], rel=0.25), "tasks that were called by mistake add little"


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
        (make_line("L1", weight=0.0), make_situation(called=["t1"], tries=14), "does not come back"),
    ],
)
def test_lines_are_retired_with_a_reason(line, situation, reason: str):
    ledger = replace(make_ledger([line], [situation]), working=("L1",) if line.weight == 1.0 else ())
    after, changes = update_working(ledger, 7, TUNING)
    assert after.lines[0].retired == 7 and reason in after.lines[0].reason
    assert after.working == () and "retired" in [change.change for change in changes]


def suspect(rollouts: int) -> LineLedger:
    """A ledger after rollouts of two kinds of task: those of kind `a` fail, and the line is suspected."""
    kinds = {f"t{n}": "a" if n < 5 else "b" for n in range(10)}
    ledger = replace(make_ledger([make_line("L1", weight=2.0)], [OFTEN]), seen=kinds)
    for n in range(rollouts):
        bad = read("t1", False, ["L1"], kind="a", suspects=("L1",))
        ledger = add_readings(ledger, [bad, read(f"t{n % 5 + 5}", True, ["L1"], kind="b")], TUNING)
    return ledger


def test_a_suspected_line_is_worth_less_on_the_kinds_that_it_hurts():
    nets = [assess_lines(suspect(n), TUNING)["L1"] for n in (0, 2, 12)]
    assert nets[0].net > nets[1].net > nets[2].net
    after, changes = update_working(replace(suspect(40), working=("L1",)), 7, TUNING)
    assert after.working == () and "pays with probability" in after.lines[0].reason
    assert [change.change for change in changes] == ["left", "retired"]


def test_a_suspected_passage_is_worth_less_on_the_kinds_that_it_hurts():
    line = replace(make_line("P1", passage=True), harm={"a": 6.0})
    ledger = replace(make_ledger([line]), seen={"t1": "a", "t2": "b"})
    free = replace(ledger, lines=(replace(line, harm={}),))
    lost = assess_lines(free, TUNING)["P1"].net - assess_lines(ledger, TUNING)["P1"].net
    assert lost == pytest.approx(0.5 * 0.25, abs=0.005)
