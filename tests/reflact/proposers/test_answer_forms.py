"""The form that right answers share, as a rule."""

import pytest

from ludus.reflact.proposers.answer_forms import find_shared_form

FORM = "Answer with one line of 3 parts with `|` between them, and nothing else."


@pytest.mark.parametrize(
    ("answers", "rule", "kept", "broken"),
    [
        (["yes", "no", "yes", "no"], "Answer with one of these and nothing else: no, yes.", "no", "No way"),
        (["1", "2,000", "-3.5"], "Answer with a number and nothing else.", "17", "about 17"),
        (
            ['{"b": 1, "a": 2}', '{"a": 0, "b": 0}', '{"a": 7, "b": 8}'],
            "Answer with one JSON object with the keys a, b, and nothing else.",
            '{"a": 1, "b": 1}',
            '{"a": 1}',
        ),
        (["a|b|1", "c|d|2", "e|f|3"], FORM, "x|y|z", "x|y"),
        (
            ["so\n#### 1", "then\n\n#### 2", "thus\n#### 3"],
            "End with a line that begins with `####`.",
            "a\n#### 4",
            "4",
        ),
        (["a cat", "some dog", "the mouse"], "Answer with one short line and nothing else.", "an ox", "an\nox"),
    ],
)
def test_what_right_answers_share(answers: list[str], rule: str, kept: str, broken: str):
    form = find_shared_form(answers)
    assert form is not None
    assert form.rule == rule
    assert form.matches(kept) and not form.matches(broken)


@pytest.mark.parametrize("answers", [[], ["a|b", "c|d"], ["a|b", "c|d", ""], ["one\nline", "two\nrows here", "x" * 99]])
def test_nothing_shared_is_no_rule(answers: list[str]):
    assert find_shared_form(answers) is None
