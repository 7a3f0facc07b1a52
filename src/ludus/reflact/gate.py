"""The gate: decide whether a candidate replaces the current skill. Pure.

A `Measure` holds the scores of one text, item by item. Items whose rollouts failed are not in it. The gate reduces a
measure to one number (`hard`: the share that passed, `soft`: the mean score, `mixed`: a weighted mean of both; `auto`
is one of the first two, see `resolve_metric`; optionally with a small bonus for documents with many words such as MUST
and NEVER). It accepts a candidate whose number is strictly higher. Candidate and current skill are compared on the
items that have a score under both. If there are no such items the decision is `undecided`: a failure is not a zero.

This rule does not test for significance. With few items, a strictly higher number is little better than a coin flip.
`margin` and `no_regression` make the gate stricter. `ludus.reflact.early_gates` has rules that decide before all items
are measured. Whatever the rule, the verdict has the paired difference and its interval (`compare`). The sealed test
split shows the real gain.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, NamedTuple

from msgspec import UNSET, Meta, Struct, UnsetType, field, structs

from ludus.settings import UsedIf
from ludus.skill import Skill, remove_regions
from ludus.stats import PairedStats, compare_pairs
from ludus.types import Count

LEADING_WORDS = (
    "must", "always", "never", "only", "critical", "important", "resolve", "prefer", "ensure", "strict", "verify",
)  # fmt: skip

Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class Gate(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How candidates are judged."""

    enabled: bool = True
    """If false, every candidate becomes the current skill. The best skill is still the one with the highest score."""
    metric: Literal["auto", "hard", "soft", "mixed"] = "auto"
    """The score that must rise, and that is claimed. `hard`: the share of items that passed. `soft`: the mean score,
    with partial credit. `mixed`: a weighted mean of both. `auto`: with the recipe `ledger`, `soft` if the verifier
    gives graded scores, else `hard`; with `reflact`, `hard`, as SkillOpt does."""
    mixed_weight: Share = 0.5
    """The weight of `soft` in `mixed`."""
    density: bool = False
    """Add a bonus for the share of leading words (MUST, NEVER, …) in the document."""
    density_weight: float = 0.05
    """The factor for that share."""
    leading_words: tuple[str, ...] = LEADING_WORDS
    """The words that count for `density`."""
    margin: Annotated[float, Meta(ge=0.0)] = 0.0
    """A candidate's score must be higher than the current score by more than this."""
    no_regression: bool = False
    """Also reject a candidate that is worse on any single item."""
    rule: str = ""
    """How a candidate is judged. `mean` (the default): its score on all items must be strictly higher. `curtailed`: the
    same decisions, but a candidate that cannot be accepted any more is not measured to the end. `sequential`: block by
    block, until it is clear enough which skill is better. Or a rule of your own: `module:name` or `file.py:name`
    (`docs/extending.md`)."""
    block: Count = 8
    """For `curtailed` and `sequential`: the number of items between two looks at the scores. The items of a block run
    side by side."""
    accept_at: Share = 0.8
    """For `sequential`: accept as soon as the candidate is better with this probability."""
    reject_at: Share = 0.25
    """For `sequential`: reject as soon as the candidate is better with at most this probability."""
    lean_at: Share = 0.5
    """For `sequential`: when all rollouts are used, accept a candidate that is better with more than this probability.
    One that is neither accepted nor rejected is `undecided`, and the current skill stays."""
    passes: Count = 1
    """For `sequential`: how often the items are used, each time with new seeds for both skills, before the decision is
    left open."""
    refresh: bool = False
    """Measure an accepted skill again, with new seeds, when the next candidate is compared with it: it was accepted
    because its first rollouts went well. All of its rollouts count. Not for the initial skill."""

    added_later: ClassVar[tuple[str, ...]] = (
        "rule", "block", "accept_at", "reject_at", "lean_at", "passes", "refresh",
    )  # fmt: skip
    used_if: ClassVar[Mapping[str, tuple[UsedIf, ...]]] = {
        "mixed_weight": (UsedIf("metric", ("mixed",)),),
        "density_weight": (UsedIf("density", (True,)),),
        "leading_words": (UsedIf("density", (True,)),),
        "block": (UsedIf("rule", other_than=("", "mean")),),
        "accept_at": (UsedIf("rule", other_than=("", "mean", "curtailed")),),
        "reject_at": (UsedIf("rule", other_than=("", "mean", "curtailed")),),
        "lean_at": (UsedIf("rule", other_than=("", "mean", "curtailed")),),
        "passes": (UsedIf("rule", other_than=("", "mean", "curtailed")),),
    }


METRICS = {"auto": "passed", "hard": "passed", "soft": "score", "mixed": "mixed score"}
"""Names of the metrics for people. One that nothing has chosen yet is `hard`."""
_GRADED = 0.1
"""The share of graded scores from which a verifier counts as one that grades."""


class ScoreTally(Struct, frozen=True):
    """The scores that were seen so far."""

    graded: int = 0
    """How many are between fail and pass."""
    scored: int = 0
    passed: int = 0
    lowest: float = 1.0
    highest: float = 0.0

    def add(self, scores: Iterable[tuple[bool, float]]) -> "ScoreTally":
        """Count further scores: whether each passed, and its partial credit."""
        found = list(scores)
        values = [soft for _, soft in found]
        return ScoreTally(
            self.graded + sum(soft != float(passed) for passed, soft in found),
            self.scored + len(found),
            self.passed + sum(passed for passed, _ in found),
            min([self.lowest, *values]),
            max([self.highest, *values]),
        )


def resolve_metric(gate: Gate, tally: ScoreTally = ScoreTally()) -> Gate:
    """The gate with a metric that was chosen from the scores seen so far, if the settings leave it open."""
    if gate.metric != "auto":
        return gate
    graded = tally.graded > 0 and tally.graded >= _GRADED * tally.scored
    return structs.replace(gate, metric="soft" if graded else "hard")


class Decision(StrEnum):
    """The decision on a candidate."""

    ACCEPT = "accept"
    """Better than the current skill: the candidate replaces it."""
    ACCEPT_NEW_BEST = "accept_new_best"
    """Better than the current skill and the best one so far."""
    REJECT = "reject"
    FORCE_ACCEPT = "force_accept"
    """The gate is off."""
    UNDECIDED = "undecided"
    """No item has a score under both texts. The current skill stays."""

    @property
    def accepted(self) -> bool:
        return self in (Decision.ACCEPT, Decision.ACCEPT_NEW_BEST, Decision.FORCE_ACCEPT)


class Mark(Struct, frozen=True):
    """The score of one item: the mean over its scored rollouts."""

    hard: float
    soft: float
    count: int | UnsetType = UNSET
    """The number of these rollouts, if there are several."""

    @property
    def rollouts(self) -> int:
        return 1 if self.count is UNSET else self.count

    def merge(self, other: "Mark") -> "Mark":
        """The mean over the rollouts of both."""
        mine, its = self.rollouts, other.rollouts
        total = mine + its
        return Mark((self.hard * mine + other.hard * its) / total, (self.soft * mine + other.soft * its) / total, total)


class Measure(Struct, frozen=True):
    """The scores of one text."""

    skill: str
    """The hash of the measured text."""
    marks: Mapping[str, Mark] = field(default_factory=dict[str, Mark])
    """The score of each item, by its id."""
    failed: int = 0
    """The number of rollouts that failed after all retries. They say nothing about the text."""

    @property
    def hard(self) -> float | None:
        return mean([mark.hard for mark in self.marks.values()])

    @property
    def soft(self) -> float | None:
        return mean([mark.soft for mark in self.marks.values()])


class Verdict(Struct, frozen=True):
    """A decision and its numbers. A number is None if there was nothing to compare."""

    decision: Decision
    candidate: float | None
    """The candidate's score on the shared items; on all of its items if the gate is off."""
    current: float | None
    best: float | None
    items: int
    """The number of items with a score under both candidate and current skill."""
    new_best: bool = False
    """Whether the candidate is the best so far. Only an accepted one can be."""
    worse: tuple[str, ...] = ()
    """Items on which the candidate is worse."""
    excluded: int | UnsetType = UNSET
    """The number of rollouts of candidate and current skill that have no score. Unset if all have one."""
    paired: PairedStats | UnsetType = UNSET
    """The comparison with the current skill, item by item. Unset if there was nothing to compare."""


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def project(gate: Gate, hard: float, soft: float) -> float:
    """Reduce the pair to one number, by the gate's metric."""
    if gate.metric in ("hard", "auto"):
        return hard
    if gate.metric == "soft":
        return soft
    return (1.0 - gate.mixed_weight) * hard + gate.mixed_weight * soft


def project_mark(gate: Gate, mark: "Mark") -> float:
    """The score of an item, reduced to one number."""
    return project(gate, mark.hard, mark.soft)


def format_result(score: float, metric: str) -> str:
    """A mean score for people: the share that passed, or a score."""
    return f"{score:.0%}" if metric in ("hard", "auto") else f"{score:.2f}"


def compute_density(text: str, words: Iterable[str] = LEADING_WORDS) -> float:
    """The share of leading words in a document, without its protected regions."""
    found = re.findall(r"[a-z0-9]+", remove_regions(text).lower())
    leading = {word.lower() for word in words}
    return sum(word in leading for word in found) / len(found) if found else 0.0


def score(gate: Gate, skill: Skill, measure: Measure, items: Iterable[str] | None = None) -> float | None:
    """The number that the gate compares, on all items or on some; None if there are no items."""
    marks = list(measure.marks.values()) if items is None else [measure.marks[item] for item in items]
    hard, soft = mean([m.hard for m in marks]), mean([m.soft for m in marks])
    if hard is None or soft is None:
        return None
    return project(gate, hard, soft) + compute_bonus(gate, skill)


def compute_bonus(gate: Gate, skill: Skill) -> float:
    """What the gate adds to the score of a skill for its words."""
    return gate.density_weight * compute_density(skill.text, gate.leading_words) if gate.density else 0.0


class Contender(NamedTuple):
    """A skill and its measure, as the gate compares them."""

    skill: Skill
    measure: Measure


Rule = Callable[[Gate, Contender, Contender, Contender], Verdict]
"""Decides about a candidate, as `judge` does: called with the gate, the candidate, the current skill and the best."""


def judge(gate: Gate, candidate: Contender, current: Contender, best: Contender) -> Verdict:
    """Decide whether the candidate replaces the current skill, and whether it is the best so far."""
    shared = _find_shared(candidate.measure, current.measure)
    worse = tuple(item for item in shared if _is_worse(candidate.measure.marks[item], current.measure.marks[item]))
    own = score(gate, *candidate, shared if gate.enabled else None)
    now = score(gate, *current, shared)
    decision = decide(gate, own, now, new_best=beats(gate, candidate, best), worse=bool(worse))
    new_best = decision.accepted and beats(gate, candidate, best)
    best_score = score(gate, *best, _find_shared(candidate.measure, best.measure))
    return Verdict(decision, own, now, best_score, len(shared), new_best, worse)


def compare(gate: Gate, candidate: Contender, current: Contender) -> PairedStats | None:
    """Compare two skills on the items that have a score under both, by the gate's metric without its bonus."""
    return compare_pairs(pair_marks(gate, candidate.measure, current.measure))


def pair_marks(gate: Gate, one: Measure, other: Measure) -> list[float]:
    """The difference of each item with a score under both, by the gate's metric. Others are missing data."""
    pairs = ((one.marks[item], other.marks[item]) for item in _find_shared(one, other))
    return [project_mark(gate, a) - project_mark(gate, b) for a, b in pairs]


def _is_worse(candidate: Mark, current: Mark) -> bool:
    return candidate.hard < current.hard or candidate.soft < current.soft


def decide(
    gate: Gate, candidate: float | None, current: float | None, *, new_best: bool, worse: bool = False
) -> Decision:
    """The rule: accept a candidate only if its score is strictly higher."""
    if not gate.enabled:
        return Decision.UNDECIDED if candidate is None else Decision.FORCE_ACCEPT
    if candidate is None or current is None:
        return Decision.UNDECIDED
    if not candidate > current + gate.margin or (gate.no_regression and worse):
        return Decision.REJECT
    return Decision.ACCEPT_NEW_BEST if new_best else Decision.ACCEPT


def beats(gate: Gate, one: Contender, other: Contender) -> bool:
    """Whether one is strictly better than the other on the items with a score under both."""
    shared = _find_shared(one.measure, other.measure)
    left, right = score(gate, *one, shared), score(gate, *other, shared)
    return left is not None and right is not None and left > right


def _find_shared(one: Measure, other: Measure) -> list[str]:
    return sorted(one.marks.keys() & other.marks.keys())
