"""Beliefs about effects, from outcomes alone."""

from random import Random

import pytest
from msgspec.structs import replace
from tests.ledger_kit import make_ledger, make_line, make_situation

from ludus.reflact.ledger.beliefs import (
    compute_normal_cdf,
    compute_side_effect,
    compute_slopes,
    name_effect,
    predict_pass_rate,
    update_beliefs,
)
from ludus.reflact.ledger.line_records import Gaussian, LineLedger


def test_one_outcome_moves_each_belief_by_its_share_and_makes_it_surer():
    beliefs: dict[str, Gaussian] = {}
    update_beliefs(beliefs, "t1", "a", ["L1"], ["L1"], True)
    assert all(beliefs[name].mean > 0 for name in ("base", "kind/a", "task/t1", name_effect("L1", "a"), "help/L1"))
    assert beliefs["base"].mean > beliefs["task/t1"].mean > beliefs[name_effect("L1", "a")].mean
    assert beliefs["base"].variance < 1.0 and beliefs["task/t1"].variance < 0.49
    update_beliefs(beliefs, "t1", "a", [], [], False)
    assert "any help" in beliefs and beliefs["help/L1"].mean > 0


def test_a_line_that_harms_and_one_that_does_nothing_are_told_apart():
    random, beliefs = Random(1), dict[str, Gaussian]()
    for n in range(600):
        lines = [line for line in ("L1", "L2") if random.random() < 0.5]
        passed = random.random() < (0.45 if "L1" in lines else 0.75)
        update_beliefs(beliefs, f"t{n % 40}", "", lines, [], passed)
    ledger = replace(make_ledger([make_line("L1"), make_line("L2")], tasks=40), beliefs=beliefs)
    slopes = compute_slopes(ledger, {})
    harm, nothing = (compute_side_effect(ledger, line, slopes) for line in ledger.lines)
    assert harm.mean < -0.1 and abs(nothing.mean) < 0.07
    assert harm.deviation < 0.06


def test_nothing_is_known_before_the_first_rollout_and_extremes_have_no_overflow():
    assert compute_slopes(make_ledger(tasks=0), {}) == {}
    beliefs = {"base": Gaussian(-60.0, 0.01)}
    update_beliefs(beliefs, "t", "", [], [], True)
    assert beliefs["base"].mean > -60.0 and beliefs["base"].variance > 0
    assert compute_normal_cdf(0.0) == 0.5 and compute_normal_cdf(1.96) == pytest.approx(0.975, abs=1e-3)


def test_kinds_come_in_the_order_in_which_they_were_seen():
    kinds = [f"kind {n * 7 % 20}" for n in range(20)]
    ledger = replace(make_ledger(), seen={f"t{n}": kind for n, kind in enumerate(kinds)})
    assert list(compute_slopes(ledger, {})) == kinds, "sums are the same in every process"


def test_the_pass_rate_of_a_text_is_predicted_from_all_outcomes():
    random, beliefs, tasks = Random(2), dict[str, Gaussian](), 20
    for n in range(800):
        lines = ["L1"] if random.random() < 0.5 else []
        passed = random.random() < (0.8 if lines else 0.3)
        update_beliefs(beliefs, f"t{n % tasks}", "", lines, lines, passed)
    line = make_line("L1")
    called = make_situation("s", [f"t{n}" for n in range(tasks)])
    ledger = replace(
        make_ledger([line], [called]), beliefs=beliefs, seen=dict.fromkeys((f"t{n}" for n in range(tasks)), "")
    )
    assert predict_pass_rate(ledger, [line]) == pytest.approx(0.8, abs=0.07)
    assert predict_pass_rate(ledger, []) == pytest.approx(0.3, abs=0.07)
    assert predict_pass_rate(LineLedger(), []) is None


def test_a_graded_score_moves_beliefs_towards_it():
    """A line that lifts the score from 0.5 to 0.8, though nothing ever passes."""
    beliefs: dict[str, Gaussian] = {}
    for n in range(400):
        lines = ["L1"] if n % 2 else []
        update_beliefs(beliefs, f"t{n % 40}", "", lines, lines, 0.8 if lines else 0.5)
    base = beliefs["base"].mean + beliefs["kind/"].mean
    lift = beliefs["effect/L1/"].mean + beliefs["help/L1"].mean + beliefs["any effect"].mean + beliefs["any help"].mean
    assert compute_normal_cdf(base) == pytest.approx(0.5, abs=0.08)
    assert compute_normal_cdf(base + lift) == pytest.approx(0.8, abs=0.08)
