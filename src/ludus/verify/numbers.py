"""Final numbers, compared as exact decimals.

The answer is searched in the places where people and models put it, in this order: after `####`, inside `\\boxed{…}`,
and the last number of the text. Thousands separators, currency signs, percent signs and a trailing full stop are
ignored: 18, 18.0 and $18.00 are the same number.
"""

import re
from decimal import Decimal

from ludus.types import Score

_NUMBER = r"-?\$?\s?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d)\.?)"
_PLACES = (
    re.compile(rf"####\s*({_NUMBER})"),
    re.compile(rf"\\boxed\{{\s*\$?\s*({_NUMBER})\s*(?:\\?%)?\s*\}}"),
    re.compile(rf"({_NUMBER})"),
)


def find_number(text: str) -> Decimal | None:
    """The number that `text` gives as its answer, if it gives one."""
    for place in _PLACES:
        found = [m for m in place.findall(text) if any(c.isdigit() for c in m)]
        if found:
            return Decimal(re.sub(r"[^\d.\-]", "", found[-1]).rstrip("."))
    return None


def compare_numbers(expected: str, got: str) -> Score:
    """1 if the final numbers are equal, else 0."""
    wanted, found = find_number(expected), find_number(got)
    if wanted is None:
        raise ValueError(f"the reference answer has no number: {expected!r}")
    if found is None:
        return Score.of(0.0, "The answer has no number in it.")
    if found == wanted:
        return Score.of(1.0, f"The answer {found} is right.")
    return Score.of(0.0, f"The answer is {found}; right is {wanted}.")
