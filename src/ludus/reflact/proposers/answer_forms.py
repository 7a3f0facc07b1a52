"""Find the form that right answers share, as a rule in words. Pure.

Given three or more right answers, `find_shared_form` finds the most specific form that all of them have: a few labels,
a number, a JSON object with the same keys, one line in parts, a last line with the same beginning, one short line. It
knows no other forms. Whether the rule helps is for the gate to decide.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MIN_ANSWERS = 3
"""The least number of answers. Fewer answers may look alike by chance."""
_LABELS, _SHORT = 6, 80
_SEPARATORS = ("|", "\t", ";", "/", ",", ":")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?")


@dataclass(frozen=True)
class AnswerForm:
    """A rule about answers, and a check whether an answer follows it."""

    rule: str
    matches: Callable[[str], bool]


def find_shared_form(answers: Sequence[str]) -> AnswerForm | None:
    """The most specific form that all answers have, if there is one."""
    texts = [answer.strip() for answer in answers]
    if len(texts) < MIN_ANSWERS or not all(texts):
        return None
    found = (find(texts) for find in (_find_labels, _find_number, _find_object, _find_parts, _find_ending, _find_line))
    return next((form for form in found if form is not None), None)


def _find_labels(texts: Sequence[str]) -> AnswerForm | None:
    counts = Counter(texts)
    if len(counts) > _LABELS or min(counts.values()) < 2 or max(map(len, texts)) > _SHORT:
        return None
    return AnswerForm(
        f"Answer with one of these and nothing else: {', '.join(sorted(counts))}.", lambda text: text in counts
    )


def _find_number(texts: Sequence[str]) -> AnswerForm | None:
    return _require_all(
        texts, AnswerForm("Answer with a number and nothing else.", lambda text: bool(_NUMBER.fullmatch(text)))
    )


def _find_object(texts: Sequence[str]) -> AnswerForm | None:
    keys = _parse_keys(texts[0])
    if not keys:
        return None
    rule = f"Answer with one JSON object with the keys {', '.join(keys)}, and nothing else."
    return _require_all(texts, AnswerForm(rule, lambda text: _parse_keys(text) == keys))


def _parse_keys(text: str) -> list[str] | None:
    try:
        value: Any = json.loads(text)
    except ValueError:
        return None
    return sorted(value) if isinstance(value, dict) else None  # pyright: ignore[reportUnknownArgumentType]


def _find_parts(texts: Sequence[str]) -> AnswerForm | None:
    for separator in _SEPARATORS:
        count = texts[0].count(separator)
        name = "a tab" if separator == "\t" else f"`{separator}`"
        rule = f"Answer with one line of {count + 1} parts with {name} between them, and nothing else."
        form = AnswerForm(rule, lambda text, s=separator, n=count: text.count(s) == n and "\n" not in text)
        if count and _require_all(texts, form):
            return form
    return None


def _find_ending(texts: Sequence[str]) -> AnswerForm | None:
    first = _get_last_line(texts[0]).split(" ")[0]
    if any("\n" not in text for text in texts):
        return None
    form = AnswerForm(
        f"End with a line that begins with `{first}`.", lambda text: _get_last_line(text).split(" ")[0] == first
    )
    return _require_all(texts, form)


def _get_last_line(text: str) -> str:
    return text.rsplit("\n", 1)[-1].strip()


def _find_line(texts: Sequence[str]) -> AnswerForm | None:
    form = AnswerForm(
        "Answer with one short line and nothing else.", lambda text: "\n" not in text and len(text) <= _SHORT
    )
    return _require_all(texts, form)


def _require_all(texts: Sequence[str], form: AnswerForm) -> AnswerForm | None:
    return form if all(map(form.matches, texts)) else None
