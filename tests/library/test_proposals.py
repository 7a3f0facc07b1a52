"""Proposals: what they remove and write, and that nothing is dropped in silence."""

from typing import Any

import pytest
from tests.library_kit import BAD, GOOD, IDLE, UNUSED, build_library, make_pair, make_skill, make_worth

from ludus.errors import ConfigError
from ludus.library.duplicates import DuplicateGroup
from ludus.library.line_evidence import PassageEvidence, list_unmeasured
from ludus.library.proposals import LibraryChange, apply_changes, propose_changes
from ludus.skill import Skill, SkillFile
from ludus.skill_library import SkillLibrary, make_package


def propose(library: SkillLibrary, verdicts: dict[str, Any], **fields: Any) -> list[LibraryChange]:
    skills = [make_worth(name, (-0.1, 0.1), verdicts.get(name, "helps")) for name in library.names]
    return propose_changes(library, skills, fields.get("groups", ()), fields.get("lines", ()))


@pytest.mark.parametrize(
    ("verdict", "proposed"),
    [
        ("hurts", True),
        ("below its price", True),
        ("never loads", True),
        ("helps", False),
        ("not enough evidence", False),
        ("not known", False),
        ("duplicate", False),
    ],
)
def test_what_is_retired(verdict: Any, proposed: bool):
    library = build_library(GOOD, BAD)
    changes = propose(library, {"beta-bad": verdict})
    assert [change.removed for change in changes] == ([("beta-bad",)] if proposed else [])
    assert apply_changes(library, changes).names == (("alpha-good",) if proposed else library.names)


ONE = make_skill("one", "x", "Open it first.", "Then save it.", files=(SkillFile("a.md", "A\n"),))
TWO = make_skill("two", "x", "Open   it first.", "Close the window.", files=(SkillFile("b.md", "B\n"),))


def merge(*skills: Skill) -> tuple[SkillLibrary, LibraryChange]:
    library = build_library(*skills, GOOD)
    names = tuple(make_package(skill).name for skill in skills)
    group = DuplicateGroup(skills=names, worth=make_pair(0.2, 0.4), verdict="one is enough", sentence="Alike.")
    (change,) = propose(library, dict.fromkeys(names, "duplicate"), groups=[group])
    return library, change


def test_a_merge_keeps_one_and_takes_over_what_only_the_other_has():
    library, change = merge(ONE, TWO)
    after = apply_changes(library, [change])
    assert change.action == "merge" and change.removed == ("two",) and after.names == ("alpha-good", "one")
    merged = after.get("one").skill
    assert merged.text.count("Open") == 1 and "- Close the window." in merged.text
    assert merged.paths == ("SKILL.md", "a.md", "b.md")
    assert "2 passages or files" in change.reason


def test_a_merge_of_equal_texts_writes_nothing():
    twin = make_skill("twin", "y", "Open it first.", "Then save it.")
    _, change = merge(make_skill("one", "x", "Open it first.", "Then save it."), twin)
    assert change.written == () and change.removed == ("twin",)


def test_a_file_of_the_same_path_is_kept_as_it_is():
    other = make_skill("two", "x", "Open it first.", files=(SkillFile("a.md", "Other\n"),))
    library, change = merge(ONE, other)
    assert apply_changes(library, [change]).get("one").skill.read("a.md") == "A\n"


def measured(skill: Skill, **verdicts: Any) -> list[PassageEvidence]:
    from msgspec.structs import replace

    name = make_package(skill).name
    return [
        replace(each, verdict=verdicts[each.id][0], kinds=verdicts[each.id][1]) if each.id in verdicts else each
        for each in list_unmeasured(name, skill)
    ]


SECTIONS = Skill(
    "---\nname: office\ndescription: For forms and sheets.\n---\n\n# Office\n\nBe exact in all of it.\n\n"
    "## Forms\n\n- Fill each field.\n- See forms.md.\n\n## Sheets\n\n- Use formulas.\n",
    (SkillFile("forms.md", "F\n"), SkillFile("shared.md", "S\n")),
)


def test_a_document_whose_sections_help_different_kinds_is_split():
    lines = measured(SECTIONS, P2=("helps", ("form",)), P4=("helps", ("sheet",)))
    library = build_library(SECTIONS)
    (change,) = propose(library, {}, lines=lines)
    after = apply_changes(library, [change])
    assert change.action == "split" and after.names == ("office-forms", "office-sheets")
    forms, sheets = after.packages
    assert "Fill each field" in forms.skill.text and "Use formulas" not in forms.skill.text
    assert "Be exact" in forms.skill.text and "Be exact" in sheets.skill.text
    assert forms.skill.paths == ("SKILL.md", "forms.md", "shared.md")
    assert sheets.skill.paths == ("SKILL.md", "shared.md")
    assert "Forms, for form" in forms.description


@pytest.mark.parametrize(
    "verdicts",
    [
        {"P2": ("helps", ("form",)), "P4": ("helps", ("form", "sheet"))},  # a kind in common
        {"P2": ("helps", ("form",))},  # nothing is known of the other section
        {},
    ],
)
def test_a_document_is_not_split_without_evidence(verdicts: Any):
    assert propose(build_library(SECTIONS), {}, lines=measured(SECTIONS, **verdicts)) == []


def test_a_split_that_would_take_the_name_of_another_skill_is_not_proposed():
    taken = make_skill("office-forms", "x", "Something else.")
    lines = measured(SECTIONS, P2=("helps", ("form",)), P4=("helps", ("sheet",)))
    assert propose(build_library(SECTIONS, taken), {}, lines=lines) == []


def test_passages_that_harm_or_do_nothing_are_trimmed_and_unknown_ones_stay():
    skill = make_skill("long", "x", "Helps.", "Hurts.", "Small.", "Unknown.", "Open.")
    verdicts = {f"P{n}": (verdict, ()) for n, verdict in enumerate(("helps", "hurts", "small", "not told"), 1)}
    (change,) = propose(build_library(skill), {}, lines=measured(skill, **verdicts))
    text = change.written[0].skill.text
    assert change.action == "trim" and "Hurts." not in text and "Small." not in text
    assert all(word in text for word in ("Helps.", "Unknown.", "Open."))


def test_a_skill_is_in_one_proposal_at_most():
    lines = measured(BAD, P1=("hurts", ()))
    changes = propose(build_library(GOOD, BAD, IDLE, UNUSED), {"beta-bad": "hurts"}, lines=lines)
    assert [(change.id, change.action) for change in changes] == [("C1", "retire")]


def test_changes_that_would_make_two_of_one_name_are_refused_when_they_are_applied():
    package = make_package(GOOD)
    twice = LibraryChange(id="C1", action="split", skills=("x",), removed=(), written=(package,), reason="")
    assert apply_changes(build_library(BAD), [twice]).names == ("alpha-good", "beta-bad")
    with pytest.raises(ConfigError):
        make_package(Skill("no head"))
