"""Gate rules that may decide before all items are measured. Pure.

An `EarlyRule` says in which order the items are measured, in blocks, and after each block whether the decision is
clear. `evaluate` measures only as far as that.

`Curtailed` makes the decisions of the original rule (`judge`). It stops when no result of the items that are left could
lead to acceptance. The items that the current skill solves come first, because only these can be lost.

`Sequential` has one vote for each item that both skills do not solve equally well. The probability that the candidate
is better follows from the votes, with a flat prior (`ludus.stats.compute_win_probability`). It accepts and rejects as
soon as this probability is high or low enough. If all rollouts are used and the probability is in between, the decision
is `undecided`: this is the third verdict, and the current skill stays. Rollouts without a score are missing data, not
votes. Each decision samples an order of the items of its own, so that no few items decide about all candidates.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from random import Random

from msgspec.structs import replace

from ludus.reflact.gate import (
    Contender,
    Decision,
    Gate,
    Mark,
    Measure,
    Rule,
    Verdict,
    compare,
    compute_bonus,
    judge,
    project,
)

_TOLERANCE = 1e-9
"""Sums of numbers that are not whole differ by less than this, however they are computed."""


class EarlyRule:
    """A rule that may decide on a part of the items. A subclass defines `__call__` and `is_clear`."""

    def __call__(self, gate: Gate, candidate: Contender, current: Contender, best: Contender) -> Verdict:
        """Decide, with what was measured."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")

    def is_clear(self, gate: Gate, candidate: Contender, current: Contender, left: Sequence[str]) -> bool:
        """Whether the candidate need not be measured on the items that are left."""
        raise NotImplementedError(f"{type(self).__name__} does not define is_clear")

    def arrange(self, gate: Gate, current: Measure, items: Sequence[str], seed: int) -> list[str]:
        """The items in the order in which they are measured. By default, a random one."""
        order = list(items)
        Random(seed).shuffle(order)
        return order

    def count_passes(self, gate: Gate) -> int:
        """How often the items may be used, each time with new seeds."""
        return 1


class Curtailed(EarlyRule):
    """The decisions of `judge`, with fewer rollouts for candidates that are rejected."""

    def __call__(self, gate: Gate, candidate: Contender, current: Contender, best: Contender) -> Verdict:
        return judge(gate, candidate, current, best)

    def is_clear(self, gate: Gate, candidate: Contender, current: Contender, left: Sequence[str]) -> bool:
        shared = candidate.measure.marks.keys() & current.measure.marks.keys()
        if not shared:
            return False
        if gate.no_regression and judge(gate, candidate, current, current).worse:
            return True
        return not _can_win(gate, candidate, current, shared, left)

    def arrange(self, gate: Gate, current: Measure, items: Sequence[str], seed: int) -> list[str]:
        marks = {item: _reduce(gate, mark) for item, mark in current.marks.items()}
        return sorted(items, key=lambda item: -marks.get(item, 0.0))


def _reduce(gate: Gate, mark: Mark) -> float:
    return project(gate, mark.hard, mark.soft)


def _can_win(gate: Gate, candidate: Contender, current: Contender, shared: "set[str]", left: Sequence[str]) -> bool:
    """Whether some result of the items that are left would make the candidate's score high enough.

    An item that is left has the highest score, or none: then it does not count. So it never makes the sum lower.
    """
    own, now = candidate.measure.marks, current.measure.marks
    highest = max([1.0, *(_reduce(gate, mark) for marks in (own, now) for mark in marks.values())])
    exact = gate.metric != "mixed" and not gate.margin and not gate.density
    needed = Fraction(gate.margin + compute_bonus(gate, current.skill) - compute_bonus(gate, candidate.skill))
    gains = [Fraction(_reduce(gate, own[item])) - Fraction(_reduce(gate, now[item])) - needed for item in shared]
    hopes = [Fraction(highest) - Fraction(_reduce(gate, now[item])) - needed for item in left if item in now]
    most = sum(gains) + sum(hope for hope in hopes if hope > 0)
    return most > (0 if exact else -_TOLERANCE)


class Sequential(EarlyRule):
    """Accept or reject as soon as it is clear enough which skill is better; leave the decision open if it is not."""

    def __call__(self, gate: Gate, candidate: Contender, current: Contender, best: Contender) -> Verdict:
        verdict = judge(gate, candidate, current, best)
        better = _compute_probability(gate, candidate, current)
        if better is None:
            return verdict
        if better <= gate.reject_at or (gate.no_regression and verdict.worse):
            decision = Decision.REJECT
        elif better >= gate.accept_at or better > gate.lean_at:
            decision = Decision.ACCEPT
        else:
            decision = Decision.UNDECIDED
        new_best = decision.accepted and self._is_best(gate, candidate, current, best)
        decision = Decision.ACCEPT_NEW_BEST if new_best else decision
        return replace(verdict, decision=decision, new_best=new_best)

    def is_clear(self, gate: Gate, candidate: Contender, current: Contender, left: Sequence[str]) -> bool:
        better = _compute_probability(gate, candidate, current)
        return better is not None and not gate.reject_at < better < gate.accept_at

    def count_passes(self, gate: Gate) -> int:
        return gate.passes

    def _is_best(self, gate: Gate, candidate: Contender, current: Contender, best: Contender) -> bool:
        if best.skill == current.skill:
            return True
        better = _compute_probability(gate, candidate, best)
        return better is not None and better > 0.5


def _compute_probability(gate: Gate, candidate: Contender, current: Contender) -> float | None:
    """The probability that the candidate is better; None if no item has a score under both."""
    paired = compare(gate, candidate, current)
    return None if paired is None else paired.better


def split_blocks(order: Sequence[str], size: int) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """The items in blocks, each with the items that are left after it."""
    for start in range(0, len(order), size):
        yield order[start : start + size], order[start + size :]


def replay(
    rule: Rule, gate: Gate, candidate: Contender, current: Contender, best: Contender, seed: int
) -> tuple[Verdict, int]:
    """Decide again about a candidate that was measured already. Returns the verdict and the number of items it took."""
    measure = candidate.measure
    if not isinstance(rule, EarlyRule) or not measure.marks:
        return rule(gate, candidate, current, best), len(measure.marks)
    seen: dict[str, Mark] = {}
    for block, left in split_blocks(rule.arrange(gate, current.measure, sorted(measure.marks), seed), gate.block):
        seen |= {item: measure.marks[item] for item in block}
        candidate = Contender(candidate.skill, Measure(measure.skill, dict(sorted(seen.items())), measure.failed))
        if rule.is_clear(gate, candidate, current, left):
            break
    return rule(gate, candidate, current, best), len(seen)
