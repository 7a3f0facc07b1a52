"""What is shipped, and what is claimed."""

import dataclasses
import re
from types import SimpleNamespace

import pytest
from tests.reflact_kit import make_run

from ludus.reflact.gate import Gate, Mark, Measure, pair_marks
from ludus.reflact.records import MeasuredSkill, ShipCandidate, Shipment
from ludus.reflact.shipping import (
    choose_winner,
    compute_claim_interval,
    count_test_uses,
    explain_kept,
    explain_rule,
    is_clear,
    judge_candidate,
    keep_better_half,
    make_claim,
    raise_bar,
    ship,
    ship_best,
)
from ludus.reflact.train_settings import ShippingRule, ShippingSettings, TrainSettings
from ludus.skill import Skill
from ludus.stats import PairedStats, compare_pairs

BAD, GOOD, HALF = Skill("# Skill\n"), Skill("Obey RULE-0. Obey RULE-1. Obey RULE-2."), Skill("Obey RULE-0.")


HARD = Gate(metric="hard")


def make_candidate(skill: Skill) -> MeasuredSkill:
    return MeasuredSkill(skill, "step_0001", 1)


def judge(difference: float, certainty: float, text: str = "x", transfer: float = 1.0) -> ShipCandidate:
    skill = Skill(text)
    return ShipCandidate(
        origin="step", step=1, skill=skill, measure=Measure(skill.hash), difference=difference, better=1, worse=0,
        certainty=certainty, transfer=transfer,
    )  # fmt: skip


# ---- choosing -------------------------------------------------------------------------------------------------------


async def test_a_better_skill_is_shipped_after_one_pass_if_that_is_sure(world: SimpleNamespace):
    found = await ship(make_run(world), BAD, [make_candidate(GOOD), make_candidate(HALF)], HARD)
    assert (found.shipped, found.rollouts) == (GOOD.hash, 18)
    assert [(c.better, c.worse, c.difference) for c in found.candidates] == [(6, 0, 1.0), (2, 0, pytest.approx(1 / 3))]
    assert found.initial.hard == 0.0


async def test_what_is_not_better_is_not_shipped_and_not_measured_any_further(world: SimpleNamespace):
    found = await ship(make_run(world), GOOD, [make_candidate(BAD)], HARD)
    assert (found.shipped, found.rollouts) == ("", 12), "one pass"
    (loser,) = found.candidates
    assert (loser.better, loser.worse, loser.difference) == (0, 6, -1.0)


async def test_what_makes_no_difference_is_measured_until_the_passes_are_over(world: SimpleNamespace):
    same = Skill("# Skill\n\nWork with care.")
    found = await ship(make_run(world), BAD, [make_candidate(same)], HARD)
    assert (found.shipped, found.rollouts) == ("", 120), "ten passes of six tasks: sixty pairs"
    two = make_run(world, shipping=ShippingSettings(passes=2))
    assert (await ship(two, BAD, [make_candidate(same)], HARD)).rollouts == 24
    limited = await ship(make_run(world), BAD, [make_candidate(same)], HARD, 300)
    assert limited.rollouts == 300, "with a limit, as long as it lasts"


async def test_graded_scores_are_compared_as_they_are(world: SimpleNamespace):
    run = make_run(world)
    hard = await ship(run, BAD, [make_candidate(HALF)], HARD, 12)
    soft = await ship(run, BAD, [make_candidate(HALF)], Gate(metric="soft"), 12)
    assert (hard.metric, soft.metric) == ("hard", "soft")
    assert 0 < soft.candidates[0].difference < hard.candidates[0].difference


async def test_the_initial_skill_and_copies_are_no_candidates(world: SimpleNamespace):
    found = await ship(make_run(world), BAD, [make_candidate(BAD), make_candidate(BAD)], HARD)
    assert (found.candidates, found.shipped, found.rollouts) == ((), "", 0)


@pytest.mark.parametrize(("allowance", "rollouts"), [(0, 0), (5, 4), (12, 12), (17, 16)])
async def test_an_allowance_is_kept_and_a_part_of_a_pass_is_continued(
    world: SimpleNamespace, allowance: int, rollouts: int
):
    found = await ship(make_run(world), BAD, [make_candidate(HALF)], HARD, allowance)
    assert found.rollouts == rollouts
    assert sum(mark.count or 1 for mark in found.initial.marks.values()) == rollouts // 2


@pytest.mark.parametrize(("allowance", "candidates"), [(None, 2), (30, 2), (29, 1), (3, 1), (0, 1)])
async def test_few_rollouts_are_not_divided_between_several_candidates(
    world: SimpleNamespace, allowance: int | None, candidates: int
):
    found = await ship(make_run(world), BAD, [make_candidate(HALF), make_candidate(GOOD)], HARD, allowance)
    assert [each.skill for each in found.candidates] == [HALF, GOOD][:candidates]


@pytest.mark.parametrize(
    ("pairs", "better", "worse", "difference"),
    [({}, 0, 0, 0.0), ({"a": [1.0, 0.0], "b": [0.0], "c": [-1.0, -1.0]}, 1, 1, -1 / 6)],
)
def test_a_task_counts_once_however_often_it_was_run(
    pairs: dict[str, list[float]], better: int, worse: int, difference: float
):
    judged = judge_candidate(make_candidate(GOOD), Measure(GOOD.hash), pairs)
    assert (judged.better, judged.worse, judged.difference) == (better, worse, pytest.approx(difference))
    assert judged.certainty <= 0.5 and judged.transfer <= 0.5


@pytest.mark.parametrize(("certainty", "transfer", "clear"), [
    (0.999, 0.9, True), (0.99, 0.99, False), (0.999, 0.7, False), (0.02, 0.4, True), (0.5, 0.5, False),
])  # fmt: skip
def test_measuring_ends_when_more_rollouts_would_change_nothing(certainty: float, transfer: float, clear: bool):
    assert is_clear(judge(0.1, certainty, transfer=transfer)) is clear


def test_the_winner_has_the_largest_difference_and_must_be_certain():
    assert choose_winner([judge(0.2, 0.95, "a"), judge(0.3, 0.92, "b")], 0.9) == judge(0.3, 0.92, "b")
    assert choose_winner([judge(0.3, 0.89)], 0.9) is None
    assert choose_winner([judge(-0.1, 0.95)], 0.9) is None
    assert choose_winner([judge(0.3, 0.99, transfer=0.7)], 0.9) is None, "other tasks must be likely to gain, too"
    assert choose_winner([], 0.9) is None
    assert (raise_bar(0.9, 1), raise_bar(0.95, 3)) == (pytest.approx(0.9), pytest.approx(0.975))
    kept = keep_better_half([make_candidate(s) for s in (BAD, GOOD, HALF)], [judge(d, 0.5) for d in (0.0, 0.3, 0.1)])
    assert [each.skill for each in kept] == [GOOD, HALF]


def test_tasks_without_a_score_under_both_are_missing_data():
    one = Measure(GOOD.hash, {"a": Mark(1.0, 1.0), "b": Mark(1.0, 1.0)})
    other = Measure(BAD.hash, {"b": Mark(0.0, 0.5), "c": Mark(0.0, 0.0)})
    assert pair_marks(Gate(), one, other) == [1.0]
    assert pair_marks(Gate(metric="mixed"), one, other) == [0.75]


# ---- the rule `best` ------------------------------------------------------------------------------------------------


def make_measured(skill: Skill, *hard: float) -> MeasuredSkill:
    marks = {str(number): Mark(value, value) for number, value in enumerate(hard)}
    return MeasuredSkill(skill, "step_0001", 1, Measure(skill.hash, marks))


def test_the_best_skill_on_the_selection_split_is_shipped_however_few_tasks_say_so():
    found = ship_best(Gate(), make_measured(BAD, 0.0, 0.0), make_measured(GOOD, 1.0, 0.0))
    assert (found.shipped, found.fresh, found.rollouts) == (GOOD.hash, False, 0)
    assert [(each.better, each.worse) for each in found.candidates] == [(1, 0)]
    same = ship_best(Gate(), make_measured(BAD, 0.0), make_measured(BAD, 0.0))
    assert (same.shipped, same.candidates) == ("", ())


@pytest.mark.parametrize(("rule", "tasks", "warned"), [("certain", 2, True), ("certain", 3, False), ("best", 1, False)])
def test_too_few_tasks_to_ship_anything_are_warned_of(rule: ShippingRule, tasks: int, warned: bool):
    settings = TrainSettings(recipe="reflact", shipping=ShippingSettings(rule=rule))
    warning = explain_rule(settings, tasks)
    assert (": --train.shipping.rule best" in warning and f"{tasks} selection tasks" in warning) is warned
    assert "--recipe reflact --train.shipping.rule best" in explain_rule(TrainSettings(), 1)
    assert "below 1" in explain_rule(TrainSettings(shipping=ShippingSettings(certainty=1.0)), 40)


# ---- the claim ------------------------------------------------------------------------------------------------------


def compare_claim(differences: list[float]) -> PairedStats | None:
    return compare_pairs(differences, compute_claim_interval)


def test_the_interval_is_honest_where_all_tasks_agree():
    found = compare_claim([1.0] * 10)
    assert found is not None and found.difference == 1.0
    assert 0.5 < found.interval.low < 0.8 and found.interval.high == 1.0
    same = compare_claim([0.0] * 10)
    assert same is not None and same.interval.low == -same.interval.high < 0
    assert compare_claim([]) is None


def test_the_interval_agrees_with_the_usual_one_for_many_tasks():
    found = compare_claim([1.0] * 300 + [-1.0] * 100 + [0.0] * 600)
    assert found is not None and found.difference == pytest.approx(0.2)
    assert (found.interval.low, found.interval.high) == (
        pytest.approx(0.163, abs=0.002),
        pytest.approx(0.237, abs=0.002),
    )


@pytest.mark.parametrize(
    ("wins", "losses", "uses", "sentence", "gain"),
    [
        (30, 2, 1, r"\+44 points \[\+28, \+5\d\] on 64 test tasks", True),
        (30, 2, 3, r"\+44 points .* on 64 test tasks \(test split used 3 times\)", True),
        (8, 6, 1, r"\+3 points \[-\d+, \+1\d\] on 64 test tasks: no difference that could be told from chance", False),
        (0, 30, 1, r"-47 points .*: worse than the initial skill", False),
    ],
)
def test_the_claim_is_one_plain_sentence(wins: int, losses: int, uses: int, sentence: str, gain: bool):
    differences = [1.0] * wins + [-1.0] * losses + [0.0] * (64 - wins - losses)
    claim = make_claim(GOOD, compare_claim(differences), uses=uses)
    assert re.fullmatch(sentence, claim.sentence), claim.sentence
    assert (claim.is_better, claim.tasks, claim.test_uses) == (gain, 64, uses)


def test_the_claim_says_how_few_tasks_there_were_and_what_it_is_about():
    claim = make_claim(GOOD, compare_claim([0.3] * 5), metric="soft", passed=0.2)
    assert re.fullmatch(r"\+30 points of score \[.*\] on only 5 test tasks \(passed: \+20\): no .*", claim.sentence)
    assert (claim.metric, claim.passed) == ("soft", 0.2)


def test_claims_without_a_test_or_a_new_skill():
    assert make_claim(BAD, None, kept="nobody tried", uses=1).sentence == "nobody tried; the initial skill stays"
    assert make_claim(GOOD, None).sentence.endswith("nothing can be claimed")


def test_a_run_that_ships_nothing_says_why():
    initial, tried = Measure(BAD.hash), judge_candidate(MeasuredSkill(GOOD, "step_0001", 1), Measure(GOOD.hash), {})
    assert explain_kept(Shipment(initial=initial, shipped=GOOD.hash)) == ""
    assert "canary" in explain_kept(Shipment(initial=initial, shipped=GOOD.hash), forged=True)
    assert "selection split" in explain_kept(Shipment(initial=initial, fresh=False))
    assert "without a change" in explain_kept(Shipment(initial=initial))
    assert "nothing was measured" in explain_kept(Shipment(candidates=(tried,), initial=initial))
    assert "chance" in explain_kept(Shipment(candidates=(tried,), initial=initial, rollouts=8))


def test_uses_of_the_test_split_are_counted_once_for_the_same_skill(world: SimpleNamespace):
    run = make_run(world)
    assert [count_test_uses(run, skill) for skill in (GOOD, GOOD, HALF)] == [1, 1, 2]
    others = dataclasses.replace(run, tested_before=frozenset({GOOD.hash, "another"}))
    assert count_test_uses(others, HALF) == 3
