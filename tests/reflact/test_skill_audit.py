"""Which passages earn their tokens, where it is known what each does."""

from random import Random

import pytest

from ludus.reflact.ledger.passages import Passage
from ludus.reflact.skill_audit import AuditReading, adjust_chances, audit_passages, sample_texts
from ludus.skill import Skill

PASSAGES = [Passage(f"P{n}", f"Passage {n}, which says something.") for n in range(1, 9)]


def simulate(rollouts: int = 1600, tasks: int = 40, seed: int = 0) -> list[AuditReading]:
    """P1 adds 25 points, P2 costs 20, the others do nothing. Tasks differ much."""
    random = Random(seed)
    levels = [random.uniform(0.2, 0.6) for _ in range(tasks)]
    readings: list[AuditReading] = []
    for place in range(rollouts):
        present = frozenset(passage.id for passage in PASSAGES if random.random() > 0.25)
        chance = levels[place % tasks] + 0.25 * ("P1" in present) - 0.2 * ("P2" in present)
        readings.append(AuditReading(f"t{place % tasks}", present, float(random.random() < chance)))
    return readings


def test_what_helps_and_what_hurts_is_told_with_its_size():
    found = audit_passages(PASSAGES, simulate(), failed=3)
    verdicts = {each.id: each for each in found.passages}
    assert verdicts["P1"].verdict == "helps" and verdicts["P2"].verdict == "hurts"
    assert [verdicts[f"P{n}"].verdict for n in range(3, 9)] == ["not told"] * 6
    for id, truth in (("P1", 0.25), ("P2", -0.2)):
        interval = verdicts[id].interval
        assert interval is not None and interval.low < truth < interval.high
    assert (
        verdicts["P2"].sentence.startswith("This passage of yours costs ") and "leave it out" in verdicts["P2"].sentence
    )
    assert found.summary.startswith("8 passages: helps 1, hurts 1, cannot be told 6.")
    assert (found.rollouts, found.failed, found.tasks) == (1603, 3, 40)


def test_with_many_useless_passages_hardly_any_verdict_is_by_chance():
    wrong = sum(
        any(
            each.verdict in ("helps", "hurts")
            for each in audit_passages(PASSAGES[2:], simulate(240, 24, seed)).passages
        )
        for seed in range(40)
    )
    assert wrong <= 6, "5 % of the audits, give or take"


@pytest.mark.parametrize("tasks", [2, 3, 5])
def test_few_tasks_give_no_more_verdicts_by_chance_than_many(tasks: int):
    audits = [audit_passages(PASSAGES[2:], simulate(120, tasks, seed)) for seed in range(40)]
    assert sum(any(each.verdict in ("helps", "hurts") for each in found.passages) for found in audits) <= 6
    assert f"only {tasks} tasks" in audits[0].summary


def test_adjusted_chances_are_holms():
    assert adjust_chances([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert adjust_chances([]) == []


def test_too_few_rollouts_tell_nothing():
    found = audit_passages(PASSAGES, simulate(8, 8))
    assert {each.verdict for each in found.passages} == {"not told"}
    assert "more rollouts" in found.passages[0].sentence


def test_texts_lack_random_passages_and_are_the_same_every_time():
    skill = Skill("# Rules\n\n" + "\n".join(f"- {passage.text}" for passage in PASSAGES) + "\n")
    one = sample_texts(skill, PASSAGES, 50, 7)
    assert one == sample_texts(skill, PASSAGES, 50, 7)
    for text, present in one:
        assert {p.id for p in PASSAGES if p.text in text.text} == present
