"""What is measured before training, and the advice that follows."""

import pytest
from msgspec import structs
from tests.build import make_rollout, make_task
from tests.reflact_kit import make_result

from ludus.reflact.gate import Gate, Mark, Measure
from ludus.reflact.headroom import Headroom, add_hint, advise, assess, judge_outlook, list_hinted
from ludus.reflact.headroom_command import tally_tasks
from ludus.reflact.train_settings import ShippingSettings
from ludus.reflact.weights_outlook import RlPlanSizes, foresee_weights
from ludus.skill import Skill
from ludus.types import Rollout, Score


def make_measure(*hards: float, failed: int = 0) -> Measure:
    return Measure("", {f"item-{n:02d}": Mark(hard, hard) for n, hard in enumerate(hards)}, failed)


def test_an_aa_run_measures_the_noise():
    found = assess(make_measure(*[1.0, 0.0] * 20), make_measure(*[0.0, 1.0] * 20, failed=1))
    assert found is not None and found.smallest_effect is not None and found.tasks_needed is not None
    assert (found.tasks, found.score, found.difference, found.changed, found.failed) == (40, 0.5, 0.0, 1.0, 1)
    quiet = assess(make_measure(*[1.0, 0.0] * 20), make_measure(*[1.0, 0.0] * 20))
    assert quiet is not None and quiet.noise < found.noise < found.smallest_effect
    assert found.tasks_needed > 40 and quiet.hinted is None
    assert assess(make_measure(1.0), Measure("")) is None


def test_rollouts_with_hints_bound_the_gain():
    hinted = [make_result(f"t{n}", n < 8) for n in range(10)] + [make_result("t11", None)]
    found = assess(make_measure(*[0.0] * 20), make_measure(*[0.0] * 20), hinted, [make_result("t0", False)])
    assert found is not None
    assert (found.hinted, found.unhinted, found.hints, found.room) == (0.8, 0.0, 10, 0.8)


def test_with_graded_scores_partial_credit_counts():
    graded = Measure("", {f"item-{n:02d}": Mark(0.0, 0.5) for n in range(20)})
    found = assess(graded, graded, [make_graded("t0", 0.7)], [make_graded("t0", 0.5)], Gate(metric="soft"))
    assert found is not None and (found.score, found.hinted, found.metric) == (0.5, 0.7, "soft")
    assert found.room == pytest.approx(0.2) and judge_outlook(found) != "out_of_reach"
    assert "the agent has a score of 0.50 already" in advise(structs.replace(found, hinted=0.5))
    assert "has a score of 0.50" in advise(found) or "at most 20" in advise(found)


def make_graded(task: str, value: float) -> Rollout:
    return make_rollout(Score(value, False, value), task=make_task(task))


def test_scores_that_differ_are_what_rl_learns_from():
    rollouts = [make_graded(f"t{n % 4}", value) for n, value in enumerate([0.2, 0.5, 0.2, 0.6, 0.4, 0.5, 0.7, 0.6])]
    tallies = tally_tasks(rollouts, 0.63)
    assert [(t.scored, t.passed, t.unequal) for t in tallies] == [(2, 0, 1), (2, 0, 0), (2, 1, 1), (2, 0, 0)]
    found = foresee_weights(tallies, RlPlanSizes(10, 4, 2), 100.0, 0.63)
    assert found is not None and found.spread >= 0.5 and found.success_at == 0.63


def test_only_references_in_words_are_hints_and_the_skill_keeps_its_text():
    tasks = [make_task(str(n), answer=answer) for n, answer in enumerate(["7", None, {"a": 1}, " ", "x" * 9999, "8"])]
    assert [task.id for task in list_hinted(tasks, 5)] == ["0", "5"]
    assert [task.id for task in list_hinted(tasks, 1)] == ["0"]
    assert add_hint(Skill("Be brief.\n"), tasks[0]).text.startswith("Be brief.\n\n")
    assert "7" in add_hint(Skill(""), tasks[0]).text


def test_shipping_shows_what_one_comparison_could_not():
    few = make_measure(0.0, 1.0, 0.0, 0.0), make_measure(0.0, 0.0, 0.0, 0.0)
    one, several = assess(*few), assess(*few, shipping=ShippingSettings(), passes=15)
    assert one is not None and several is not None
    assert (judge_outlook(one), judge_outlook(several)) == ("too_noisy", "promising")
    assert "train.selection_replicates" in advise(one), "of the recipe reflact"
    assert "shipping on 4 selection tasks shows gains of" in advise(several)
    fewest = assess(make_measure(0.0, 0.0), make_measure(0.0, 0.0), shipping=ShippingSettings(), passes=30)
    assert fewest is not None and fewest.smallest_effect is None and judge_outlook(fewest) == "too_noisy"
    assert "2 selection tasks cannot show the 100 points" in advise(fewest)
    assert "selection_replicates" not in advise(fewest)


def make_headroom(score: float, noise: float, hinted: float | None) -> Headroom:
    return Headroom(
        tasks=40, rollouts=80, failed=0, score=score, interval=None, difference=0.0, changed=0.2, noise=noise,
        smallest_effect=1.43 * noise, tasks_needed=400, hinted=hinted, unhinted=0.0, hints=16,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("score", "noise", "hinted", "outlook", "words"),
    [
        (0.3, 0.1, 0.9, "promising", "Worth it: the agent passes 30%, up to 60 points"),
        (0.3, 0.1, None, "promising", "up to 70 points"),
        (0.98, 0.1, None, "no_room", "Hardly worth it: the agent passes 98% already, and at most 2 points"),
        (0.6, 0.1, 0.62, "no_room", "at most 2 points"),
        (0.8, 0.2, None, "too_noisy", "use about 400 selection rollouts"),
        (0.0, 0.1, 0.05, "out_of_reach", "even with the expected result in its instructions the agent only passes 5%"),
    ],
)
def test_the_advice(score: float, noise: float, hinted: float | None, outlook: str, words: str):
    found = make_headroom(score, noise, hinted)
    assert judge_outlook(found) == outlook
    assert words in advise(found)
