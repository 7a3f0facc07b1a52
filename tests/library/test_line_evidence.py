"""Evidence about passages: measured, found in earlier runs, or none."""

from random import Random

from tests.library_kit import make_skill

from ludus.library.line_evidence import add_evidence, judge_passages, list_unmeasured, normalize
from ludus.reflact.ledger.passages import list_passages
from ludus.reflact.skill_audit import AuditReading
from ludus.skill import SkillFile

SKILL = make_skill("two", "x", "For one kind.", "For nothing.", files=(SkillFile("more.md", "A line of a file.\n"),))


def test_what_was_not_measured_is_said_to_be_so():
    found = list_unmeasured("two", SKILL)
    assert [(each.text, each.path, each.verdict) for each in found] == [
        ("- For one kind.", "", "not measured"),
        ("- For nothing.", "", "not measured"),
        ("A line of a file.", "more.md", "not measured"),
    ]


def test_a_passage_that_helps_one_kind_of_tasks_alone_is_supported():
    random = Random(0)
    readings: list[tuple[str, AuditReading]] = []
    for kind in ("a", "b"):
        for task in range(20):
            for _ in range(12):
                present = frozenset(p for p in ("P1", "P2", "P3") if random.random() < 0.75)
                chance = 0.85 if kind == "a" and "P1" in present else 0.35
                score = float(random.random() < chance)
                readings.append((kind, AuditReading(f"{kind}{task}", present, score)))
    first, second, third = judge_passages("two", list_passages(SKILL), readings)
    assert (first.verdict, first.kinds, first.source) == ("helps", ("a",), "this run")
    assert second.kinds == third.kinds == () and second.verdict != "helps"


def test_what_this_run_has_measured_counts_more_than_an_earlier_one():
    passages = list_passages(SKILL)
    measured = judge_passages("two", passages, [])
    earlier = {normalize(each.text): ("helps", 0.1, None) for each in passages}
    assert add_evidence(measured, "before", earlier) == measured
    found = add_evidence(
        list_unmeasured("two", SKILL), "before", {normalize("*  For one kind."): ("hurts", -0.1, None)}
    )
    assert [each.verdict for each in found] == ["hurts", "not measured", "not measured"]
