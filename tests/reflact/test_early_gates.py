"""Rules that decide early: the curtailed one decides as the original, the sequential one has three verdicts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.reflact.early_gates import Curtailed, EarlyRule, Sequential, replay, split_blocks
from ludus.reflact.gate import Contender, Decision, Gate, Mark, Measure, judge
from ludus.skill import Skill


def make_contender(name: str, marks: dict[str, float | None]) -> Contender:
    """A skill with scores by item; None for an item without a score."""
    skill = Skill(name)
    found = {item: Mark(hard, hard) for item, hard in marks.items() if hard is not None}
    return Contender(skill, Measure(skill.hash, found))


def number(*hards: float | None) -> dict[str, float | None]:
    return {f"item-{n:02d}": hard for n, hard in enumerate(hards)}


scores = st.lists(
    st.tuples(st.sampled_from([0.0, 1 / 3, 2 / 3, 1.0, None]), st.sampled_from([0.0, 0.5, 1.0, None])),
    min_size=1,
    max_size=12,
)
gates = st.builds(
    Gate,
    metric=st.sampled_from(["hard", "soft", "mixed"]),
    margin=st.sampled_from([0.0, 0.1]),
    no_regression=st.booleans(),
    density=st.booleans(),
    block=st.integers(1, 5),
)


@settings(deadline=None, max_examples=150)
@given(scores, gates)
def test_curtailed_makes_the_decisions_of_the_original_rule(pairs: list[tuple[float | None, float | None]], gate: Gate):
    candidate = make_contender("You MUST.", number(*(own for own, _ in pairs)))
    current = make_contender("You may.", number(*(now for _, now in pairs)))
    whole = judge(gate, candidate, current, current)
    verdict, used = replay(Curtailed(), gate, candidate, current, current, 0)
    assert verdict.decision == whole.decision
    assert used <= len(candidate.measure.marks)
    if verdict.decision.accepted:
        assert verdict == whole


def test_curtailed_stops_when_the_candidate_can_only_tie():
    current, candidate = make_contender("u", number(1, 1, 0, 1)), make_contender("c", number(0, 1, 1, 1))
    verdict, used = replay(Curtailed(), Gate(block=1), candidate, current, current, 0)
    assert (verdict.decision, used) == (Decision.REJECT, 1), "it lost one item, and only one can be won"
    solved = Curtailed().arrange(Gate(), current.measure, list(current.measure.marks), 0)
    assert solved == ["item-00", "item-01", "item-03", "item-02"], "what can be lost comes first"


def test_curtailed_measures_to_the_end_what_could_still_be_accepted():
    current, candidate = make_contender("u", number(1, 0, 0, 0)), make_contender("c", number(0, 0, 1, 1))
    verdict, used = replay(Curtailed(), Gate(block=1), candidate, current, current, 0)
    assert (verdict.decision, used) == (Decision.ACCEPT_NEW_BEST, 4)


@pytest.mark.parametrize(
    ("own", "now", "decision", "used"),
    [
        ((1,) * 12, (0,) * 12, Decision.ACCEPT_NEW_BEST, 4),
        ((0,) * 12, (1,) * 12, Decision.REJECT, 4),
        ((1,) * 12, (1,) * 12, Decision.UNDECIDED, 12),
        ((None,) * 12, (1,) * 12, Decision.UNDECIDED, 0),
    ],
)
def test_sequential_stops_early_both_ways_and_leaves_a_tie_open(
    own: tuple[float | None, ...], now: tuple[float, ...], decision: Decision, used: int
):
    current, candidate = make_contender("u", number(*now)), make_contender("c", number(*own))
    verdict, count = replay(Sequential(), Gate(block=4), candidate, current, current, 0)
    assert (verdict.decision, count) == (decision, used)
    assert verdict.new_best == (decision is Decision.ACCEPT_NEW_BEST)


def test_sequential_leans_at_the_end_and_by_how_much_is_a_setting():
    """Two wins, one loss: better with 69 %, which is not clear before the end."""
    current, candidate = make_contender("u", number(0, 0, 1, 1)), make_contender("c", number(1, 1, 0, 1))
    for lean_at, decision in ((0.5, Decision.ACCEPT_NEW_BEST), (0.7, Decision.UNDECIDED)):
        verdict, _ = replay(Sequential(), Gate(lean_at=lean_at), candidate, current, current, 0)
        assert verdict.decision is decision
    strict = Gate(no_regression=True)
    assert replay(Sequential(), strict, candidate, current, current, 0)[0].decision is Decision.REJECT


def test_an_accepted_candidate_is_the_best_if_it_is_better_than_the_best_one_too():
    current, candidate = make_contender("u", number(0, 0, 0)), make_contender("c", number(1, 1, 0))
    best = make_contender("b", number(1, 1, 1))
    assert Sequential()(Gate(), candidate, current, best).decision is Decision.ACCEPT
    worse = make_contender("b", number(0, 0, 1))
    assert Sequential()(Gate(), candidate, current, worse).decision is Decision.ACCEPT_NEW_BEST


def test_each_decision_has_an_order_of_its_own():
    items = [f"item-{n}" for n in range(20)]
    orders = [Sequential().arrange(Gate(), Measure(""), items, seed) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == sorted(items)


def test_blocks_cover_all_items():
    assert list(split_blocks("abcde", 2)) == [("ab", "cde"), ("cd", "e"), ("e", "")]


def test_a_rule_that_needs_all_items_is_replayed_on_all():
    current = make_contender("u", number(1))
    assert replay(judge, Gate(), make_contender("c", number(0)), current, current, 0)[1] == 1


def test_an_incomplete_rule_says_what_it_lacks():
    current = make_contender("u", number(1))
    with pytest.raises(NotImplementedError, match="__call__"):
        EarlyRule()(Gate(), current, current, current)
    with pytest.raises(NotImplementedError, match="is_clear"):
        EarlyRule().is_clear(Gate(), current, current, ())
