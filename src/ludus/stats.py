"""The statistics of a run: `summarize` makes a `RunSummary` of groups. Pure functions.

A rollout without a score says nothing about the agent. It is counted as failed and is in no mean. A run without any
scored rollout has no mean (None), not 0. The tokens, the money and the time of a failed rollout are counted.
`mean_with_zeros` is the lower bound: the mean if each of them had scored 0. `FailureLedger` has the losses by cause
with both bounds. A suspect, whose verdict the agent may have
changed, is in the mean as it was scored; `mean_without_suspects` leaves it out. If more than 2 % of the rollouts have
no score, `warn_of_exclusions` says so, because the mean may then say more about what was left out than about the agent.

The mean is the mean over tasks of each task's own mean, so a task that lost rollouts to failures has the same weight as
the others. Rollouts of one task resemble each other, so the unit of the 95 % confidence interval is the task, not the
rollout: mean ± t · sd(task means) / √tasks, with tasks − 1 degrees of freedom, cut to the range of scores (0 to 1, or
wider if a score was outside of it). It needs at least two tasks. Where every task has the lowest or the highest score,
it is Wilson's interval. Where all tasks have the same score in between, it is a point: it describes these tasks and
does not say that other tasks would have the same score.

pass@k is the unbiased estimate of "at least one of k rollouts passes", averaged over the tasks with at least k scored
rollouts.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import UNSET, Struct, UnsetType

from ludus.errors import TRACEBACK
from ludus.skill import DOCUMENT
from ludus.types import Group, Rollout, Score, SkillUse, StopReason, Usage

UNSCORED = "unscored"
"""In place of a boundary, for rollouts that nothing has judged."""


class Interval(Struct, frozen=True):
    low: float
    high: float


class PassAt(Struct, frozen=True):
    k: int
    value: float
    tasks: int
    """The number of tasks with at least k scored rollouts."""


class ScoreStats(Struct, frozen=True, omit_defaults=True):
    """The scores of a set of tasks."""

    tasks: int
    rollouts: int
    scored: int
    mean: float | None
    interval: Interval | None
    pass_at: tuple[PassAt, ...]
    mean_with_zeros: float | None = None
    """The mean if every rollout without a score had scored 0; None if all have a score."""
    suspects: int = 0
    """The number of suspects. They are in the mean, and in pass@k, as they were scored."""
    mean_without_suspects: float | None = None
    """The mean without suspects; None if there are none, or nothing else."""

    @property
    def excluded(self) -> int:
        """The number of rollouts without a score."""
        return self.rollouts - self.scored


class ToolUse(Struct, frozen=True):
    tool: str
    calls: int
    errors: int


class Spread(Struct, frozen=True):
    """The distribution of a quantity over rollouts."""

    total: float
    mean: float
    median: float
    p95: float
    most: float


class FailureLedger(Struct, frozen=True, kw_only=True):
    """What a run has lost to failures of the world, by cause, and how much that could change its mean."""

    rollouts: int
    lost: int
    """Rollouts without a score."""
    causes: Mapping[str, int]
    """How many were lost to each: node, slot, server, tool, verifier, agent (a program that could not be run), bug."""
    broken: int = 0
    """Rollouts that the agent broke itself. They are not lost: their score is 0. Counted where rollouts are read."""
    mean: float | None
    """Of the rollouts that have a score."""
    lowest: float | None
    """The mean if each lost rollout had scored 0."""
    highest: float | None
    """The mean if each lost rollout had scored 1."""


class ScoreCell(NamedTuple):
    """The scores of rollouts that count as one: those of a task, or all of a run."""

    total: float
    scored: int
    lost: int


class JudgeAgreement(Struct, frozen=True):
    """How far two judges agree on the same replies (`ludus.verify.grading`)."""

    rollouts: int
    same: float
    """The share of rollouts that both pass, or both fail."""
    kappa: float | None
    """Cohen's kappa of passes: 1 is full agreement, 0 is that of chance. None if a judge gives all the same verdict."""
    difference: float
    """The mean absolute difference of their grades."""


class SkillLoads(Struct, frozen=True):
    """How many rollouts loaded the skill that lay in their slots (`ludus.skill_use`), and how they scored."""

    rollouts: int
    """Rollouts whose slots had the skill's files."""
    loaded: int
    unknown: int
    """Those of which nobody could see whether the agent read the document. They are neither loaded nor not."""
    mean_loaded: float | None
    """The mean score of the rollouts that loaded it. They are not drawn at random: the agent chose to load it."""
    mean_other: float | None
    """The mean score of those that did not."""
    files: Mapping[str, int]
    """How many rollouts opened each file beside the document, or were shown it."""
    scripts: Mapping[str, int]
    """How many rollouts ran each script."""


def describe_loads(loads: SkillLoads) -> str:
    """How many rollouts loaded the skill, in words. A skill that was never loaded is told apart from one that did not
    help."""
    unknown = f", {loads.unknown} unknown" if loads.unknown else ""
    share = f"{loads.loaded} of {loads.rollouts} rollouts ({100 * loads.loaded / loads.rollouts:.0f} %){unknown}"
    if loads.loaded == 0 and not loads.unknown:
        return f"{share}: it was never loaded, so the scores say nothing about its text"
    if loads.mean_loaded is not None and loads.mean_other is not None:
        return f"{share}; mean {loads.mean_loaded:.3f} where it was loaded, {loads.mean_other:.3f} where it was not"
    return share


class RunSummary(Struct, frozen=True, kw_only=True):
    """The numbers of a run, written as `summary.json`. `schema` is raised when a field changes its meaning."""

    schema: int = 1
    overall: ScoreStats
    kinds: Mapping[str, ScoreStats]
    """The same for each kind of task; empty when there is only one kind."""
    partial: int
    """The number of groups with fewer scored rollouts than were requested."""
    failed: Mapping[str, int]
    """The number of rollouts without a score, by the boundary that failed."""
    reasons: tuple[str, ...]
    """The most frequent messages of failures, at most three."""
    stops: Mapping[str, int]
    tools: tuple[ToolUse, ...]
    tool_errors: int
    usage: Usage
    """Of the recorded attempts. Attempts that were retried and judges are not in it; the ledger has those."""
    seconds: Spread | None
    turns: Spread | None
    agreement: JudgeAgreement | None = None
    """Of the two judges, in runs that have a second one."""
    failures: FailureLedger
    """What was lost, by cause, with the bounds of the mean."""
    skill_loads: SkillLoads | UnsetType = UNSET
    """Of runs whose skill lay in slots as files."""
    library_loads: Mapping[str, SkillLoads] | UnsetType = UNSET
    """The same for each skill of a library, by name."""


def summarize(groups: Iterable[Group]) -> RunSummary:
    """Compute the numbers of a run. Groups and their rollouts may be in any order."""
    tallies = [_tally_group(group) for group in groups]
    by_kind: dict[str, list[_Tally]] = {}
    for tally in tallies:
        by_kind.setdefault(tally.kind, []).append(tally)
    calls, errors = _add_counts(t.calls for t in tallies), _add_counts(t.errors for t in tallies)
    return RunSummary(
        overall=_compute_stats(tallies),
        kinds={kind: _compute_stats(by_kind[kind]) for kind in sorted(by_kind)} if len(by_kind) > 1 else {},
        partial=sum(len(t.values) < t.size for t in tallies),
        failed=_add_counts(t.failures for t in tallies),
        reasons=_pick_most_frequent(_add_counts(t.reasons for t in tallies), 3),
        stops=_add_counts(t.stops for t in tallies),
        tools=tuple(ToolUse(tool, count, errors.get(tool, 0)) for tool, count in calls.items()),
        tool_errors=sum(errors.values()),
        usage=_add_usages([t.usage for t in tallies]),
        seconds=compute_spread([s for t in tallies for s in t.seconds]),
        turns=compute_spread([n for t in tallies for n in t.turns]),
        agreement=compute_agreement([pair for t in tallies for pair in t.grades]),
        failures=make_failure_ledger(
            [ScoreCell(math.fsum(t.values), len(t.values), t.failures.total()) for t in tallies],
            _add_counts(t.failures for t in tallies),
            broken=sum(t.stops[StopReason.BROKEN] for t in tallies),
        ),
        skill_loads=_count_loads([use for t in tallies for use in t.uses]),
        library_loads=_count_library_loads([use for t in tallies for use in t.library_uses]),
    )


def _count_loads(uses: Sequence["_ScoredUse"]) -> SkillLoads | UnsetType:
    if not uses:
        return UNSET
    files, scripts = Counter[str](), Counter[str]()
    for each in uses:
        files.update({*each.use.opened, *each.use.shown} - {DOCUMENT})
        scripts.update(each.use.run)
    means = {
        loaded: _average(sorted(each.value for each in uses if each.use.loaded is loaded and each.value is not None))
        for loaded in (True, False)
    }
    return SkillLoads(
        rollouts=len(uses),
        loaded=sum(each.use.loaded is True for each in uses),
        unknown=sum(each.use.loaded is None for each in uses),
        mean_loaded=means[True],
        mean_other=means[False],
        files=dict(sorted(files.items())),
        scripts=dict(sorted(scripts.items())),
    )


def _count_library_loads(uses: Sequence[Mapping[str, "_ScoredUse"]]) -> Mapping[str, SkillLoads] | UnsetType:
    by_name: dict[str, list[_ScoredUse]] = {}
    for each in uses:
        for name, use in each.items():
            by_name.setdefault(name, []).append(use)
    counted = {name: _count_loads(found) for name, found in sorted(by_name.items())}
    return {name: loads for name, loads in counted.items() if loads is not UNSET} or UNSET


# ---- what was lost ------------------------------------------------------------------------------------------------

_CAUSES: Mapping[str, str] = {"model": "server", "sandbox": "slot", "setup": "slot"}
"""What a boundary is called in the ledger of failures, where that differs."""


def make_failure_ledger(cells: Iterable[ScoreCell], boundaries: Mapping[str, int], *, broken: int = 0) -> FailureLedger:
    """The ledger of what a run has lost. `cells`: the scores of each task, which have the same weight. `boundaries`:
    the rollouts without a score, by the boundary that failed."""
    known = [cell for cell in cells if cell.scored + cell.lost]
    return FailureLedger(
        rollouts=sum(cell.scored + cell.lost for cell in known),
        lost=sum(cell.lost for cell in known),
        causes=_name_causes(boundaries),
        broken=broken,
        mean=_average([cell.total / cell.scored for cell in known if cell.scored]),
        lowest=_average([cell.total / (cell.scored + cell.lost) for cell in known]),
        highest=_average([(cell.total + cell.lost) / (cell.scored + cell.lost) for cell in known]),
    )


def _name_causes(boundaries: Mapping[str, int]) -> dict[str, int]:
    """The causes of failures at these boundaries, the most frequent first."""
    causes = Counter[str]()
    for boundary, count in sorted(boundaries.items()):
        causes[_CAUSES.get(boundary, boundary)] += count
    return dict(causes.most_common())


def _average(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def describe_failures(failures: FailureLedger) -> str:
    """What was lost in words; empty if nothing was."""
    if not failures.lost:
        return ""
    causes = ", ".join(f"{cause} {count}" for cause, count in failures.causes.items())
    share = f"{failures.lost} of {failures.rollouts} rollouts without a score ({causes})"
    if failures.lowest is None or failures.highest is None:
        return share
    return f"{share}: the mean is {failures.lowest:.3f} if each is 0, {failures.highest:.3f} if each is 1"


FEWEST_ENDED = 20
"""How many rollouts must have ended before their share of failures ends a run."""


def find_boundary(rollout: Rollout) -> str:
    """The boundary that failed; empty if the rollout has a score."""
    if rollout.score is not None:
        return ""
    return rollout.failure.boundary if rollout.failure else UNSCORED


def explain_failed_share(ended: int, boundaries: Mapping[str, int], most: float) -> str:
    """Why a run must end because too many of its rollouts have no score; empty if it need not."""
    lost = sum(boundaries.values())
    if ended < FEWEST_ENDED or lost <= most * ended:
        return ""
    causes = ", ".join(f"{cause} {number}" for cause, number in _name_causes(boundaries).items())
    return (
        f"{lost} of {ended} rollouts ended without a score ({causes}), more than limits.failed_share {most:g}: "
        "find the cause, then resume; what failed is run again"
    )


MOST_EXCLUDED = 0.02
"""The share of rollouts without a score above which there is a warning."""


def warn_of_exclusions(excluded: int, rollouts: int) -> str:
    """A warning that too many rollouts have no score; empty if there are few."""
    if not excluded or excluded <= MOST_EXCLUDED * rollouts:
        return ""
    share = f"{100 * excluded / rollouts:.1f} %"
    return f"{excluded} of {rollouts} rollouts ({share}) have no score and are in no mean: fix the cause and resume"


def compute_mean_with_zeros(values: Sequence[float], excluded: int) -> float | None:
    """The mean of a group if every rollout without a score had scored 0; None if there are no rollouts."""
    return math.fsum(values) / (len(values) + excluded) if len(values) + excluded else None


def estimate_pass_at(k: int, scored: int, passed: int) -> float:
    """The probability of at least one pass among k rollouts that are sampled, without replacement, from `scored`
    ones."""
    return 1.0 - math.comb(scored - passed, k) / math.comb(scored, k)


def compute_interval(
    task_means: Sequence[float], lowest: float = 0.0, highest: float = 1.0, level: float = 0.95
) -> Interval | None:
    """The confidence interval of the mean of task means, within the range of scores.

    Where every task has the lowest or the highest score, there is no spread to estimate. The interval is then Wilson's
    interval of a share.
    """
    tasks = len(task_means)
    if tasks < 2:
        return None
    mean = math.fsum(task_means) / tasks
    if mean in (lowest, highest):
        z = statistics.NormalDist().inv_cdf(0.5 + level / 2)
        reach = (highest - lowest) * z * z / (tasks + z * z)
        return Interval(lowest, lowest + reach) if mean == lowest else Interval(highest - reach, highest)
    half = compute_t_quantile(tasks - 1, 0.5 + level / 2) * statistics.stdev(task_means) / math.sqrt(tasks)
    return Interval(max(lowest, mean - half), min(highest, mean + half))


class PairedStats(Struct, frozen=True):
    """Two policies compared on the same tasks, task by task."""

    tasks: int
    difference: float
    """The mean of the differences."""
    interval: Interval
    """The 95 % interval of the difference."""
    wins: int
    """The number of tasks on which the first one is better."""
    losses: int
    better: float
    """The probability that the first one wins more than half of the tasks on which they differ."""

    @property
    def ties(self) -> int:
        """The number of tasks on which both are equal."""
        return self.tasks - self.wins - self.losses


def compare_pairs(
    differences: Sequence[float], interval: Callable[[Sequence[float]], Interval] | None = None
) -> PairedStats | None:
    """Compare two policies by the differences of their scores, one for each task; None without a task.

    `interval` computes the interval of the differences; by default it is `compute_adjusted_interval`.
    """
    if not differences:
        return None
    wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return PairedStats(
        len(differences),
        math.fsum(differences) / len(differences),
        (interval or compute_adjusted_interval)(differences),
        wins,
        losses,
        compute_win_probability(wins, losses),
    )


def compute_adjusted_interval(differences: Sequence[float]) -> Interval:
    """The 95 % interval of a mean difference of scores between 0 and 1, over tasks.

    One win and one loss are added to the tasks (Bonett and Price), because few tasks differ: without them the interval
    of ten equal results would be a point.
    """
    values = [*differences, 1.0, -1.0]
    mean = math.fsum(values) / len(values)
    half = compute_t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(max(-1.0, mean - half), min(1.0, mean + half))


def compute_win_probability(wins: int, losses: int) -> float:
    """The probability that the share of wins is above one half, with a flat prior: 0.5 if nothing differs.

    The posterior is Beta(wins + 1, losses + 1). With whole numbers its tail is a sum of binomial coefficients.
    """
    tosses = wins + losses + 1
    return sum(math.comb(tosses, k) for k in range(wins + 1)) / 2**tosses


_T_975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)


def compute_t_quantile(freedom: int, share: float = 0.975) -> float:
    """A quantile of Student's t above the median. That of 97.5 %: a table below ten degrees of freedom, else a series
    in 1/freedom. Others: by bisection of the distribution function."""
    if abs(share - 0.975) > 1e-9:
        return _bisect_t(freedom, share)
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _bisect_t(freedom: int, share: float) -> float:
    low, high = 0.0, 1.0
    while compute_t_share(high, freedom) < share and high < 1e9:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if compute_t_share(middle, freedom) < share else (low, middle)
    return high


def compute_t_share(t: float, freedom: int) -> float:
    """The distribution function of Student's t for t ≥ 0: a finite sum for whole degrees of freedom."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, odd = math.cos(angle) ** 2, freedom % 2
    term, total = 1.0, 0.0
    for k in range(1 + odd, freedom, 2):  # 1, 3, … for even ones; 2, 4, … for odd ones
        total += term
        term *= k / (k + 1) * cosine
    if not odd:
        return 0.5 + math.sin(angle) * total / 2
    return 0.5 + (angle + math.sin(angle) * math.cos(angle) * total) / math.pi


def compute_agreement(grades: Sequence["_Grades"]) -> JudgeAgreement | None:
    """How far two judges agree; None if no reply has two grades."""
    count = len(grades)
    if not count:
        return None
    same = sum(g.first_passes == g.second_passes for g in grades) / count
    first, second = (sum(column) / count for column in zip(*((g[2], g[3]) for g in grades), strict=True))
    chance = first * second + (1 - first) * (1 - second)
    difference = math.fsum(abs(g.first - g.second) for g in grades) / count
    constant = first in (0.0, 1.0) or second in (0.0, 1.0)
    return JudgeAgreement(count, same, None if constant else (same - chance) / (1 - chance), difference)


def compute_spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    ordered = sorted(values)
    total = math.fsum(ordered)
    p95 = ordered[math.ceil(0.95 * len(ordered)) - 1]
    return Spread(total, total / len(ordered), statistics.median(ordered), p95, ordered[-1])


# ---- one group ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tally:
    """What a summary needs of a group. With it, transcripts do not have to stay in memory."""

    kind: str
    size: int
    values: tuple[float, ...]
    unsuspected: tuple[float, ...]
    """The values without those of suspects."""
    passed: int
    failures: Counter[str]
    reasons: Counter[str]
    stops: Counter[str]
    calls: Counter[str]
    errors: Counter[str]
    usage: Usage
    seconds: tuple[float, ...]
    turns: tuple[int, ...]
    grades: tuple["_Grades", ...]
    """What two judges said, where there are two."""
    uses: tuple["_ScoredUse", ...]
    """What became of the skill's files."""
    library_uses: tuple[Mapping[str, "_ScoredUse"], ...]
    """The same for each skill of a library."""


def _tally_group(group: Group) -> _Tally:
    results = [r for rollout in group.rollouts for turn in rollout.turns for r in turn.results]
    scores = [r.score for r in group.rollouts if r.score is not None]
    return _Tally(
        kind=group.task.kind or next((rollout.kind for rollout in group.rollouts if rollout.kind), ""),
        size=group.size,
        values=tuple(score.value for score in scores),
        unsuspected=tuple(score.value for score in scores if not score.suspect),
        passed=sum(score.passed for score in scores),
        failures=Counter(boundary for r in group.rollouts if (boundary := find_boundary(r))),
        reasons=Counter(r.failure.message.partition(TRACEBACK)[0] for r in group.rollouts if r.failure),
        stops=Counter(r.stop.value for r in group.rollouts),
        calls=Counter(r.call.name for r in results),
        errors=Counter(r.call.name for r in results if r.error),
        usage=_add_usages([r.usage for r in group.rollouts]),
        seconds=tuple(r.seconds for r in group.rollouts),
        turns=tuple(len(r.turns) for r in group.rollouts),
        grades=tuple(_read_grades(score) for score in scores if "second_judge" in score.parts),
        uses=tuple(
            _ScoredUse(r.skill_use, r.score.value if r.score else None)
            for r in group.rollouts
            if r.skill_use is not None
        ),
        library_uses=tuple(
            {name: _ScoredUse(use, r.score.value if r.score else None) for name, use in r.library_use.items()}
            for r in group.rollouts
            if r.library_use is not None
        ),
    )


class _ScoredUse(NamedTuple):
    use: SkillUse
    value: float | None


class _Grades(NamedTuple):
    """The grades of two judges for one reply, and whether each is a pass."""

    first: float
    second: float
    first_passes: bool
    second_passes: bool


def _read_grades(score: Score) -> _Grades:
    part = score.parts
    passes = part.get("judge passes", 0.0) > 0, part.get("second_judge passes", 0.0) > 0
    return _Grades(part.get("judge", score.value), part["second_judge"], *passes)


def _compute_stats(tallies: Sequence[_Tally]) -> ScoreStats:
    means = _list_means(t.values for t in tallies)
    sure = _list_means(t.unsuspected for t in tallies)
    excluded = sum(t.failures.total() for t in tallies)
    lowest = [m for t in tallies if (m := compute_mean_with_zeros(t.values, t.failures.total())) is not None]
    every = [value for t in tallies for value in t.values]
    rollouts = sum(t.stops.total() for t in tallies)
    suspects = len(every) - sum(len(t.unsuspected) for t in tallies)
    return ScoreStats(
        tasks=len(tallies),
        rollouts=rollouts,
        scored=len(every),
        mean=math.fsum(means) / len(means) if means else None,
        interval=compute_interval(means, min([0.0, *every]), max([1.0, *every])),
        pass_at=tuple(
            _average_pass_at(k, tallies) for k in _list_powers(max((len(t.values) for t in tallies), default=0))
        ),
        mean_with_zeros=math.fsum(lowest) / len(lowest) if excluded else None,
        suspects=suspects,
        mean_without_suspects=math.fsum(sure) / len(sure) if suspects and sure else None,
    )


def _list_means(values: Iterable[tuple[float, ...]]) -> list[float]:
    """The means of the tasks that have scores."""
    return [math.fsum(each) / len(each) for each in values if each]


def _average_pass_at(k: int, tallies: Sequence[_Tally]) -> PassAt:
    """pass@k over the tasks with at least k scored rollouts. At least one task must have them."""
    values = [estimate_pass_at(k, len(t.values), t.passed) for t in tallies if len(t.values) >= k]
    return PassAt(k, math.fsum(values) / len(values), len(values))


def _list_powers(most: int) -> list[int]:
    """1, 2, 4, … up to `most`."""
    return [1 << i for i in range(most.bit_length())]


def _add_usages(usages: Sequence[Usage]) -> Usage:
    """The sum of usages. It is exactly the same in any order."""
    return Usage(
        sum(u.prompt_tokens for u in usages),
        sum(u.completion_tokens for u in usages),
        sum(u.cached_tokens for u in usages),
        math.fsum(u.dollars for u in usages),
    )


def _add_counts(counters: Iterable[Counter[str]]) -> dict[str, int]:
    """The sum of the counts, by name."""
    merged = Counter[str]()
    for counter in counters:
        merged.update(counter)
    return dict(sorted(merged.items()))


def _pick_most_frequent(counts: dict[str, int], most: int) -> tuple[str, ...]:
    """The names with the highest counts. Names of equal count are in alphabetical order, so the result is always the
    same."""
    return tuple(sorted(counts, key=lambda name: (-counts[name], name))[:most])
