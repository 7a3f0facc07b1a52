"""What rollouts say for and against lines."""

import math

import pytest
from tests.ledger_kit import make_ledger, make_line, make_situation, read

from ludus.reflact.ledger.credit import add_readings, compute_weight
from ludus.reflact.ledger.line_records import LineLedger, Reading
from ludus.reflact.ledger.settings import LedgerTuning

TUNING = LedgerTuning()


def credit(ledger: LineLedger, *readings: Reading) -> LineLedger:
    return add_readings(ledger, readings, TUNING)


def test_a_line_gains_if_its_situation_stays_away_and_loses_if_it_comes():
    ledger = make_ledger([make_line("L1")], [make_situation(called=["t1"], tries=4, named=3)])
    rate = 4 / 6
    held = credit(ledger, read("t1", True, ["L1"])).lines[0]
    assert held.weight == pytest.approx(0.4 + math.log(0.92 / (1 - rate)))
    assert (held.tries, held.held) == (1, 1)
    named = credit(ledger, read("t1", False, ["L1"], ["s"])).lines[0]
    assert named.weight == pytest.approx(0.4 + math.log(0.08 / rate))
    assert (named.tries, named.held) == (1, 0)


def test_a_task_that_never_called_for_the_line_says_nothing_about_whether_it_works():
    ledger = make_ledger([make_line("L1")], [make_situation(called=["t1"])])
    assert credit(ledger, read("t2", True, ["L1"])).lines[0].weight == 0.4


def test_weights_are_bounded_and_rates_are_clipped():
    assert compute_weight(4.9, 0.99, happened=False, slip=0.08) == 5.0
    assert compute_weight(0.0, 0.05, happened=True, slip=0.08) == pytest.approx(math.log(0.08 / 0.4))


def test_rollouts_without_a_line_count_how_often_a_situation_comes_back():
    ledger = credit(make_ledger(), read("t1", False, named=["s"]))
    assert ledger.situations == (make_situation(called=["t1"]),), "the calling failure itself is not counted"
    ledger = credit(ledger, read("t1", False, named=["s"]), read("t1", True))
    assert ledger.situations == (make_situation(called=["t1"], tries=2, named=1, t1=(2, 1)),)
    ledger = credit(ledger, read("t2", False, named=["s"]))
    assert ledger.situations == (make_situation(called=["t1", "t2"], tries=3, named=2, t1=(2, 1)),)


def test_a_task_is_not_called_by_a_failure_that_had_a_line_about_the_situation():
    ledger = make_ledger([make_line("L1")], [make_situation(called=["t1"])])
    assert credit(ledger, read("t2", False, ["L1"], ["s"])).situations == (make_situation(called=["t1"]),)


def test_suspicion_of_a_passage_is_by_kind_of_task_and_within_bounds():
    ledger = make_ledger([make_line("L1", passage=True)])
    failed = read("t1", False, ["L1"], kind="a", suspects=("L1",))
    line = credit(ledger, failed).lines[0]
    assert (line.harm, line.suspected) == ({"a": pytest.approx(0.8)}, 1)
    assert credit(ledger, *[failed] * 5).lines[0].harm == {"a": 6.0}
    cleared = credit(ledger, *[read("t1", False, ["L1"], kind="b")] * 9).lines[0]
    assert (cleared.harm, cleared.suspected) == ({"b": -4.0}, 0)
    assert credit(ledger, read("t1", True, ["L1"])).lines[0].harm == {}


def test_a_rollout_without_a_score_says_nothing_and_one_that_nobody_read_names_nothing():
    ledger = make_ledger([make_line("L1")], [make_situation(called=["t1"])])
    assert credit(ledger, read("t1", None, ["L1"])) == ledger
    unread = credit(ledger, read("t1", False, ["L1"], read=False))
    assert (unread.lines, unread.situations) == (ledger.lines, ledger.situations)
    assert unread.beliefs, "the outcome itself counts"


def test_near_duplicates_of_a_label_are_one_situation():
    ledger = credit(
        make_ledger(), read("t1", False, named=["unit is missing"]), read("t2", False, named=["Missing units"])
    )
    assert [(s.label, s.called) for s in ledger.situations] == [("unit is missing", ("t1", "t2"))]


def test_the_order_of_steps_does_not_matter_for_what_is_seen():
    ledger = credit(LineLedger(), read("t1", True, kind="a"), read("t2", False, kind="b"))
    assert ledger.seen == {"t1": "a", "t2": "b"}
