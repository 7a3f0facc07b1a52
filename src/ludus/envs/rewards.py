"""Reads the reward that a verifier has written to a file: a number, or JSON.

    1          0.857          true          {"reward": 0.5, "style": 1}

A JSON object names several rewards. The one called `reward` is the score; without it, their mean is. A score is a
number from 0 to 1. Any other number is not a reward.
"""

import json
import math
from typing import Any, cast

from ludus.errors import VerifierError
from ludus.types import Score


def read_reward(text: str, feedback: str = "") -> Score:
    """The score that the text says.

    Raises:
        VerifierError: it is neither a number nor an object of numbers, or it is not from 0 to 1. Not retryable.
    """
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        value = text.strip()
    parts: dict[str, float] = {}
    if isinstance(value, dict):
        parts = {name: _read_number(each, text) for name, each in cast(dict[str, Any], value).items()}
        if not parts:
            raise VerifierError("the reward is an empty object", retryable=False)
        return Score.of(_check_range(parts.get("reward", sum(parts.values()) / len(parts))), feedback, parts=parts)
    return Score.of(_check_range(_read_number(value, text)), feedback)


def _check_range(number: float) -> float:
    if not 0.0 <= number <= 1.0:
        raise VerifierError(f"the reward is {number:g}; a reward is a number from 0 to 1", retryable=False)
    return number


def _read_number(value: object, text: str) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        shown = " ".join(text.split())[:80]
        raise VerifierError(f"the reward is neither a number nor an object of numbers: '{shown}'", retryable=False)
    return number
