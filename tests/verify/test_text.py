import pytest

from ludus.verify.text import compare_texts


@pytest.mark.parametrize(
    ("expected", "got", "value"),
    [
        ("hello", "hello\n", 1.0),
        ("a\nb", "  a\nb  ", 1.0),
        ("hello", "well, hello there", 0.5),
        ("hello", "Hello", 0.0),
        ("hello", "", 0.0),
        ("", "anything", 0.0),
        ("", "", 1.0),
    ],
)
def test_same_text(expected: str, got: str, value: float):
    score = compare_texts(expected, got)
    assert score.value == value
    assert score.passed is (value == 1.0)
    assert score.feedback


def test_feedback_stays_short():
    assert len(compare_texts("x", "y" * 10_000).feedback) < 300
