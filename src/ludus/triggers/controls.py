"""Is the instrument able to tell descriptions apart? It is asked in every run, before anything is said about skills.

Three controls, with answers that are known:

* **A/A**: the catalogue is measured twice with other seeds. The two must not differ by more than chance.
* **must win**: a made-up skill whose description says just what made-up requests ask for. It must be loaded for them.
* **must lose**: the same skill under the same name pattern, with a description of something else. It must not be.

A model that never calls tools, a parser that misses calls, or an agent that loads everything fails here. Then the
numbers say nothing about the descriptions, and nothing is claimed.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from ludus.catalogue import Catalogue, SkillCard
from ludus.envs.triggers import TriggerQuery
from ludus.stats import Interval, PairedStats, compare_pairs, compute_interval
from ludus.triggers.trigger_stats import QueryResult, compare_results

PROBE = "velmic-tables"
"""The name of the made-up skill. It says nothing by itself about what the skill is for."""
WINNER = (
    "Converts zorblax records to quemby format. Use it for every request that mentions zorblax or quemby: converting, "
    "checking or repairing such records."
)
LOSER = "Plans when apple trees are pruned in winter. Use it only for questions about pruning apple trees."
REQUESTS = (
    "Please convert the zorblax record 17/b to quemby format.",
    "I have three zorblax records here; check whether they can become quemby.",
    "My quemby file is broken since the last zorblax import. Can you repair it?",
    "Turn this into quemby: zorblax record, type 4, field a = 12.",
    "How many zorblax records fit into one quemby file? Convert mine if they fit.",
    "Repair zorblax record 99 and hand it back in quemby format.",
    "Is this still a valid zorblax record? If so, I want it as quemby.",
    "Our partner only reads quemby. Here are our zorblax records of May.",
    "The quemby importer says 'bad header'; it came from a zorblax record.",
    "Check zorblax records 5 to 20 for errors before we convert them.",
    "Which fields of a zorblax record have no place in quemby format?",
    "Give me the quemby version of the attached zorblax file.",
)
LEAST = 0.1
"""How much more often the winner must be loaded than the loser, at the lower end of the interval. It and the number of
requests were chosen on the development worlds of `bench/triggers.py`, whose agents are right in half of the runs."""


class ControlTrial(NamedTuple):
    """A catalogue with the made-up skill, and the requests for it."""

    catalogue: Catalogue
    queries: tuple[TriggerQuery, ...]


class ControlReport(Struct, frozen=True, kw_only=True):
    """What the controls say about the instrument."""

    same: PairedStats | None
    """The second half of the runs against the first; None: there is one run per query only."""
    winner: float | None
    """The share of runs in which the skill that must win was loaded."""
    loser: float | None
    apart: Interval | None
    """The interval of the difference."""
    problems: tuple[str, ...]
    """Why the instrument cannot be trusted; empty if it can."""

    @property
    def works(self) -> bool:
        return not self.problems


def make_controls(catalogue: Catalogue) -> tuple[ControlTrial, ControlTrial]:
    """The catalogue with the skill that must win, and with the one that must lose."""
    name = choose_probe(catalogue)
    queries = tuple(
        TriggerQuery(id=f"control-{number}", text=text, right=name) for number, text in enumerate(REQUESTS, 1)
    )
    return (
        ControlTrial(catalogue.add(SkillCard(name, WINNER)), queries),
        ControlTrial(catalogue.add(SkillCard(name, LOSER)), queries),
    )


def choose_probe(catalogue: Catalogue) -> str:
    """A name for the made-up skill that no skill of the catalogue has."""
    names = (PROBE if number == 1 else f"{PROBE}-{number}" for number in itertools.count(1))
    return next(name for name in names if name not in catalogue.names)


def judge_controls(
    first: Sequence[QueryResult],
    second: Sequence[QueryResult],
    winner: Sequence[QueryResult],
    loser: Sequence[QueryResult],
) -> ControlReport:
    """What the controls say. `first` and `second`: the two halves of the runs of the catalogue."""
    same = compare_results(second, first) if first and second else None
    won, lost = ({each.query.id: _measure_share(each) for each in part} for part in (winner, loser))
    shared = [won[id] - lost[id] for id in won if id in lost]
    paired = compare_pairs(shared)
    problems = [*_find_drift(same), *_find_blindness(shared)]
    return ControlReport(
        same=same,
        winner=_average(list(won.values())),
        loser=_average(list(lost.values())),
        apart=paired.interval if paired else None,
        problems=tuple(problems),
    )


def _measure_share(result: QueryResult) -> float:
    """The share of runs in which the made-up skill was loaded."""
    return result.loads.get(result.query.right or "", 0) / result.runs


def _find_drift(same: PairedStats | None) -> list[str]:
    if same is None or same.interval.low <= 0.0 <= same.interval.high:
        return []
    points = f"{100 * same.difference:+.0f} points [{100 * same.interval.low:+.0f}, {100 * same.interval.high:+.0f}]"
    return [
        f"the same catalogue measured twice differs by {points}: something else than the descriptions has changed "
        "(the server, its cache, a limit); measure again"
    ]


def _find_blindness(shared: Sequence[float]) -> list[str]:
    """The problem if a description that must win and one that must lose are not told apart."""
    if not shared:
        return ["no run of the control requests has a verdict: look at the failed rollouts"]
    interval = compute_interval(shared, min(0.0, *shared), 1.0)
    low = interval.low if interval else -1.0
    if low >= LEAST:
        return []
    high = interval.high if interval else 1.0
    mean, band = 100 * sum(shared) / len(shared), f"[{100 * low:+.0f}, {100 * high:+.0f}]"
    return [
        f"a skill whose description says just what is asked is loaded {mean:+.0f} points {band} more often than one "
        f"about something else, and the lower end must be {100 * LEAST:.0f}: the agent does not go by descriptions, or "
        "its calls are not read (look at: ludus show RUN control-1)"
    ]


def _average(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
