"""Short answers in words: exact match, token F1 and ANLS, as question-answering benchmarks score them.

The answer of a reply is what the last pair of `<answer>` tags contains, else its last line. Every measure takes the
best of several right answers. `hard` decides whether a task passes, `soft` is partial credit.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from ludus.types import Score

_TAGS = re.compile(r"<answer>(.*?)</answer>", re.S | re.I)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_UNITS = frozenset(
    {
        *("thousand", "million", "billion", "trillion", "thousands", "millions", "billions", "trillions"),
        *("dollar", "dollars", "usd", "percent", "percentage", "points"),
    }
)
ANLS_LIMIT = 0.5
"""A text that differs in this share of its characters, or more, has no credit."""
ANLS_PASS = 0.999


def find_final_answer(text: str, *, tags_only: bool = False) -> str:
    """The answer in a reply: in the last tags, else the last line with words (nothing if `tags_only`)."""
    if found := _TAGS.findall(text):
        return found[-1].strip()
    if tags_only:
        return ""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


# ---- normal forms ---------------------------------------------------------------------------------------------------


def normalize_words(text: str) -> str:
    """As SQuAD does: lower case, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def normalize_figures(text: str) -> str:
    """For figures with units: lower case, no commas and punctuation but points and signs, no unit words."""
    words = re.sub(r"[^\w.\-\s]|_", "", text.lower().replace("−", "-")).split()
    kept = [word.rstrip(".") for word in words if word.rstrip(".") not in _UNITS]
    return " ".join(word for word in kept if word)


# ---- measures -------------------------------------------------------------------------------------------------------


def compute_f1(expected: str, got: str, normalize: Callable[[str], str] = normalize_words) -> float:
    """The harmonic mean of precision and recall of tokens."""
    wanted, found = normalize(expected).split(), normalize(got).split()
    common = (Counter(wanted) & Counter(found)).total()
    if not common:
        return float(wanted == found)
    precision, recall = common / len(found), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def compute_anls(expected: str, got: str) -> float:
    """1 less the edit distance in shares of the longer text; 0 from `ANLS_LIMIT` on."""
    wanted, found = (" ".join(text.lower().split()) for text in (expected, got))
    if not wanted or not found:
        return float(wanted == found)
    if len(found) > 2 * len(wanted) + 1 and len(found) > 1000:
        return 0.0  # too long to be near; the distance would take long to compute
    distance = compute_edit_distance(wanted, found) / max(len(wanted), len(found))
    return 1 - distance if distance < ANLS_LIMIT else 0.0


def compute_edit_distance(first: str, second: str) -> int:
    """Levenshtein's distance."""
    row = list(range(len(second) + 1))
    for number, letter in enumerate(first, 1):
        previous, row[0] = row[0], number
        for place, other in enumerate(second, 1):
            cost = min(row[place] + 1, row[place - 1] + 1, previous + (letter != other))
            previous, row[place] = row[place], cost
    return row[-1]


# ---- scores ---------------------------------------------------------------------------------------------------------


def compare_answers(
    golds: Sequence[str], got: str, normalize: Callable[[str], str] = normalize_words, *, tags_only: bool = False
) -> Score:
    """Hard: equal to one of the answers in normal form. Soft: the best token F1."""
    answer = find_final_answer(got, tags_only=tags_only)
    if not answer:
        return _make_score(0.0, 0.0, answer, golds)
    hard = float(any(normalize(answer) == normalize(gold) for gold in golds))
    return _make_score(hard, 1.0 if hard else max(compute_f1(g, answer, normalize) for g in golds), answer, golds)


def compare_readings(golds: Sequence[str], got: str) -> Score:
    """Hard: ANLS of at least 0.999. Soft: the best ANLS."""
    answer = find_final_answer(got)
    soft = max(compute_anls(gold, answer) for gold in golds) if answer else 0.0
    return _make_score(float(soft >= ANLS_PASS), soft, answer, golds)


def _make_score(hard: float, soft: float, answer: str, golds: Sequence[str]) -> Score:
    if not answer:
        return Score(0.0, False, 0.0, "There is no answer.")
    shown = answer if len(answer) <= 200 else answer[:200] + "…"
    verdict = "right" if hard else f"wrong; right is {' or '.join(golds[:3])}"
    return Score(hard, bool(hard), soft, f"The answer {shown!r} is {verdict}.", {"hard": hard, "soft": soft})
