"""Proposed queries: marked, without copies of descriptions, and near misses that name no right skill."""

import pytest

from ludus.catalogue import SkillCard, make_catalogue
from ludus.envs.triggers import QueryRow
from ludus.triggers.query_proposals import (
    QueryReply,
    copies_description,
    find_neighbours,
    list_done_skills,
    measure_overlap,
    sort_reply,
)

DESCRIPTION = "Fills the fields of PDF forms and flattens them."


def test_rows_are_marked_and_a_near_miss_says_only_that_the_skill_is_wrong():
    reply = QueryReply(("Complete my visa application.",), ("Merge two PDF files.",))
    right, near = sort_reply(reply, "forms", DESCRIPTION, 5, ()).rows
    assert (right.query, right.skill, right.wrong, right.source) == (reply.should[0], "forms", (), "proposed")
    assert (near.skill, near.wrong, near.source) == (None, ("forms",), "proposed")


def test_copies_and_known_requests_are_dropped_and_counted():
    reply = QueryReply(
        ("Please do this: fills the fields of PDF forms!", "Complete  it.", "complete IT", "x" * 1001, " ", "New one."),
        ("Hello there",),
    )
    found = sort_reply(reply, "forms", DESCRIPTION, 6, ["hello, THERE"])
    assert [row.query for row in found.rows] == ["Complete it.", "New one."]
    assert (found.copied, found.known) == (1, 4)


def test_no_more_than_were_asked_for():
    assert len(sort_reply(QueryReply(("One.", "Two.", "Three.")), "forms", DESCRIPTION, 2, ()).rows) == 2


@pytest.mark.parametrize(
    ("query", "overlap"),
    [
        ("Flattens PDF forms", 1.0),
        ("Complete the visa application", 0.0),
        ("Do it", 0.0),
        ("forms, papers", 0.5),
    ],
)
def test_the_overlap_is_the_share_of_long_words_that_the_description_has(query, overlap):
    assert measure_overlap(query, DESCRIPTION) == overlap


def test_five_words_in_a_row_are_a_copy_and_four_are_not():
    assert copies_description("Now: FILLS the fields of PDF", DESCRIPTION)
    assert not copies_description("It fills the fields of paper", DESCRIPTION)


def test_neighbours_are_the_skills_with_the_most_common_words():
    catalogue = make_catalogue(
        [
            SkillCard("forms", DESCRIPTION),
            SkillCard("pages", "Splits forms and merges them with other forms."),
            SkillCard("sheets", "Sums columns."),
            SkillCard("web", "Fills forms in a browser; fields too."),
        ]
    )
    assert find_neighbours(catalogue, "forms") == ["web", "pages"]


def test_skills_that_have_proposed_rows_are_done():
    rows = [
        QueryRow("a", skill="forms", source="proposed"),
        QueryRow("b", wrong=("web",), source="proposed"),
        QueryRow("c", skill="sheets"),  # a person's
    ]
    assert list_done_skills(rows) == {"forms", "web"}
