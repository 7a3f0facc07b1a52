"""Mathematical answers: which part of a reply counts, and what is equal."""

import pytest

from ludus.envs.math_answers import compare_expressions, find_answer, find_boxed, require_math_verify
from ludus.errors import ConfigError


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


async def test_equal_and_different_answers():
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
    found = [(gold, said, (await compare_expressions(gold, said)).value) for gold, said, _ in table]
    assert found == table


async def test_an_expression_that_takes_for_ever_is_no_score():
    pytest.importorskip("math_verify")
    await compare_expressions("1", "1")  # the library is imported
    with pytest.raises(TimeoutError):
        await compare_expressions("3", "\\boxed{9^{9^{9^{9}}}}", seconds=0.5)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ludus.envs.math_answers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"ludus-train\[math\]"):
        require_math_verify()


@pytest.mark.parametrize(
    ("expected", "problem", "said", "value"),
    [
        ("x^2 + 5x - 24", "Expand $(x - 3)(x + 8)$.", "Expand $(x - 3)(x + 8)$.", 0.0),
        ("x^2 + 5x - 24", "Expand $(x - 3)(x + 8)$.", "\\boxed{(x-3)(x+8)}", 0.0),
        ("x^2 + 5x - 24", "Expand $(x - 3)(x + 8)$.", "\\boxed{x^2+8x-3x-24}", 1.0),
        ("\\sqrt{3}", "Which is larger, $\\sqrt{3}$ or $\\sqrt{2}$?", "\\boxed{\\sqrt 3}", 1.0),
        ("5", "What is $10 - 5$?", "#### 5", 1.0),
    ],
)
async def test_the_problem_itself_is_no_answer(expected: str, problem: str, said: str, value: float):
    pytest.importorskip("math_verify")
    assert (await compare_expressions(expected, said, problem=problem)).value == value
