"""Labels of situations: a list that grows, with a check against near-duplicates. Pure.

Two labels are the same if they have the same words, up to case, order, plural endings and words such as "the". Labels
with nearly the same words count as the same too, but not if they differ in a number or a name with digits.
"""

import re
from collections.abc import Collection, Mapping
from functools import lru_cache

LONGEST = 120
"""The number of characters of a label that are kept."""
_ALIKE = 0.75
"""The share of common words from which two labels are the same."""
_SMALL = frozenset(
    ("a", "an", "and", "are", "as", "at", "by", "for", "from", "in", "is", "it", "of", "on", "or", "the", "to", "with")
)


def clean_label(label: str) -> str:
    """A label on one line, not longer than is kept; empty if it has no word."""
    return " ".join(label.split())[:LONGEST].strip() if re.search(r"\w", label) else ""


def find_label(label: str, known: Collection[str], merged: Mapping[str, str] | None = None) -> str:
    """The known label that this one is a near-duplicate of, or that it was merged into, or else the label itself,
    cleaned."""
    label = clean_label(label)
    if merged and label in merged:
        return merged[label]
    if label in known:
        return label
    words, numbers = _split_words(label)
    best, closeness = label, 0.0
    for other in known:
        others, other_numbers = _split_words(other)
        if numbers != other_numbers:
            continue
        share = len(words & others) / len(words | others) if words | others else 1.0
        if share >= _ALIKE and share > closeness:
            best, closeness = other, share
    return best


@lru_cache(maxsize=4096)  # each new label is compared with all known ones
def _split_words(label: str) -> tuple[frozenset[str], frozenset[str]]:
    """The words of a label without small ones, and those of them with digits."""
    found = re.findall(r"\w+", label.casefold().replace("_", " "))
    words = frozenset(_remove_plural(word) for word in found if word not in _SMALL) or frozenset(found)
    return words, frozenset(word for word in words if any(letter.isdigit() for letter in word))


def _remove_plural(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
