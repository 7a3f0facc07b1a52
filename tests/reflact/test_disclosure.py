"""Budgets for each level of a package."""

from ludus.reflact.disclosure import apply_within, list_levels
from ludus.reflact.train_settings import PackageSettings
from ludus.skill import Edit, Skill, SkillFile

SKILL = Skill(
    "---\nname: a\ndescription: Twelve chars\n---\n\n0123456789abcdef",
    (SkillFile("r.md", "0123"), SkillFile("scripts/x.py", "print()" * 50), SkillFile("x.bin", "", b"\xff")),
)


def test_levels_are_what_an_agent_reads_at_once():
    assert {level.name: level.tokens for level in list_levels(SKILL)} == {"description": 3, "SKILL.md": 4, "r.md": 1}


def test_an_edit_that_takes_a_level_above_its_budget_is_not_made():
    limits = PackageSettings(body_tokens=6, file_tokens=3)
    edits = [
        Edit("append", "01"),
        Edit("append", "0123456789"),
        Edit("append", "0123", path="r.md"),
        Edit("append", "0123456789", path="r.md"),
        Edit("write", "print()" * 90, path="scripts/x.py"),
    ]
    changed, reports = apply_within(SKILL, edits, limits)
    assert [report.applied for report in reports] == [True, False, True, False, True]
    assert reports[1].status == "skipped_over_budget"
    assert changed.read("r.md") == "0123\n\n0123\n"


def test_what_is_too_large_already_may_shrink():
    _, [report] = apply_within(SKILL, [Edit("delete", "", "abcdef")], PackageSettings(body_tokens=1))
    assert report.applied
