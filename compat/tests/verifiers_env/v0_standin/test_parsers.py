"""Parsers of verifiers 0.1: by table, and beside the package's on random texts."""

import random
from typing import Any

import pytest

from ludus.compat.verifiers_env.v0_standin import parsers as ours

PIECES = [
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "<code>",
    "</code>",
    "\\boxed{",
    "}",
    "{",
    "4",
    " ",
    "\n",
    "####",
]


def make_texts() -> list[str]:
    dice = random.Random(0)
    return ["".join(dice.choices(PIECES, k=dice.randint(0, 9))) for _ in range(400)]


@pytest.mark.parametrize(
    ("text", "strict", "found"),
    [
        ("a \\boxed{1} b \\boxed{{2}}", False, "{2}"),
        ("none", False, "none"),
        ("none", True, ""),
        ("\\boxed{open", True, ""),
    ],
)
def test_what_is_in_a_box(text: str, strict: bool, found: str):
    assert ours.extract_boxed_answer(text, strict=strict) == found


def test_tags_are_read_and_written():
    parser = ours.XMLParser(["think", ("code", "answer")])
    said = "<think>\nhm\n</think>\n<answer> 4 </answer>"
    parsed = parser.parse(said)
    assert (parsed.think, parsed.code, parsed.answer) == ("hm", None, "4")
    assert parser.parse_answer([{"role": "assistant", "content": said}, {"role": "user", "content": "x"}]) == "4"
    assert parser.format(think="hm", answer=4) == "<think>\nhm\n</think>\n<code>\n4\n</code>"
    assert parser.get_format_str() == "<think>\n...\n</think>\n<[ code | answer ]>\n...\n</[ code | answer ]>"
    with pytest.raises(ValueError, match="'think' has no value"):
        parser.format(code="x")
    with pytest.raises(ValueError, match="two fields have the name 'a'"):
        ours.XMLParser(["a", ("a", "b")])


def make_parsers(package: Any) -> list[Any]:
    return [
        package.Parser(),
        package.ThinkParser(),
        package.MaybeThinkParser(),
        package.XMLParser(["think", "answer"]),
        package.XMLParser([("code", "answer"), "think"], answer_field="think"),
    ]


def test_parsers_are_those_of_the_package():
    pytest.importorskip("verifiers.rubrics", reason="verifiers 0.1.14 is not installed")
    package = pytest.importorskip("verifiers")
    for own, known in zip(make_parsers(ours), make_parsers(package), strict=True):
        rate_own, rate_known = own.get_format_reward_func(), known.get_format_reward_func()
        for text in make_texts():
            said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]
            assert own.parse(text) == known.parse(text)
            assert own.parse_answer(said) == known.parse_answer(said) and own.parse_answer(text) == known.parse_answer(
                text
            )
            assert rate_own(completion=said) == pytest.approx(rate_known(completion=said))
    for text in make_texts():
        for strict in (True, False):
            assert ours.extract_boxed_answer(text, strict=strict) == package.extract_boxed_answer(text, strict=strict)
        assert ours.extract_hash_answer(text) == package.extract_hash_answer(text)
