"""What right answers have in common, as a rule in words. Pure.

Given three or more right answers, `shared_form` finds the narrowest form that all of them have: a few labels, a number,
a JSON object with the same keys, one line in parts, a last line that begins alike, one short line. It knows no others,
and it does not know why answers look alike: that is for the gate to find out.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

ENOUGH = 3
"""So many answers make a form; fewer are alike by chance."""
_LABELS, _SHORT = 6, 80
_SEPARATORS = ("|", "\t", ";", "/", ",", ":")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?")


@dataclass(frozen=True)
class Form:
    """A rule about answers, and whether an answer keeps to it."""

    rule: str
    kept_by: Callable[[str], bool]


def shared_form(answers: Sequence[str]) -> Form | None:
    """The narrowest form that all of the answers have, if there is one."""
    texts = [answer.strip() for answer in answers]
    if len(texts) < ENOUGH or not all(texts):
        return None
    found = (find(texts) for find in (_labels, _number, _object, _parts, _ending, _line))
    return next((form for form in found if form is not None), None)


def _labels(texts: Sequence[str]) -> Form | None:
    counts = Counter(texts)
    if len(counts) > _LABELS or min(counts.values()) < 2 or max(map(len, texts)) > _SHORT:
        return None
    return Form(f"Answer with one of these and nothing else: {', '.join(sorted(counts))}.", lambda text: text in counts)


def _number(texts: Sequence[str]) -> Form | None:
    return _if_all(texts, Form("Answer with a number and nothing else.", lambda text: bool(_NUMBER.fullmatch(text))))


def _object(texts: Sequence[str]) -> Form | None:
    keys = _keys(texts[0])
    if not keys:
        return None
    rule = f"Answer with one JSON object with the keys {', '.join(keys)}, and nothing else."
    return _if_all(texts, Form(rule, lambda text: _keys(text) == keys))


def _keys(text: str) -> list[str] | None:
    try:
        value: Any = json.loads(text)
    except ValueError:
        return None
    return sorted(value) if isinstance(value, dict) else None  # pyright: ignore[reportUnknownArgumentType]


def _parts(texts: Sequence[str]) -> Form | None:
    for separator in _SEPARATORS:
        count = texts[0].count(separator)
        name = "a tab" if separator == "\t" else f"`{separator}`"
        rule = f"Answer with one line of {count + 1} parts with {name} between them, and nothing else."
        form = Form(rule, lambda text, s=separator, n=count: text.count(s) == n and "\n" not in text)
        if count and _if_all(texts, form):
            return form
    return None


def _ending(texts: Sequence[str]) -> Form | None:
    first = _last_line(texts[0]).split(" ")[0]
    if any("\n" not in text for text in texts):
        return None
    form = Form(f"End with a line that begins with `{first}`.", lambda text: _last_line(text).split(" ")[0] == first)
    return _if_all(texts, form)


def _last_line(text: str) -> str:
    return text.rsplit("\n", 1)[-1].strip()


def _line(texts: Sequence[str]) -> Form | None:
    form = Form("Answer with one short line and nothing else.", lambda text: "\n" not in text and len(text) <= _SHORT)
    return _if_all(texts, form)


def _if_all(texts: Sequence[str], form: Form) -> Form | None:
    return form if all(map(form.kept_by, texts)) else None
