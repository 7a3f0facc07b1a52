"""Which tasks are run, and with which lines."""

from random import Random

from msgspec.structs import replace
from tests.ledger_kit import make_ledger, make_line, make_situation

from ludus.reflact.ledger.assessment import assess_lines
from ludus.reflact.ledger.line_records import Assessment
from ludus.reflact.ledger.sampling import Rival, group_rivals, sample_lines, sample_passages, sample_tasks
from ludus.reflact.ledger.settings import LedgerTuning

TUNING = LedgerTuning()
CALLED = [f"t{n}" for n in range(5)]


def test_lines_are_left_out_now_and_then_and_of_a_situation_at_most_one_is_drawn():
    lines = [make_line("L1", weight=3.0), make_line("L2", weight=-1.0), make_line("L3", "other", weight=3.0)]
    assessed = {"L1": Assessment(0.9, 0.1, 0.005, 1.0), "L2": Assessment(0.3, 0.09, 0.005, 1.0)}
    groups = group_rivals(make_ledger(lines, assessed={**assessed, "L3": Assessment(0.9, 0.1, 0.005, 1.0)}))
    samples = _sample(groups, Random(0))
    share = sum("L1" in sample or "L2" in sample for sample in samples) / 400
    assert 0.74 < share < 0.86
    assert not any({"L1", "L2"} <= set(sample) for sample in samples)
    assert sum("L1" in sample for sample in samples) > 5 * sum("L2" in sample for sample in samples) > 0
    assert samples == _sample(groups, Random(0))


def test_a_line_that_may_still_do_harm_is_left_out_less_often():
    lines = [make_line("sure", weight=3.0), make_line("new", "other")]
    assessed = {"sure": Assessment(0.9, 0.3, 0.005, 1.0), "new": Assessment(0.7, 0.3, 0.05, 1.0)}
    samples = _sample(group_rivals(make_ledger(lines, assessed=assessed)), Random(0))
    shares = {name: sum(name in sample for sample in samples) / 400 for name in ("sure", "new")}
    assert 0.74 < shares["sure"] < 0.86 and 0.91 < shares["new"] < 0.99


def _sample(groups: list[list[Rival]], random: Random) -> list[tuple[str, ...]]:
    return [tuple(line.id for line in sample_lines(groups, TUNING, random)) for _ in range(400)]


def test_passages_of_a_good_skill_are_seldom_tried_out_and_those_of_a_bad_one_often():
    lines = [make_line("P1", "p1", passage=True), make_line("P2", "p2", passage=True), make_line("L1", weight=3.0)]
    ledger = make_ledger(lines, [make_situation("s", CALLED, tries=8, named=8)])
    ledger = replace(ledger, working=("P1", "L1"), assessed=assess_lines(ledger, TUNING))
    random = Random(0)
    shares = [
        sum(sample_passages(replace(ledger, whole=98, whole_passed=passed), random) == {"P1"} for _ in range(400)) / 400
        for passed in (89.0, 9.0)
    ]
    assert 0.74 < shares[0] < 0.88 and shares[1] < 0.05
    texts = [{line.id for line in sample_lines(group_rivals(ledger), TUNING, random, {"P1"})} for _ in range(99)]
    assert all("P1" in text and "P2" not in text for text in texts)
    assert any("L1" not in text for text in texts)


def test_a_line_that_surely_harms_is_not_drawn_and_a_retired_one_never():
    lines = [make_line("L1", weight=-4.0), make_line("L2", "x", retired=1)]
    ledger = make_ledger(lines, [make_situation(called=["t1"])], assessed={"L1": Assessment(0.01, -0.2, 0.02, 0.0)})
    random = Random(1)
    assert not any(sample_lines(group_rivals(ledger), TUNING, random) for _ in range(99))


def test_half_of_the_tasks_are_those_that_say_most_about_undecided_lines():
    lines = [make_line("L1", weight=0.4), make_line("L2", "known", weight=4.0)]
    situations = [make_situation("s", ["t1", "t2"]), make_situation("known", ["t8", "t9"], tries=9, named=9)]
    targeted, others = sample_tasks(make_ledger(lines, situations), ["t1", "t5", "t6", "t7", "t8"], 4, Random(0))
    assert set(targeted) == {"t1", "t2"} and others == ("t5", "t6")
    assert sample_tasks(make_ledger(), ["t5", "t6", "t7"], 3, Random(0)) == ((), ("t5", "t6", "t7"))
