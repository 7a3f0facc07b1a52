from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.verify.numbers import compare_numbers, find_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 42", "42"),
        ("so 3 + 4 = 7\n#### 1,234", "1234"),
        ("#### $18.00", "18"),
        ("#### -5", "-5"),
        ("first #### 1 then #### 2", "2"),
        (r"thus \boxed{12}", "12"),
        (r"\boxed{$1,000.50}", "1000.50"),
        ("#### 3, not \\boxed{4}", "3"),
        ("She has 5 apples, and then 7.", "7"),
        ("It costs $12.", "12"),
        ("0.5 litres", "0.5"),
        ("a total of 1,234,567 people", "1234567"),
        ("the answer is 25%", "25"),
        (".75", "0.75"),
    ],
)
def test_where_the_final_number_is_found(text: str, number: str):
    assert find_number(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "no number here", "####", "...", "-", "$"])
def test_no_number(text: str):
    assert find_number(text) is None


@given(st.integers(-(10**12), 10**12), st.text(alphabet="abc \n.,$", max_size=20))
def test_any_number_is_found_after_the_mark_whatever_stands_before(number: int, noise: str):
    assert find_number(f"{noise} 99 #### {number:,}") == number


@given(st.text(max_size=200))
def test_hostile_text_never_raises(text: str):
    find_number(text)


def test_scores_and_feedback():
    assert compare_numbers("#### 18", "It is $18.00.").passed
    wrong = compare_numbers("#### 18", "17")
    assert (wrong.value, wrong.feedback) == (0.0, "The answer is 17; right is 18.")
    assert compare_numbers("#### 18", "I do not know").feedback == "The answer has no number in it."
    with pytest.raises(ValueError, match="no number"):
        compare_numbers("eighteen", "18")
