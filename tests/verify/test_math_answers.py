"""Mathematical answers: which part of a reply counts, and what is equal."""

import asyncio

import pytest

from ludus.errors import ConfigError
from ludus.verify.math_answers import compare_expressions, find_answer, find_boxed, require_math_verify


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed{1} or \\boxed{2}", "2"),
        ("\\fbox{3}", "3"),
        ("#### 7\nbye", "7"),
        ("it is 7", "it is 7"),
        ("\\boxed{1", "\\boxed{1"),
    ],
)
def test_the_answer_of_a_reply(text: str, answer: str):
    assert find_answer(text) == answer


def test_a_box_that_is_not_closed_is_no_box():
    assert find_boxed("\\boxed{{1}") is None


def test_equal_and_different_answers():
    pytest.importorskip("math_verify")
    table = [
        ("\\frac12", "0.5", 1.0),
        ("x^2+1", "so \\boxed{1+x^2}", 1.0),
        ("x^2+1", "so \\boxed{x^2}", 0.0),
        ("\\{1,2\\}", "\\boxed{\\{2,1\\}}", 1.0),
        ("(2,3)", "\\boxed{(3,2)}", 0.0),
        ("3\\sqrt{2}", "\\boxed{\\sqrt{18}}", 1.0),
        ("1,234", "1234", 1.0),
        ("3", "\\boxed{3} no \\boxed{4}", 0.0),
        ("3", "\\boxed{3, 4}", 0.0),
        ("42", "I do not know", 0.0),
        ("42", "", 0.0),
        ("3", "\\boxed{" + "3" * 5000 + "}", 0.0),
    ]
    found = [(gold, said, asyncio.run(compare_expressions(gold, said)).value) for gold, said, _ in table]
    assert found == table


def test_an_expression_that_takes_for_ever_is_no_score():
    pytest.importorskip("math_verify")
    asyncio.run(compare_expressions("1", "1"))  # the library is imported
    with pytest.raises(TimeoutError):
        asyncio.run(compare_expressions("3", "\\boxed{9^{9^{9^{9}}}}", seconds=0.5))


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ludus.verify.math_answers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"ludus-train\[math\]"):
        require_math_verify()
