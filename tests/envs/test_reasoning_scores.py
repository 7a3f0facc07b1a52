"""Which answers reasoning-gym may evaluate, and its scores."""

from pathlib import Path

import pytest

from ludus.envs.reasoning_scores import is_plain_expression


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("(3 + 4) * 2.5 / 7", True),
        ("x**2/2 + sin(3*x) + C", True),
        ("1e-3", True),
        ("-exp(-x)", True),
        ("__import__('os').system('true')", False),
        ("().__class__", False),
        ("open(1)", False),
        ("a.b", False),
        ("x[0]", False),
        ("'a'", False),
        ("lambda x", False),
        ("1 if x else 2", False),
    ],
)
def test_plain_expressions(text: str, plain: bool):
    assert is_plain_expression(text) is plain


def test_answers_are_not_run_as_code(tmp_path: Path):
    pytest.importorskip("reasoning_gym")
    from ludus.envs import reasoning_scores

    for generator in (*reasoning_scores.EVALUATED, "binary_matrix", "spiral_matrix", "string_insertion", "n_queens"):
        (index, question), *_ = reasoning_scores.sample(generator, 5, 0, 1)
        hostile = f"__import__('pathlib').Path('{tmp_path}/ran').touch() or 1"
        assert reasoning_scores.score(generator, 5, index, question, hostile) == 0.0
    assert list(tmp_path.iterdir()) == []


def test_another_question_is_not_scored():
    pytest.importorskip("reasoning_gym")
    from ludus.envs import reasoning_scores

    with pytest.raises(ValueError, match="another question"):
        reasoning_scores.score("gcd", 5, 0, "What is 1 + 1?", "2")
