"""Compare runs on the tasks that they share. Pure functions.

The unit is the task, as in a summary: a task's score is the mean of its scored rollouts. Two runs are compared on the
tasks that both have scores for, task by task. The 95 % interval is that of the mean of the differences, so what tasks
have in common (some are hard for every agent) does not widen it: mean ± t · sd(differences) / √tasks. If no task
differs, there is no spread to estimate; then it is Wilson's bound on the share of tasks that could differ.

Tasks are the same if split, id and prompt are equal. A task with another prompt is not compared, and is counted.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import UNSET, Struct, UnsetType

from ludus.stats import Interval, PairedStats, SkillLoads, compare_pairs, compute_interval, compute_spread, summarize
from ludus.types import Group, Usage

TaskKey = tuple[str, str]
"""The split and the id of a task: an id is unique within its split."""


class ComparedRun(Struct, frozen=True, kw_only=True):
    """A run as it is compared."""

    name: str
    model: str
    mean: float | None
    interval: Interval | None
    tasks: int
    rollouts: int
    excluded: int
    """Rollouts without a score. They are in no mean."""
    suspects: int = 0
    """Rollouts whose verdict the agent may have changed. They are in the mean."""
    mean_without_suspects: float | None = None
    """None if there are none, or nothing else."""
    usage: Usage
    """Of the recorded attempts."""
    median_seconds: float | None
    skill_loads: SkillLoads | UnsetType = UNSET
    """How many rollouts loaded the skill, of runs whose skill lay in slots as files."""


class TaskDifference(Struct, frozen=True):
    """A task on which two runs differ, and its score in each."""

    task: str
    split: str
    first: float
    second: float


class KindDifference(Struct, frozen=True):
    """Two runs on the shared tasks of one kind: `first` minus `second`."""

    kind: str
    tasks: int
    difference: float
    interval: Interval | None


class PairComparison(Struct, frozen=True, kw_only=True):
    """Two runs on the tasks that they share: `first` minus `second`."""

    first: str
    second: str
    tasks: int
    difference: float | None
    interval: Interval | None
    won: int
    """Tasks with a higher score in the first."""
    lost: int
    tied: int
    won_tasks: tuple[TaskDifference, ...] = ()
    """The tasks that are counted in `won`, those with the largest difference first."""
    lost_tasks: tuple[TaskDifference, ...] = ()
    kinds: tuple[KindDifference, ...] = ()
    """The same for each kind of task; empty if there is only one."""
    difference_without_suspects: float | None = None
    """The difference if suspects are left out of both; None if neither has any."""
    verdict: str = ""
    """What the comparison says, in a sentence."""
    changed: int
    """Tasks of the same id that ask something else. They are not compared."""
    usage_first: Usage
    """What the compared tasks cost in the first run, per rollout."""
    usage_second: Usage


class RunComparison(Struct, frozen=True):
    """All runs, and each pair of them."""

    runs: tuple[ComparedRun, ...]
    pairs: tuple[PairComparison, ...]


class TaskScore(Struct, frozen=True):
    """What a comparison needs of a group."""

    task: str
    split: str
    asked: str
    """What is asked, or a hash of it: tasks with another one are not the same."""
    score: float
    unsuspected: float | None
    """The score without suspects; None if all rollouts are suspects."""
    usage: Usage
    rollouts: int
    kind: str = ""


def compare_runs(runs: Mapping[str, Sequence[Group]]) -> RunComparison:
    """Compare runs, given as their groups by name, each with each."""
    scores = {name: _score_tasks(groups) for name, groups in runs.items()}
    described = tuple(_describe_run(name, groups) for name, groups in runs.items())
    return RunComparison(described, tuple(compare_scores(scores)))


def compare_scores(scores: Mapping[str, Mapping[TaskKey, TaskScore]]) -> Iterator[PairComparison]:
    """Compare runs, given as the scores of their tasks by name, each with each."""
    for a, b in itertools.combinations(scores, 2):
        yield _compare_pair(a, scores[a], b, scores[b])


def compute_paired_interval(differences: Sequence[float], reach: float = 1.0, level: float = 0.95) -> Interval | None:
    """The interval of the mean of differences between -`reach` and `reach`. None for fewer than two."""
    if len(differences) >= 2 and not any(differences):
        bound = compute_interval([0.0] * len(differences), 0.0, reach, level)
        return Interval(-bound.high, bound.high) if bound else None
    return compute_interval(differences, -reach, reach, level)


def _compare_pair(
    first: str, firsts: Mapping[TaskKey, TaskScore], second: str, seconds: Mapping[TaskKey, TaskScore]
) -> PairComparison:
    shared = [key for key in firsts if key in seconds]
    same = [key for key in shared if firsts[key].asked == seconds[key].asked]
    pairs = [(firsts[key], seconds[key]) for key in same]
    differences = [one.score - other.score for one, other in pairs]
    paired = compare_pairs(differences)
    reach = _find_range([score.score for scores in (firsts, seconds) for score in scores.values()])
    interval = compute_paired_interval(differences, reach)
    return PairComparison(
        first=first,
        second=second,
        tasks=len(same),
        difference=paired.difference if paired else None,
        interval=interval,
        won=paired.wins if paired else 0,
        lost=paired.losses if paired else 0,
        tied=paired.ties if paired else 0,
        won_tasks=_list_differing(pairs, 1),
        lost_tasks=_list_differing(pairs, -1),
        kinds=_compare_kinds(pairs, reach),
        difference_without_suspects=_compare_unsuspected(pairs),
        verdict=write_verdict(first, second, paired, interval),
        changed=len(shared) - len(same),
        usage_first=_average_usage(firsts[key] for key in same),
        usage_second=_average_usage(seconds[key] for key in same),
    )


def _compare_kinds(pairs: Sequence[tuple[TaskScore, TaskScore]], reach: float) -> tuple[KindDifference, ...]:
    by_kind: dict[str, list[float]] = {}
    for one, other in pairs:
        by_kind.setdefault(one.kind, []).append(one.score - other.score)
    if len(by_kind) < 2:
        return ()
    return tuple(
        KindDifference(kind, len(found), _average(found), compute_paired_interval(found, reach))
        for kind, found in sorted(by_kind.items())
    )


def _list_differing(pairs: Iterable[tuple[TaskScore, TaskScore]], sign: int) -> tuple[TaskDifference, ...]:
    """The tasks whose difference has this sign, those with the largest one first."""
    found = [
        TaskDifference(one.task, one.split, one.score, other.score)
        for one, other in pairs
        if (one.score - other.score) * sign > 0
    ]
    return tuple(sorted(found, key=lambda each: -abs(each.first - each.second)))


def _compare_unsuspected(pairs: Sequence[tuple[TaskScore, TaskScore]]) -> float | None:
    if all(each.unsuspected == each.score for pair in pairs for each in pair):
        return None
    left = [
        one.unsuspected - other.unsuspected
        for one, other in pairs
        if one.unsuspected is not None and other.unsuspected is not None
    ]
    return math.fsum(left) / len(left) if left else None


def write_verdict(first: str, second: str, paired: PairedStats | None, interval: Interval | None) -> str:
    """What a comparison says, in a sentence."""
    if paired is None:
        return f"{first} and {second} share no task with scores: they cannot be compared."
    counts = f"{paired.wins} won, {paired.losses} lost, {paired.ties} tied"
    if interval is None:
        return f"One task is too few to tell {first} from {second}: {counts}."
    band = f"[{interval.low:+.3f}, {interval.high:+.3f}] on {paired.tasks} tasks: {counts}"
    if interval.low <= 0 <= interval.high:
        return f"{first} cannot be told from {second}: difference {paired.difference:+.3f} {band}."
    better, worse = (first, second) if paired.difference > 0 else (second, first)
    return f"{better} is better than {worse}: {first} minus {second} is {paired.difference:+.3f} {band}."


def _find_range(scores: Sequence[float]) -> float:
    """How far apart two scores can be: 1, or more if a score was outside of 0 to 1."""
    return max([1.0, *scores]) - min([0.0, *scores])


def _score_tasks(groups: Iterable[Group]) -> dict[TaskKey, TaskScore]:
    found: dict[TaskKey, TaskScore] = {}
    for group in groups:
        values = [rollout.score.value for rollout in group.rollouts if rollout.score is not None]
        if values:
            usage = sum((rollout.usage for rollout in group.rollouts), Usage())
            key, count = (group.task.split, group.task.id), len(group.rollouts)
            sure = [rollout.score.value for rollout in group.scored if rollout.score and not rollout.score.suspect]
            unsuspected = _average(sure) if sure else None
            found[key] = TaskScore(
                group.task.id,
                group.task.split,
                group.task.prompt,
                _average(values),
                unsuspected,
                usage,
                count,
                group.task.kind,
            )
    return found


def _average(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _average_usage(scores: Iterable[TaskScore]) -> Usage:
    """The usage per rollout, tokens rounded."""
    every = list(scores)
    usage, rollouts = sum((score.usage for score in every), Usage()), sum(score.rollouts for score in every)
    if not rollouts:
        return Usage()
    return Usage(
        round(usage.prompt_tokens / rollouts),
        round(usage.completion_tokens / rollouts),
        round(usage.cached_tokens / rollouts),
        usage.dollars / rollouts,
    )


def _describe_run(name: str, groups: Sequence[Group]) -> ComparedRun:
    summary = summarize(groups)
    models = dict.fromkeys(rollout.provenance.model for group in groups for rollout in group.rollouts)
    spread = compute_spread([rollout.seconds for group in groups for rollout in group.rollouts])
    return ComparedRun(
        name=name,
        model=", ".join(models),
        mean=summary.overall.mean,
        interval=summary.overall.interval,
        tasks=summary.overall.tasks,
        rollouts=summary.overall.rollouts,
        excluded=summary.overall.excluded,
        suspects=summary.overall.suspects,
        mean_without_suspects=summary.overall.mean_without_suspects,
        usage=summary.usage,
        median_seconds=spread.median if spread else None,
        skill_loads=summary.skill_loads,
    )
