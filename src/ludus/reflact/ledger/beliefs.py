"""Beliefs about effects on the outcome, from passed and failed rollouts alone. Pure.

A rollout passes if a score is positive. The score is a sum of effects and of noise:

    base + kind + task + for each such line in the text: its effect on this kind of task + the effect of any line,
                                                    and, if the task called for it: its help + the help of any line

Each effect has an independent normal distribution. A rollout updates those that take part in it, by assumed density
filtering for a probit likelihood: no matrix, a few multiplications per effect. Effects are those of passages of the
initial skill, and of lines whose proposer names no situations. What other lines do besides is in `blame`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ludus.reflact.ledger.file_reach import get_reach
from ludus.reflact.ledger.line_records import Gaussian, Line, LineLedger

_BASE, _KIND, _TASK = Gaussian(0.0, 1.0), Gaussian(0.0, 0.25), Gaussian(0.0, 0.49)
_EFFECT, _ANY_EFFECT = Gaussian(0.0, 0.04), Gaussian(0.0, 0.0009)
_PASSAGE = Gaussian(0.0, 0.25)
_HELP, _ANY_HELP = Gaussian(0.0, 0.49), Gaussian(0.5, 0.25)

_ROOT_2, _ROOT_2_PI = math.sqrt(2.0), math.sqrt(2.0 * math.pi)


def compute_normal_cdf(value: float) -> float:
    return 0.5 * math.erfc(-value / _ROOT_2)


def compute_normal_density(value: float) -> float:
    return math.exp(-0.5 * value * value) / _ROOT_2_PI


def name_effect(line: str, kind: str) -> str:
    return f"effect/{line}/{kind}"


def is_passage(line: str) -> bool:
    """Whether an id is that of a passage of the initial skill."""
    return line.startswith("P")


def get_effect(beliefs: Mapping[str, Gaussian], line: str, kind: str) -> Gaussian:
    return beliefs.get(name_effect(line, kind), _PASSAGE if is_passage(line) else _EFFECT)


def update_beliefs(
    beliefs: dict[str, Gaussian],
    task: str,
    kind: str,
    lines: Sequence[str],
    called: Sequence[str],
    outcome: float,
    *,
    crowd: int = 0,
) -> None:
    """Add the outcome of one rollout. `lines` are the lines of its text that outcomes judge, `called` the lines whose
    situation has spoiled this task before, `crowd` the number of other lines, if it may matter. `outcome` is 1 if the
    rollout passed, 0 if it failed, and a graded score counts as so much of a pass and so much of a failure."""
    factors: list[tuple[str, float, Gaussian]] = [
        ("base", 1.0, beliefs.get("base", _BASE)),
        (name := f"kind/{kind}", 1.0, beliefs.get(name, _KIND)),
        (name := f"task/{task}", 1.0, beliefs.get(name, _TASK)),
    ]
    proposed = crowd
    for line in lines:
        name, own = name_effect(line, kind), is_passage(line)
        proposed += not own
        factors.append((name, 1.0, beliefs.get(name, _PASSAGE if own else _EFFECT)))
    for line in called:
        name = f"help/{line}"
        factors.append((name, 1.0, beliefs.get(name, _HELP)))
    if proposed:
        factors.append(("any effect", float(proposed), beliefs.get("any effect", _ANY_EFFECT)))
    if called:
        factors.append(("any help", float(len(called)), beliefs.get("any help", _ANY_HELP)))
    mean, variance = 0.0, 1.0
    for _, times, belief in factors:
        mean += times * belief.mean
        variance += times * times * belief.variance
    deviation = math.sqrt(variance)
    push = shrink = 0.0
    for sign, share in ((1.0, outcome), (-1.0, 1.0 - outcome)):
        if share:
            surprise = max(-8.0, sign * mean / deviation)  # beyond that the ratio below has no digits left
            ratio = compute_normal_density(surprise) / compute_normal_cdf(surprise)
            push += share * sign * ratio
            shrink += share * ratio * (ratio + surprise) / variance
    for name, times, belief in factors:
        step = times * belief.variance
        beliefs[name] = Gaussian(belief.mean + step * push / deviation, belief.variance * (1.0 - times * step * shrink))


class KindSlope(NamedTuple):
    """How much accuracy changes with the score, on average over the tasks seen of one kind."""

    share: float
    """The share of this kind in the tasks seen."""
    slope: float


class SideEffect(NamedTuple):
    """The effect of a line on accuracy besides its situation, and the standard deviation of that belief."""

    mean: float
    deviation: float


def compute_slopes(ledger: LineLedger, called: Mapping[str, Sequence[str]]) -> dict[str, KindSlope]:
    """The slope of each kind beside the working text. `called`: the tasks that each working line's situation called."""
    if not ledger.seen:
        return {}
    beliefs = ledger.beliefs
    any_effect = beliefs.get("any effect", _ANY_EFFECT).mean
    any_help = beliefs.get("any help", _ANY_HELP).mean
    helped: dict[str, float] = {}
    for line, tasks in called.items():
        gain = beliefs.get(f"help/{line}", _HELP).mean + any_help
        for task in tasks:
            helped[task] = helped.get(task, 0.0) + gain
    base = beliefs.get("base", _BASE).mean
    effects = [  # of each working line: the line, how the names of its effects begin, the prior, what any line adds
        (line, name_effect(line.id, ""), _PASSAGE if line.passage else _EFFECT, 0.0 if line.passage else any_effect)
        for line in ledger.get_lines(ledger.working)
        if line.is_free
    ]
    starts = {
        kind: base
        + beliefs.get(f"kind/{kind}", _KIND).mean
        + sum(
            [
                get_reach(ledger, line, kind) * (beliefs.get(prefix + kind, prior).mean + added)
                for line, prefix, prior, added in effects
            ]
        )
        for kind in dict.fromkeys(
            ledger.seen.values()
        )  # their order is that of sums: a set has another in each process
    }
    densities: dict[str, list[float]] = {kind: [] for kind in starts}
    for task, kind in ledger.seen.items():
        belief = beliefs.get(f"task/{task}", _TASK)
        score = starts[kind] + belief.mean + helped.get(task, 0.0)
        densities[kind].append(compute_normal_density(score))
    total = len(ledger.seen)
    return {kind: KindSlope(len(all_) / total, math.fsum(all_) / len(all_)) for kind, all_ in densities.items()}


def estimate_line_cost(ledger: LineLedger) -> float:
    """What any proposed line costs by being read, as an effect on the score; 0 as long as it may be chance."""
    belief = ledger.beliefs.get("any effect", _ANY_EFFECT)
    return -belief.mean if belief.mean < -math.sqrt(belief.variance) else 0.0


def predict_pass_rate(ledger: LineLedger, lines: Sequence[Line]) -> float | None:
    """The share of the tasks seen that should pass with a text that has these lines, by everything that rollouts have
    said so far. None if none has said anything."""
    if not ledger.seen:
        return None
    called = {situation.label: frozenset(situation.called) for situation in ledger.situations}
    chances = [
        _predict(ledger.beliefs, task, kind, lines, [line for line in lines if task in called.get(line.situation, ())])
        for task, kind in ledger.seen.items()
    ]
    return math.fsum(chances) / len(chances)


def _predict(
    beliefs: Mapping[str, Gaussian], task: str, kind: str, lines: Sequence[Line], called: Sequence[Line]
) -> float:
    """The probability that a task passes: that its score is positive, whatever the effects are."""
    parts = [
        (1.0, beliefs.get("base", _BASE)),
        (1.0, beliefs.get(f"kind/{kind}", _KIND)),
        (1.0, beliefs.get(f"task/{task}", _TASK)),
        *((1.0, get_effect(beliefs, line.id, kind)) for line in lines if line.is_free),
        *((1.0, beliefs.get(f"help/{line.id}", _HELP)) for line in called),
        (float(sum(line.by_outcome for line in lines)), beliefs.get("any effect", _ANY_EFFECT)),
        (float(len(called)), beliefs.get("any help", _ANY_HELP)),
    ]
    mean = math.fsum(times * belief.mean for times, belief in parts)
    variance = 1.0 + math.fsum(times * times * belief.variance for times, belief in parts)
    return compute_normal_cdf(mean / math.sqrt(variance))


def compute_side_effect(ledger: LineLedger, line: Line, slopes: Mapping[str, KindSlope]) -> SideEffect:
    """The side effect of a line, averaged over the tasks seen. It is small, so the slope is enough."""
    get, prefix = ledger.beliefs.get, name_effect(line.id, "")
    start = _PASSAGE if line.passage else _EFFECT
    any_effect = 0.0 if line.passage else get("any effect", _ANY_EFFECT).mean
    mean = variance = 0.0
    for kind, (share, slope) in slopes.items():
        belief, weight = get(prefix + kind, start), share * slope * get_reach(ledger, line, kind)
        mean += weight * (belief.mean + any_effect)
        variance += weight * weight * belief.variance
    return SideEffect(mean, math.sqrt(variance))
