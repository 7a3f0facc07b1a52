"""What is measured before training, and the advice that follows."""

import pytest
from tests.build import make_task
from tests.reflact_kit import make_result

from ludus.reflact.gate import Mark, Measure
from ludus.reflact.headroom import Headroom, add_hint, advise, assess, judge_outlook, list_hinted
from ludus.skill import Skill


def make_measure(*hards: float, failed: int = 0) -> Measure:
    return Measure("", {f"item-{n:02d}": Mark(hard, hard) for n, hard in enumerate(hards)}, failed)


def test_an_aa_run_measures_the_noise():
    found = assess(make_measure(*[1.0, 0.0] * 20), make_measure(*[0.0, 1.0] * 20, failed=1))
    assert found is not None
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


def test_only_references_in_words_are_hints_and_the_skill_keeps_its_text():
    tasks = [make_task(str(n), answer=answer) for n, answer in enumerate(["7", None, {"a": 1}, " ", "x" * 9999, "8"])]
    assert [task.id for task in list_hinted(tasks, 5)] == ["0", "5"]
    assert [task.id for task in list_hinted(tasks, 1)] == ["0"]
    assert add_hint(Skill("Be brief.\n"), tasks[0]).text.startswith("Be brief.\n\n")
    assert "7" in add_hint(Skill(""), tasks[0]).text


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
        (0.0, 0.1, 0.05, "out_of_reach", "even with the expected result in its instructions the agent passes only 5%"),
    ],
)
def test_the_advice(score: float, noise: float, hinted: float | None, outlook: str, words: str):
    found = make_headroom(score, noise, hinted)
    assert judge_outlook(found) == outlook
    assert words in advise(found)
