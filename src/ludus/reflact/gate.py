"""May the candidate replace the current skill? Pure.

A `Measure` is what rollouts said of one text, item by item; items whose rollouts failed are not in it, and nothing else
can be asked for that text's score. The gate projects a measure on one number (`hard`: the share that passed, `soft`:
the mean partial credit, `mixed`: between them; on request with a small bonus for documents dense in words of command)
and accepts a candidate whose number is strictly higher. Candidate and current are compared on the items that both were
judged on. If there are none there is nothing to compare, and the decision is `undecided`: a failure is not a zero.

What the gate does not do is test significance: with few items a strict "higher" is right little more often than a coin
is. `margin` and `no_regression` make it stricter; the sealed test split says what was really gained.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field

from ludus.skill import Skill, remove_regions

LEADING_WORDS = (
    "must", "always", "never", "only", "critical", "important", "resolve", "prefer", "ensure", "strict", "verify",
)  # fmt: skip

Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class Gate(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How candidates are judged."""

    enabled: bool = True
    """Off: every candidate becomes the current skill. The best one is still the one with the highest score."""
    metric: Literal["hard", "soft", "mixed"] = "hard"
    """`hard`: the share of items that passed. `soft`: mean partial credit. `mixed`: a weighted mean of both."""
    mixed_weight: Share = 0.5
    """The weight of `soft` in `mixed`."""
    density: bool = False
    """Add a bonus for the share of leading words (MUST, NEVER, …) in the document."""
    density_weight: float = 0.05
    """What that share is multiplied with."""
    leading_words: tuple[str, ...] = LEADING_WORDS
    """The words that count for `density`."""
    margin: Annotated[float, Meta(ge=0.0)] = 0.0
    """How much higher than the current score a candidate's must be."""
    no_regression: bool = False
    """Also refuse a candidate that does worse on any single item."""
    rule: str = ""
    """A rule of your own instead of the built-in one: `module:name` or `file.py:name` (`docs/extending.md`)."""

    added: ClassVar[tuple[str, ...]] = ("rule",)


METRICS = {"hard": "passed", "soft": "partial credit", "mixed": "mixed"}
"""What the gate's number is, in words."""


class Decision(StrEnum):
    """What became of a candidate."""

    ACCEPT = "accept"
    """Better than the current skill: it is the current one now."""
    ACCEPT_NEW_BEST = "accept_new_best"
    """Better than the current skill and than the best so far."""
    REJECT = "reject"
    FORCE_ACCEPT = "force_accept"
    """The gate is off."""
    UNDECIDED = "undecided"
    """No item was judged under both texts; the current skill stays."""

    @property
    def accepted(self) -> bool:
        return self in (Decision.ACCEPT, Decision.ACCEPT_NEW_BEST, Decision.FORCE_ACCEPT)


class Mark(Struct, frozen=True):
    """How an item went, as the mean over its judged rollouts."""

    hard: float
    soft: float


class Measure(Struct, frozen=True):
    """What rollouts said of one text."""

    skill: str
    """The hash of the text that was measured, and of no other."""
    marks: Mapping[str, Mark] = field(default_factory=dict[str, Mark])
    """By item."""
    failed: int = 0
    """Rollouts that the world broke, after all retries; they say nothing about the text."""

    @property
    def hard(self) -> float | None:
        return mean([mark.hard for mark in self.marks.values()])

    @property
    def soft(self) -> float | None:
        return mean([mark.soft for mark in self.marks.values()])


class Verdict(Struct, frozen=True):
    """A decision and the numbers behind it; None where there was nothing to compare."""

    decision: Decision
    candidate: float | None
    """On the items that candidate and current share; on all of its own if the gate is off."""
    current: float | None
    best: float | None
    items: int
    """How many items candidate and current share."""
    new_best: bool = False
    """The candidate is the best so far; only one that was accepted can be."""
    worse: tuple[str, ...] = ()
    """Items that the candidate does worse on."""


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def project(gate: Gate, hard: float, soft: float) -> float:
    """The pair as one number."""
    if gate.metric == "hard":
        return hard
    if gate.metric == "soft":
        return soft
    return (1.0 - gate.mixed_weight) * hard + gate.mixed_weight * soft


def compute_density(text: str, words: Iterable[str] = LEADING_WORDS) -> float:
    """The share of leading words among the words of a document, protected regions left out."""
    found = re.findall(r"[a-z0-9]+", remove_regions(text).lower())
    leading = {word.lower() for word in words}
    return sum(word in leading for word in found) / len(found) if found else 0.0


def score(gate: Gate, skill: Skill, measure: Measure, items: Iterable[str] | None = None) -> float | None:
    """The number that the gate compares, on all judged items or on some; None if that is none."""
    marks = list(measure.marks.values()) if items is None else [measure.marks[item] for item in items]
    hard, soft = mean([m.hard for m in marks]), mean([m.soft for m in marks])
    if hard is None or soft is None:
        return None
    bonus = gate.density_weight * compute_density(skill.text, gate.leading_words) if gate.density else 0.0
    return project(gate, hard, soft) + bonus


Contender = tuple[Skill, Measure]

Rule = Callable[[Gate, Contender, Contender, Contender], Verdict]
"""Decides about a candidate, as `judge` does: called with the gate, the candidate, the current skill and the best."""


def judge(gate: Gate, candidate: Contender, current: Contender, best: Contender) -> Verdict:
    """Whether the candidate replaces the current skill, and whether it is the best so far."""
    shared = _find_shared(candidate[1], current[1])
    worse = tuple(item for item in shared if _is_worse(candidate[1].marks[item], current[1].marks[item]))
    own = score(gate, *candidate, shared if gate.enabled else None)
    now = score(gate, *current, shared)
    decision = decide(gate, own, now, new_best=beats(gate, candidate, best), worse=bool(worse))
    new_best = decision.accepted and beats(gate, candidate, best)
    best_score = score(gate, *best, _find_shared(candidate[1], best[1]))
    return Verdict(decision, own, now, best_score, len(shared), new_best, worse)


def _is_worse(candidate: Mark, current: Mark) -> bool:
    return candidate.hard < current.hard or candidate.soft < current.soft


def decide(
    gate: Gate, candidate: float | None, current: float | None, *, new_best: bool, worse: bool = False
) -> Decision:
    """The rule itself: strictly higher, or not at all."""
    if not gate.enabled:
        return Decision.UNDECIDED if candidate is None else Decision.FORCE_ACCEPT
    if candidate is None or current is None:
        return Decision.UNDECIDED
    if not candidate > current + gate.margin or (gate.no_regression and worse):
        return Decision.REJECT
    return Decision.ACCEPT_NEW_BEST if new_best else Decision.ACCEPT


def beats(gate: Gate, one: Contender, other: Contender) -> bool:
    """Whether one is strictly better than the other on the items that both were judged on."""
    shared = _find_shared(one[1], other[1])
    left, right = score(gate, *one, shared), score(gate, *other, shared)
    return left is not None and right is not None and left > right


def _find_shared(one: Measure, other: Measure) -> list[str]:
    return sorted(one.marks.keys() & other.marks.keys())
