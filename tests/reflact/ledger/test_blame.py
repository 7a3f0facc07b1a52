"""Which lines spoil rollouts, from failures that nothing named explains."""

from random import Random

import pytest
from tests.ledger_kit import make_ledger, make_line, make_situation, read

from ludus.reflact.ledger.blame import add_outcomes, compute_cost, compute_usual_rate, count_causes, list_causes
from ludus.reflact.ledger.credit import add_readings
from ludus.reflact.ledger.line_records import Blame
from ludus.reflact.ledger.settings import LedgerTuning


def run_rollouts(harmful: str, count: int) -> Blame:
    """A ledger of twelve lines, each in two of three texts; one of them spoils half of the rollouts of kind `a`."""
    random, blame = Random(3), Blame()
    for number in range(count):
        kind = random.choice("ab")
        lines = [f"L{n}" for n in range(12) if random.random() < 2 / 3]
        passed = random.random() > (0.1 + 0.5 * (kind == "a" and harmful in lines))
        blame = add_outcomes(blame, [(list_causes(f"t{number % 40}", kind, lines, missing=False), passed)])
    return blame


def test_the_line_that_spoils_a_kind_of_task_stands_out():
    counts, shares = count_causes(run_rollouts("L5", 500)), {"a": 0.5, "b": 0.5}
    usual = compute_usual_rate(counts)
    costs = {f"L{n}": compute_cost(counts, f"L{n}", shares, usual).mean for n in range(12)}
    assert max(costs, key=lambda line: costs[line]) == "L5" and costs["L5"] > 0.06
    assert max(cost for line, cost in costs.items() if line != "L5") < 0.02
    assert compute_cost(counts, "L5", {"b": 1.0}, usual).mean < 0.05, "kinds are told apart"


def test_failures_are_divided_completely_and_old_ones_are_kept_as_sums():
    blame = run_rollouts("L1", 900)
    assert len(blame.unexplained) <= 400
    assert len(blame.causes) == len(set(blame.causes)) == len(blame.rollouts) == len(blame.settled)
    numbers = zip(blame.settled, blame.failures, blame.rollouts, strict=True)
    assert all(settled <= failures <= rollouts for settled, failures, rollouts in numbers)
    assert sum(blame.settled) > 20, "older failures"


def test_what_is_not_known_costs_little_but_is_not_sure():
    cost = compute_cost({}, "L1", {"a": 1.0}, compute_usual_rate({}))
    assert cost.mean == pytest.approx(0.01, abs=0.01) and cost.deviation > cost.mean


def test_only_unexplained_failures_and_passes_count():
    line, known = make_line("L1", weight=2.0), [make_situation("s", ["t1"]), make_situation("other", ["t1"])]
    ledger = make_ledger([line], known)

    def count(*readings):
        found = count_causes(add_readings(ledger, readings, LedgerTuning()).blame).get("L1/")
        return found[1] - 4.0 if found else 0.0

    assert count(read("t1", True, ["L1"])) == count(read("t1", False, ["L1"])) == 1.0
    assert count(read("t1", False, ["L1"], ["other"])) == 0.0, "another situation explains it"
    assert count(read("t1", False, ["L1"], ["s"])) == 1.0, "the line has mended this situation, so it explains nothing"
    assert count(read("t1", False, ["L1"], suspects=("L1",))) == 0.0, "a suspect does"
    assert count(read("t1", False, ["L1"], read=False)) == 0.0, "nobody knows what explains it"
