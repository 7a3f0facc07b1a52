"""Skills that do the same work: by their texts, and by what the agent does without one of them."""

from typing import Any

import pytest
from tests.library_kit import AGAIN, BAD, GOOD, build_library, make_pair, make_readings, make_skill, make_worth

from ludus.library.duplicates import compare_skills, group_candidates, judge_group, settle_groups

LINES = (
    "Open the form and read each of its fields.",
    "Fill in what the request names and nothing else.",
    "Save the form under a new name.",
)
FORMS, SHEETS = make_skill("forms", "forms", *LINES), make_skill("sheets", "sheets", "Sum the column with a formula.")
COPY = make_skill("forms-copy", "papers", *LINES[:2], "Save the form beside the old one.")


def compare(*skills: Any, **instead: Any):
    library = build_library(*skills)
    worths = {name: make_worth(name, (-0.1, 0.1), "not enough evidence", **instead) for name in library.names}
    tasks = dict.fromkeys(library.names, frozenset({"a"}))
    return compare_skills(library, worths, tasks)


def test_texts_with_the_same_words_are_alike_and_others_are_not():
    found = {(each.first, each.second): each.bodies for each in compare(FORMS, COPY, SHEETS, BAD)}
    assert found["forms", "forms-copy"] > 0.6
    assert max(value for pair, value in found.items() if pair != ("forms", "forms-copy")) < 0.3


def test_the_same_text_is_fully_alike_and_an_empty_one_is_like_nothing():
    twin, empty = make_skill("forms", "forms"), make_skill("none", "x")
    (same,) = compare(make_skill("a", "x", *LINES), make_skill("b", "x", *LINES))
    assert same.descriptions == pytest.approx(1.0) and same.bodies > 0.95 and same.same_tasks == 1.0
    (other,) = compare(twin, empty)
    assert 0.0 <= other.bodies < 0.6


def test_a_skill_that_takes_over_is_a_candidate_whatever_its_text():
    found = compare(SHEETS, BAD, instead={"beta-bad": 0.8})
    assert group_candidates(found, 0.6, frozenset()) == [["beta-bad", "sheets"]]
    assert group_candidates(found, 0.6, frozenset({"sheets"})) == []
    assert group_candidates(compare(SHEETS, BAD, instead={"beta-bad": 0.3}), 0.6, frozenset()) == []


def test_candidates_of_candidates_are_one_group():
    third = make_skill("forms-third", "forms", *LINES)
    assert group_candidates(compare(FORMS, COPY, third, SHEETS), 0.5, frozenset()) == [
        ["forms", "forms-copy", "forms-third"]
    ]


@pytest.mark.parametrize(
    ("alone", "together", "verdict"),
    [
        ((-0.05, 0.05), (0.2, 0.4), "one is enough"),
        ((-0.05, 0.15), (0.2, 0.4), "one is enough"),  # surely less than what both are worth
        ((-0.05, 0.3), (0.2, 0.4), "not enough evidence"),  # each may be needed on its own tasks
        ((-0.05, 0.05), (-0.1, 0.05), "none is needed"),
        ((-0.05, 0.05), (-0.1, 0.3), "not enough evidence"),
    ],
)
def test_skills_that_stand_for_each_other_are_judged_together(alone: Any, together: Any, verdict: str):
    skills = {name: make_worth(name, alone, "not enough evidence") for name in ("a", "b")}
    group = judge_group(["a", "b"], make_pair(*together), skills, 0.1)
    assert group.verdict == verdict


def test_the_one_that_is_loaded_most_is_kept_and_one_that_is_not_loaded_is_spare():
    skills = {
        "a": make_worth("a", None, "never loads", loads=0),
        "b": make_worth("b", (-0.05, 0.05), "below its price"),
        "c": make_worth("c", (-0.05, 0.05), "below its price", loads=90),
    }
    group = judge_group(["a", "b", "c"], make_pair(0.2, 0.4), skills, 0.1)
    assert group.skills == ("c", "b", "a") and group.verdict == "one is enough"
    assert [each.verdict for each in settle_groups(skills.values(), [group])] == [
        "never loads",
        "duplicate",
        "duplicate",
    ]


def test_a_skill_that_another_stands_in_for_is_not_called_worthless():
    skills = {
        "a": make_worth("a", (-0.05, 0.05), "below its price", instead={"b": 0.9}),
        "b": make_worth("b", (-0.05, 0.05), "below its price"),
    }
    group = judge_group(["a", "b"], None, skills, 0.1)
    first, second = settle_groups(skills.values(), [group])
    assert first.verdict == "not enough evidence" and "b is loaded instead" in first.sentence
    assert second.verdict == "below its price", "nobody stands in for it"


def test_kit_skills_are_no_duplicates_by_text_alone():
    assert group_candidates(compare(GOOD, AGAIN, BAD), 0.6, frozenset()) == []
    assert make_readings({}) == {}
