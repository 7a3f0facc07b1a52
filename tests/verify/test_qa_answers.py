"""Answers in words: which part counts, normal forms, and the measures with values by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.verify.qa_answers import (
    compare_answers,
    compare_readings,
    compute_anls,
    compute_edit_distance,
    compute_f1,
    find_final_answer,
    normalize_figures,
    normalize_words,
)


@pytest.mark.parametrize(
    ("text", "answer", "tagged"),
    [
        ("<answer>a</answer> no <answer> b\n</answer> ok", "b", "b"),
        ("I think\nParis \n\n", "Paris", ""),
        ("", "", ""),
        ("<answer>open", "<answer>open", ""),
    ],
)
def test_the_answer_of_a_reply(text: str, answer: str, tagged: str):
    assert find_final_answer(text) == answer
    assert find_final_answer(text, tags_only=True) == tagged


def test_normal_forms():
    assert normalize_words("The  Quick, (brown) fox's an") == "quick brown foxs"
    assert normalize_figures("$1,234.5 million.") == normalize_figures("1234.5") == "1234.5"
    assert normalize_figures("−3 percent") == "-3"


@pytest.mark.parametrize(
    ("gold", "got", "f1"),
    [
        ("the big apple", "Big Apple", 1.0),
        ("new york city", "york", 0.5),
        ("a b c d", "c d e f", 0.5714),
        ("x", "y", 0.0),
    ],
)
def test_token_f1(gold: str, got: str, f1: float):
    assert compute_f1(gold, got) == pytest.approx(f1, abs=1e-4)


@pytest.mark.parametrize(
    ("gold", "got", "anls"),
    [("Invoice 12", "invoice  12", 1.0), ("invoice", "invoise", 6 / 7), ("abcd", "abxy", 0.0), ("abc", "", 0.0)],
)
def test_anls(gold: str, got: str, anls: float):
    assert compute_anls(gold, got) == pytest.approx(anls)


@given(st.text("abc", max_size=8), st.text("abc", max_size=8), st.text("abc", max_size=8))
def test_the_edit_distance_is_a_distance(a: str, b: str, c: str):
    assert (compute_edit_distance(a, b) == 0) is (a == b)
    assert compute_edit_distance(a, b) == compute_edit_distance(b, a)
    assert compute_edit_distance(a, c) <= compute_edit_distance(a, b) + compute_edit_distance(b, c)


def test_scores():
    best = compare_answers(["New York", "NYC"], "<answer>nyc!</answer>")
    assert (best.value, best.passed, best.soft) == (1.0, True, 1.0)
    part = compare_answers(["New York City"], "York City")
    assert (part.value, part.passed, round(part.soft, 2)) == (0.0, False, 0.8)
    assert compare_answers(["x"], "x", tags_only=True).value == 0.0
    near = compare_readings(["invoice"], "<answer>invoise</answer>")
    assert (near.value, near.passed) == (0.0, False) and 0.8 < near.soft < 0.9
    assert compare_readings(["a"], "").feedback == "There is no answer."
    assert compare_readings(["a"], "b" * 100_000).soft == 0.0
