"""Which passages of a skill earn their tokens? Measured by leaving them out at random. Pure.

Each rollout runs the skill without some of its passages, drawn at random. So whether a passage is in a text has nothing
to do with anything else, and the difference that it makes is its effect. All effects are estimated together, by least
squares within tasks; errors are computed over tasks, since rollouts of one task are alike. Few tasks say little about
their errors, so intervals are those of Student's t, with one degree of freedom less than there are tasks. With many
passages some look good or bad by chance: a verdict needs a probability that holds for all of them together (Holm's
method), and the last sentence says how many would have looked so by chance.
"""

import math
from collections.abc import Sequence
from random import Random

from msgspec import Struct

from ludus.reflact.ledger.passages import Passage, drop_passages
from ludus.skill import Skill
from ludus.stats import Interval, compute_t_quantile, compute_t_share

LEAVE_OUT = 0.25
"""How often a passage is left out: seldom enough that the others are mostly there."""
_LEVEL = 0.05
FEW_TASKS = 10
"""With fewer tasks the last sentence says how few they are."""


class AuditReading(Struct, frozen=True):
    """A scored rollout: its task, the passages in its text, and its score."""

    task: str
    present: frozenset[str]
    score: float


class PassageVerdict(Struct, frozen=True, kw_only=True):
    """What one passage does."""

    id: str
    text: str
    tokens: int
    """About four characters each."""
    rollouts: int
    """Scored rollouts without it."""
    effect: float | None
    """What it adds to the score; None if that cannot be told apart from other passages."""
    interval: Interval | None
    """95 %, for this passage alone."""
    chance: float | None
    """The probability of an effect of this size by chance, for all passages together."""
    verdict: str
    """`helps`, `hurts`, `not told` or `small`: its interval lies within one point."""
    sentence: str


class SkillAudit(Struct, frozen=True, kw_only=True):
    """What all passages do."""

    rollouts: int
    failed: int
    tasks: int
    score: float
    """The mean score of all rollouts, each without some passages."""
    metric: str = "hard"
    """What counts as a score: `hard` (passed), `soft` (score) or `mixed`."""
    passages: tuple[PassageVerdict, ...]
    summary: str


def sample_texts(
    skill: Skill, passages: Sequence[Passage], count: int, seed: int
) -> list[tuple[Skill, frozenset[str]]]:
    """Texts that lack random passages, each with the ids of those that are in it."""
    random = Random(f"{seed}/audit")
    found: list[tuple[Skill, frozenset[str]]] = []
    for _ in range(count):
        absent = {passage.id for passage in passages if random.random() < LEAVE_OUT}
        found.append((drop_passages(skill, absent), frozenset(p.id for p in passages if p.id not in absent)))
    return found


def audit_passages(
    passages: Sequence[Passage], readings: Sequence[AuditReading], failed: int = 0, metric: str = "hard"
) -> SkillAudit:
    """The verdict on each passage. `failed`: the number of rollouts without a score."""
    estimates = estimate_effects([passage.id for passage in passages], readings)
    tasks = len({reading.task for reading in readings})
    chances = adjust_chances([_compute_chance(each, tasks) for each in estimates])
    verdicts = tuple(
        _judge(passage, readings, estimate, chance, tasks)
        for passage, estimate, chance in zip(passages, estimates, chances, strict=True)
    )
    score = math.fsum(reading.score for reading in readings) / len(readings) if readings else 0.0
    return SkillAudit(
        rollouts=len(readings) + failed,
        failed=failed,
        tasks=tasks,
        score=score,
        metric=metric,
        passages=verdicts,
        summary=summarize_audit(verdicts, tasks),
    )


Estimate = tuple[float, float]
"""An effect and its standard error."""


def estimate_effects(ids: Sequence[str], readings: Sequence[AuditReading]) -> list[Estimate | None]:
    """The effect of each passage, with a standard error over tasks. None where nothing can be told."""
    size, by_task = len(ids), _center_by_task(ids, readings)
    rows = [row for block in by_task for row in block]
    gram = [[math.fsum(x[i] * x[j] for x, _ in rows) for j in range(size)] for i in range(size)]
    for place in range(size):
        gram[place][place] += 1e-9
    inverse = _invert(gram)
    moments = [math.fsum(x[i] * y for x, y in rows) for i in range(size)]
    effects = [math.fsum(a * b for a, b in zip(row, moments, strict=True)) for row in inverse]
    variances = [0.0] * size
    for block in by_task:
        lean = [0.0] * size
        for x, y in block:
            left = y - math.fsum(a * b for a, b in zip(x, effects, strict=True))
            lean = [total + a * left for total, a in zip(lean, x, strict=True)]
        for place, row in enumerate(inverse):
            variances[place] += math.fsum(a * b for a, b in zip(row, lean, strict=True)) ** 2
    groups, free = len(by_task), len(rows) - len(by_task) - size
    if groups < 2 or free < 1:
        return [None] * size
    grow = groups / (groups - 1) * (len(rows) - 1) / free
    return [
        (effect, math.sqrt(variance * grow)) if gram[place][place] > 0.5 else None
        for place, (effect, variance) in enumerate(zip(effects, variances, strict=True))
    ]


def _center_by_task(ids: Sequence[str], readings: Sequence[AuditReading]) -> list[list[tuple[list[float], float]]]:
    """Presence and score of each rollout, less the mean of its task. A task with one rollout says nothing."""
    groups: dict[str, list[AuditReading]] = {}
    for reading in readings:
        groups.setdefault(reading.task, []).append(reading)
    blocks: list[list[tuple[list[float], float]]] = []
    for group in groups.values():
        if len(group) < 2:
            continue
        rows = [[float(id in reading.present) for id in ids] for reading in group]
        means = [math.fsum(column) / len(group) for column in zip(*rows, strict=True)]
        middle = math.fsum(reading.score for reading in group) / len(group)
        blocks.append(
            [
                ([a - b for a, b in zip(row, means, strict=True)], reading.score - middle)
                for row, reading in zip(rows, group, strict=True)
            ]
        )
    return blocks


def _invert(matrix: list[list[float]]) -> list[list[float]]:
    """The inverse of a symmetric positive matrix, by Gauss-Jordan elimination with pivots."""
    size = len(matrix)
    work = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(work[row][column]))
        work[column], work[pivot] = work[pivot], work[column]
        scale = work[column][column]
        work[column] = [value / scale for value in work[column]]
        for row in range(size):
            if row != column and (factor := work[row][column]):
                work[row] = [a - factor * b for a, b in zip(work[row], work[column], strict=True)]
    return [row[size:] for row in work]


def _compute_chance(estimate: Estimate | None, tasks: int) -> float:
    if estimate is None or estimate[1] <= 0.0:
        return 1.0
    return 2.0 * (1.0 - compute_t_share(abs(estimate[0] / estimate[1]), tasks - 1))


def adjust_chances(chances: Sequence[float]) -> list[float]:
    """The probabilities for all passages together, by Holm's method."""
    order = sorted(range(len(chances)), key=lambda place: chances[place])
    adjusted, highest = [1.0] * len(chances), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(chances) - rank) * chances[place]))
        adjusted[place] = highest
    return adjusted


def _judge(
    passage: Passage, readings: Sequence[AuditReading], estimate: Estimate | None, chance: float, tasks: int
) -> PassageVerdict:
    tokens = max(1, len(passage.text) // 4)
    effect, error = estimate or (None, 0.0)
    interval = None
    if effect is not None:
        reach = compute_t_quantile(tasks - 1, 1 - _LEVEL / 2) * error
        interval = Interval(effect - reach, effect + reach)
    verdict, words = "not told", "Nothing can be told about this passage: it needs more rollouts."
    if effect is not None and interval is not None:
        if chance < _LEVEL:
            verdict = "helps" if effect > 0 else "hurts"
        elif max(-interval.low, interval.high) <= 0.01:
            verdict = "small"
        words = describe_effect(effect, interval, verdict, tokens)
    return PassageVerdict(
        id=passage.id,
        text=passage.text,
        tokens=tokens,
        rollouts=sum(passage.id not in reading.present for reading in readings),
        effect=effect,
        interval=interval,
        chance=None if effect is None else chance,
        verdict=verdict,
        sentence=words,
    )


def describe_effect(effect: float, interval: Interval, verdict: str, tokens: int) -> str:
    """What a passage does, in a plain sentence."""
    low, high = 100 * interval.low, 100 * interval.high
    if verdict == "hurts":
        return f"This passage of yours costs {-100 * effect:.0f} points [{-high:.0f}, {-low:.0f}]; leave it out."
    if verdict == "helps":
        return f"This passage earns {100 * effect:.0f} points [{low:.0f}, {high:.0f}] for about {tokens} tokens."
    if verdict == "small":
        return f"This passage changes less than a point for about {tokens} tokens [{low:+.1f}, {high:+.1f}]."
    return f"No effect that could be told from chance: {100 * effect:+.0f} points [{low:+.0f}, {high:+.0f}]."


def summarize_audit(verdicts: Sequence[PassageVerdict], tasks: int) -> str:
    """All verdicts in a sentence or two."""
    counts = {name: sum(each.verdict == name for each in verdicts) for name in ("helps", "hurts", "small", "not told")}
    alone = sum(each.interval is not None and each.interval.low * each.interval.high > 0 for each in verdicts)
    parts = [f"helps {counts['helps']}", f"hurts {counts['hurts']}"]
    parts += [f"changes less than a point {counts['small']}"] if counts["small"] else []
    parts.append(f"cannot be told {counts['not told']}")
    by_chance = _LEVEL * len(verdicts)
    count = "1 passage" if len(verdicts) == 1 else f"{len(verdicts)} passages"
    few = f" There are only {tasks} tasks: more of them narrow the intervals." if tasks < FEW_TASKS else ""
    return (
        f"{count}: {', '.join(parts)}. Judged one by one, {alone} would look different from 0, and "
        f"about {by_chance:.1f} would by chance alone; these verdicts hold for all passages together.{few}"
    )
