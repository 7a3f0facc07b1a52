"""The gate: a candidate must be strictly better, on the items that have a score under both skills."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.encoding import canonical, to_json
from ludus.reflact.gate import (
    Contender,
    Decision,
    Gate,
    Mark,
    Measure,
    ScoreTally,
    beats,
    compare,
    compute_density,
    judge,
    project,
    resolve_metric,
    score,
)
from ludus.skill import GUIDANCE, Skill


def make_contender(name: str, *hards: float, soft: tuple[float, ...] | None = None, first: int = 0) -> Contender:
    """A skill with scores of the items `first`, `first + 1`, …"""
    skill = Skill(name)
    marks = {f"item-{first + n}": Mark(hard, soft[n] if soft else hard) for n, hard in enumerate(hards)}
    return Contender(skill, Measure(skill.hash, marks))


@pytest.mark.parametrize(
    ("candidate", "current", "best", "decision"),
    [
        (0.9, 0.8, 0.85, Decision.ACCEPT_NEW_BEST),
        (0.9, 0.8, 0.9, Decision.ACCEPT),
        (0.9, 0.8, 0.95, Decision.ACCEPT),
        (0.8, 0.8, 0.9, Decision.REJECT),
        (0.8, 0.8, 0.7, Decision.REJECT),
        (0.0, 0.0, 0.0, Decision.REJECT),
        (0.1, 0.0, 0.0, Decision.ACCEPT_NEW_BEST),
    ],
)
def test_a_candidate_must_be_strictly_better(candidate: float, current: float, best: float, decision: Decision):
    verdict = judge(Gate(), make_contender("c", candidate), make_contender("u", current), make_contender("b", best))
    assert verdict.decision is decision
    assert verdict.new_best == (decision is Decision.ACCEPT_NEW_BEST)
    assert (verdict.candidate, verdict.current, verdict.best) == (candidate, current, best)


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        (Gate(), 0.8),
        (Gate(metric="soft"), 0.4),
        (Gate(metric="mixed"), 0.6),
        (Gate(metric="mixed", mixed_weight=0.25), 0.7),
    ],
)
def test_metrics(gate: Gate, expected: float):
    assert project(gate, 0.8, 0.4) == pytest.approx(expected)


def test_a_gate_that_is_off_accepts_everything_but_the_best_stays_the_best():
    off = Gate(enabled=False)
    worse = judge(off, make_contender("c", 0.1), make_contender("u", 0.8), make_contender("b", 0.9))
    assert (worse.decision, worse.new_best) == (Decision.FORCE_ACCEPT, False)
    better = judge(off, make_contender("c", 1.0), make_contender("u", 0.8), make_contender("b", 0.9))
    assert (better.decision, better.new_best) == (Decision.FORCE_ACCEPT, True)


def test_candidate_and_current_are_compared_on_the_items_that_both_were_judged_on():
    """The candidate lost its hard items to an outage: that must not make it look better."""
    current = make_contender("u", 1, 1, 0, 0)
    candidate = make_contender("c", 1, 1)
    verdict = judge(Gate(), candidate, current, current)
    assert (verdict.decision, verdict.candidate, verdict.current, verdict.items) == (Decision.REJECT, 1.0, 1.0, 2)


def test_nothing_to_compare_is_undecided_and_not_a_rejection_by_zero():
    nothing = Contender(Skill("c"), Measure(Skill("c").hash, {}, failed=4))
    for candidate in (nothing, make_contender("c", 1, 1, first=10)):
        verdict = judge(Gate(), candidate, make_contender("u", 0, 0), make_contender("u", 0, 0))
        assert verdict.decision is Decision.UNDECIDED
        assert verdict.candidate is None
        assert not verdict.decision.accepted
    assert (
        judge(Gate(enabled=False), nothing, make_contender("u", 0), make_contender("u", 0)).decision
        is Decision.UNDECIDED
    )


def test_skills_are_compared_item_by_item_by_the_metric_of_the_gate():
    candidate, current = make_contender("c", 1, 1, 0, 1), make_contender("u", 0, 1, 1, 0, first=0)
    paired = compare(Gate(), candidate, current)
    assert paired is not None
    assert (paired.tasks, paired.difference, paired.wins, paired.losses) == (4, 0.25, 2, 1)
    assert compare(Gate(), make_contender("c", 1), make_contender("u", 1, first=5)) is None


def test_a_mark_of_one_rollout_has_the_form_of_earlier_versions():
    """Stored states are found by their hash: a field that is not set must not be in it."""
    assert to_json(Mark(1.0, 1.0)) == b'{"hard":1.0,"soft":1.0}' == canonical(Mark(1.0, 1.0))
    assert Mark(1.0, 1.0).rollouts == 1
    assert Mark(0.5, 0.5, 4).rollouts == 4 and b'"count":4' in canonical(Mark(0.5, 0.5, 4))


def test_a_margin_and_no_regression_make_the_gate_stricter():
    current, candidate = make_contender("u", 1, 0, 0, 0), make_contender("c", 0, 1, 1, 0)
    plain = judge(Gate(), candidate, current, current)
    assert (plain.decision, plain.worse) == (Decision.ACCEPT_NEW_BEST, ("item-0",))
    for gate in (Gate(margin=0.25), Gate(no_regression=True)):
        verdict = judge(gate, candidate, current, current)
        assert (verdict.decision, verdict.new_best) == (Decision.REJECT, False)
    assert judge(Gate(margin=0.24), candidate, current, current).decision is Decision.ACCEPT_NEW_BEST


def test_density_counts_leading_words_outside_of_protected_regions():
    text = "Always check the inputs and never mix up proxy values."
    assert compute_density(text) == pytest.approx(2 / 10)
    assert compute_density(f"{text}\n\n{GUIDANCE.start}\nmust must must\n{GUIDANCE.end}\n") == pytest.approx(2 / 10)
    assert compute_density("") == 0.0
    assert compute_density("Do it. DO it", ["do"]) == 0.5


def test_the_density_bonus_lets_a_candidate_win_at_equal_accuracy():
    current = make_contender("Check it.", 0.8)
    candidate = make_contender("Always check it.", 0.8)
    assert judge(Gate(), candidate, current, current).decision is Decision.REJECT
    dense = Gate(density=True)
    assert judge(dense, candidate, current, current).decision is Decision.ACCEPT_NEW_BEST
    assert score(dense, *candidate) == pytest.approx(0.8 + 0.05 / 3)


def test_a_measure_of_nothing_has_no_score():
    assert Measure("x").hard is None
    assert score(Gate(), Skill("x"), Measure("x")) is None


marks = st.builds(Mark, st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.3, 1.0]))
measures = st.dictionaries(st.sampled_from("abcdef"), marks)
gates = st.builds(
    Gate,
    metric=st.sampled_from(["hard", "soft", "mixed"]),
    density=st.booleans(),
    margin=st.sampled_from([0.0, 0.1]),
    no_regression=st.booleans(),
)


@settings(deadline=None)
@given(gates, measures, measures, measures)
def test_what_is_accepted_beats_the_current_one(
    gate: Gate, one: dict[str, Mark], two: dict[str, Mark], three: dict[str, Mark]
):
    candidate, current, best = [
        Contender(skill, Measure(skill.hash, m))
        for skill, m in ((Skill("c"), one), (Skill("u"), two), (Skill("b"), three))
    ]
    verdict = judge(gate, candidate, current, best)
    assert (verdict.decision is Decision.UNDECIDED) == (not one.keys() & two.keys())
    if verdict.decision.accepted:
        assert beats(gate, candidate, current)
        assert not (gate.no_regression and verdict.worse)
    if verdict.new_best:
        assert verdict.decision is Decision.ACCEPT_NEW_BEST
        assert beats(gate, candidate, best)


@settings(deadline=None)
@given(gates, measures)
def test_no_text_beats_itself(gate: Gate, its: dict[str, Mark]):
    same = Contender(Skill("c"), Measure(Skill("c").hash, its))
    assert not beats(gate, same, same)
    assert not judge(gate, same, same, same).decision.accepted


@pytest.mark.parametrize(
    ("metric", "scores", "chosen"),
    [
        ("auto", [], "hard"),
        ("auto", [(True, 1.0), (False, 0.0)] * 20, "hard"),
        ("auto", [(False, 0.57)], "soft"),
        ("auto", [(True, 1.0)] * 19 + [(False, 0.5)], "hard"),
        ("auto", [(True, 1.0)] * 9 + [(False, 0.5)], "soft"),
        ("hard", [(False, 0.57)] * 9, "hard"),
        ("mixed", [(True, 1.0)] * 9, "mixed"),
    ],
)
def test_the_metric_is_chosen_from_the_scores_unless_it_is_set(
    metric: Any, scores: list[tuple[bool, float]], chosen: str
):
    assert resolve_metric(Gate(metric=metric), ScoreTally().add(scores)).metric == chosen
