"""Labels that stay the same."""

import pytest

from ludus.reflact.ledger.situations import LONGEST, clean_label, find_label

KNOWN = ("the unit is missing in the answer", "stops after the first file", "rule 3 is missing")


@pytest.mark.parametrize(
    ("label", "found"),
    [
        ("the unit is missing in the answer", KNOWN[0]),
        ("Units missing in the answer", KNOWN[0]),
        ("unit_missing_answer", KNOWN[0]),
        ("stops after first file", KNOWN[1]),
        ("rule 13 is missing", "rule 13 is missing"),
        ("the unit is wrong", "the unit is wrong"),
        ("  a new\n cause ", "a new cause"),
    ],
)
def test_a_near_duplicate_is_the_known_label_and_another_number_is_not(label: str, found: str):
    assert find_label(label, KNOWN) == found


def test_the_nearest_known_label_wins():
    known = ("answer has no unit after number", "answer has no unit after the last number")
    assert find_label("the answer has no unit after the last numbers", known) == known[1]


def test_labels_are_short_and_on_one_line():
    assert len(clean_label("word " * 100)) <= LONGEST
    assert clean_label(" \n ") == ""
