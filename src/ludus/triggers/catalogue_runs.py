"""Run queries with a catalogue: each run of a query is a rollout of a run, found again after a kill.

The catalogue takes the place of the skill in the policy. So catalogues are compared as skills are: the same queries,
the same seeds, and a content address that contains the text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ludus.catalogue import Catalogue, render_catalogue
from ludus.envs.triggers import TriggerQuery, make_task
from ludus.reflact.measure import SkillRunner, Trial
from ludus.triggers.trigger_agent import write_cards
from ludus.triggers.trigger_stats import QueryResult, collect_results
from ludus.types import Rollout


@dataclass(frozen=True)
class CatalogueRuns:
    """Runs catalogues on queries."""

    runner: SkillRunner
    seed: int
    runs: int
    """How often each query is run."""
    placed: bool = False
    """Whether a command-line agent acts, which finds the skills in its slot."""

    async def measure(
        self,
        catalogues: Sequence[Catalogue],
        queries: Sequence[TriggerQuery],
        stage: str,
        *,
        first: int = 0,
        runs: int | None = None,
    ) -> list[list[Rollout]]:
        """The rollouts of each catalogue. `first`: the number of the first run of a query; equal numbers have equal
        seeds, so that catalogues can be paired."""
        render = write_cards if self.placed else render_catalogue
        trials = [
            Trial(render(catalogue), make_task(query, catalogue.names, placed=self.placed), self.seed, number)
            for catalogue in catalogues
            for query in queries
            for number in range(first, first + (runs or self.runs))
        ]
        rollouts = await self.runner.run_trials(trials, stage)
        size = len(queries) * (runs or self.runs)
        return [rollouts[number * size : (number + 1) * size] for number in range(len(catalogues))]

    async def measure_one(self, catalogue: Catalogue, queries: Sequence[TriggerQuery], stage: str) -> list[QueryResult]:
        (rollouts,) = await self.measure([catalogue], queries, stage)
        return collect_results(rollouts)


def split_halves(rollouts: Sequence[Rollout]) -> tuple[list[Rollout], list[Rollout]]:
    """Earlier and later runs of each query, for an A/A comparison. The middle one of an odd number is in neither."""
    by_query: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        by_query.setdefault(rollout.task.id, []).append(rollout)
    first, second = list[Rollout](), list[Rollout]()
    for group in by_query.values():
        half = len(group) // 2
        first += group[:half]
        second += group[len(group) - half :]
    return first, second


def split_queries(queries: Sequence[TriggerQuery], sealed: float) -> tuple[list[TriggerQuery], list[TriggerQuery]]:
    """Train and sealed queries: of each right skill the same share, chosen by hashes, so that new queries move few of
    the old ones. Queries that a person has checked are sealed before those that a model has proposed."""
    groups: dict[str, list[TriggerQuery]] = {}
    for query in queries:
        groups.setdefault(query.right or f"not {query.wrong}", []).append(query)
    train, kept = list[TriggerQuery](), list[TriggerQuery]()
    for group in groups.values():
        ordered = sorted(group, key=lambda query: (not query.is_checked, _hash(query.id)))
        count = round(len(ordered) * sealed)
        kept += ordered[:count]
        train += ordered[count:]
    return list(_keep_order(queries, train)), list(_keep_order(queries, kept))


def _hash(id: str) -> bytes:
    import hashlib

    return hashlib.sha256(f"sealed/{id}".encode()).digest()


def _keep_order(queries: Sequence[TriggerQuery], chosen: Sequence[TriggerQuery]) -> Iterator[TriggerQuery]:
    ids = {query.id for query in chosen}
    return (query for query in queries if query.id in ids)
