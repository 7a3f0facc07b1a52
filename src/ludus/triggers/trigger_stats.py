"""The numbers of a catalogue: who is loaded for what. Pure functions.

The unit of every interval is the query, because runs of one query resemble each other. Recall of a skill: the share of
runs in which it was loaded, over the queries that it is right for. Precision: the share of its loads that were right,
over all queries for which that is known. Rollouts without a verdict are counted and are in no share.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from msgspec import Struct

from ludus.envs.triggers import NONE, TriggerQuery, list_loaded, read_answer
from ludus.stats import Interval, PairedStats, compare_pairs, compute_interval
from ludus.types import Rollout

DRAWS = 2_000
"""Bootstrap samples of the interval of a precision."""
NOBODY = "(none)"
"""In tables, in place of a skill: none was loaded, or none is right."""


class QueryResult(Struct, frozen=True, kw_only=True):
    """What happened to one query in all its runs."""

    query: TriggerQuery
    runs: int
    """Those with a verdict."""
    right: int
    loads: Mapping[str, int]
    """How often each skill was loaded."""
    silent: int
    """How often none was."""
    failed: int = 0

    @property
    def rate(self) -> float:
        return self.right / self.runs

    @property
    def is_flaky(self) -> bool:
        """Whether runs of it differ."""
        return 0 < self.right < self.runs


class SkillTriggers(Struct, frozen=True, kw_only=True):
    """How well one skill is triggered."""

    skill: str
    queries: int
    """That it is right for."""
    recall: float | None
    recall_interval: Interval | None
    loads: int
    precision: float | None
    """None: it was never loaded for a query whose right skill is known."""
    precision_interval: Interval | None


class TriggerReport(Struct, frozen=True, kw_only=True):
    """The numbers of a catalogue on some queries."""

    queries: int
    runs: int
    failed: int
    """Rollouts without a verdict."""
    accuracy: float | None
    interval: Interval | None
    skills: tuple[SkillTriggers, ...]
    confusion: Mapping[str, Mapping[str, int]]
    """For queries that a skill is right for (or none is): how often each was loaded."""
    flaky: tuple[str, ...]
    """The ids of queries whose runs differ."""
    flaky_texts: tuple[str, ...] = ()
    """What these ask."""
    unchecked: int = 0
    """Queries whose right skill no person has checked."""


def collect_results(rollouts: Iterable[Rollout]) -> list[QueryResult]:
    """The results by query, in the order in which queries first appear. A query without a verdict has none."""
    by_query: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        by_query.setdefault(rollout.task.id, []).append(rollout)
    return [found for group in by_query.values() if (found := _collect(group)) is not None]


def _collect(group: Sequence[Rollout]) -> QueryResult | None:
    judged = [rollout for rollout in group if rollout.score is not None]
    if not judged:
        return None
    loads, silent = Counter[str](), 0
    for rollout in judged:
        names = list_loaded(rollout)
        loads.update(names)
        silent += not names
    return QueryResult(
        query=read_answer(group[0].task),
        runs=len(judged),
        right=sum(rollout.score is not None and rollout.score.passed for rollout in judged),
        loads=dict(sorted(loads.items())),
        silent=silent,
        failed=len(group) - len(judged),
    )


def make_report(results: Sequence[QueryResult], names: Sequence[str], failed: int = 0) -> TriggerReport:
    """The numbers of a catalogue with these skills. `failed`: rollouts of queries that have no verdict at all."""
    rates = [result.rate for result in results]
    return TriggerReport(
        queries=len(results),
        runs=sum(result.runs for result in results),
        failed=failed + sum(result.failed for result in results),
        accuracy=_average(rates),
        interval=compute_interval(rates),
        skills=tuple(measure_skill(name, results) for name in names),
        confusion=count_confusion(results),
        flaky=tuple(result.query.id for result in results if result.is_flaky),
        flaky_texts=tuple(result.query.text for result in results if result.is_flaky),
        unchecked=sum(not result.query.is_checked for result in results),
    )


def measure_skill(name: str, results: Sequence[QueryResult]) -> SkillTriggers:
    """Precision and recall of one skill."""
    if name == NONE:
        return _measure_silence(results)
    recalls = [result.loads.get(name, 0) / result.runs for result in results if result.query.right == name]
    known = [(result.loads[name], _count_right_loads(name, result)) for result in results if _is_known(name, result)]
    return _sum_up(name, recalls, known)


def _measure_silence(results: Sequence[QueryResult]) -> SkillTriggers:
    """The same for no skill: how often none was loaded where none is right, and how often that was right."""
    recalls = [result.silent / result.runs for result in results if result.query.right == NONE]
    known = [
        (result.silent, result.silent if result.query.right == NONE else 0)
        for result in results
        if result.silent and result.query.right is not None
    ]
    return _sum_up(NONE, recalls, known)


def _sum_up(name: str, recalls: Sequence[float], known: Sequence[tuple[int, int]]) -> SkillTriggers:
    """`recalls`: of each query. `known`: the loads of each query that can be judged, and the right ones among them."""
    loads = sum(all for all, _ in known)
    return SkillTriggers(
        skill=name,
        queries=len(recalls),
        recall=_average(recalls),
        recall_interval=compute_interval(recalls),
        loads=loads,
        precision=sum(right for _, right in known) / loads if loads else None,
        precision_interval=bootstrap_ratio(known),
    )


def _is_known(name: str, result: QueryResult) -> bool:
    """Whether a load of the skill is known to be right or wrong for the query, and there was one."""
    query = result.query
    return bool(result.loads.get(name)) and (query.right is not None or name in query.wrong)


def _count_right_loads(name: str, result: QueryResult) -> int:
    return result.loads[name] if result.query.right == name else 0


def bootstrap_ratio(pairs: Sequence[tuple[int, int]]) -> Interval | None:
    """The 95 % interval of the share of right loads, over queries. `pairs`: the loads of a query and the right ones."""
    if len(pairs) < 2:
        return None
    if len({right == all for all, right in pairs}) == 1 and pairs[0][1] in (0, pairs[0][0]):
        return compute_interval([right / all for all, right in pairs])
    random, shares = Random(len(pairs)), list[float]()
    for _ in range(DRAWS):
        drawn = random.choices(pairs, k=len(pairs))
        shares.append(sum(right for _, right in drawn) / sum(all for all, _ in drawn))
    shares.sort()
    return Interval(shares[math.floor(0.025 * DRAWS)], shares[math.ceil(0.975 * DRAWS) - 1])


def count_confusion(results: Iterable[QueryResult]) -> dict[str, dict[str, int]]:
    """By right skill, how often each skill was loaded, or none was. Queries with wrong skills only are left out."""
    table: dict[str, Counter[str]] = {}
    for result in results:
        if result.query.right is None:
            continue
        row = table.setdefault(result.query.right or NOBODY, Counter())
        row.update(result.loads)
        row[NOBODY] += result.silent
    return {right: dict(sorted((+row).items())) for right, row in sorted(table.items())}


def compare_results(new: Sequence[QueryResult], old: Sequence[QueryResult]) -> PairedStats | None:
    """The difference of two catalogues on the queries that both have a verdict for."""
    before = {result.query.id: result.rate for result in old}
    return compare_pairs([each.rate - before[each.query.id] for each in new if each.query.id in before])


class TriggerChange(Struct, frozen=True, kw_only=True):
    """What a change of the catalogue did to the queries of one skill."""

    skill: str
    paired: PairedStats | None
    before: SkillTriggers
    after: SkillTriggers


def list_skill_changes(
    new: Sequence[QueryResult], old: Sequence[QueryResult], names: Sequence[str]
) -> tuple[TriggerChange, ...]:
    """What happened to each skill, and to queries that none is right for."""
    found: list[TriggerChange] = []
    for name in (*names, NONE):
        pair = [[result for result in results if result.query.right == name] for results in (new, old)]
        if any(pair):
            found.append(
                TriggerChange(
                    skill=name or NOBODY,
                    paired=compare_results(*pair),
                    before=measure_skill(name, old),
                    after=measure_skill(name, new),
                )
            )
    return tuple(found)


def _average(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
