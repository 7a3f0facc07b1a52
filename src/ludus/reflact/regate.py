"""Apply another gate to the decisions of a run, without a rollout. Pure.

Each candidate is judged again against the skill that it was compared with in the run, by the stored outcomes of both.
Another decision would have led to other candidates afterwards. No stored rollout can show those, so every decision is
taken by itself.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

from msgspec import UNSET, Struct
from msgspec.structs import replace

from ludus.reflact.early_gates import replay
from ludus.reflact.gate import Contender, Gate, Measure, Rule, Verdict, compare
from ludus.reflact.records import EpochEnd, MeasuredSkill, Record, RunState, Step
from ludus.skill import Skill

FindMeasure = Callable[[Skill], Measure | None]
"""Everything that is known about a skill."""


class Redecision(Struct, frozen=True):
    """A decision of a run, and the one of another gate on the same outcomes."""

    origin: str
    """`step_0003`, `slow_update_epoch_02`, …"""
    before: str
    """The decision in the run."""
    verdict: Verdict
    used: int
    """The number of items on which the other gate measured the candidate."""
    measured: int
    """The number of items on which the run measured it."""

    @property
    def differs(self) -> bool:
        """Whether the other gate would have replaced the current skill where the run did not, or the reverse."""
        return self.verdict.decision.accepted != self.before.startswith(("accept", "force"))


def regate(
    records: Sequence[Record], gate: Gate, rule: Rule, find_measure: FindMeasure, seed: int
) -> Iterator[Redecision]:
    """The decisions of a run, by another gate."""
    for before, record in itertools.pairwise(records):
        match record:
            case Step():
                part, origin = record, f"step_{record.number:04d}"
            case EpochEnd():
                part, origin = record.slow, f"slow_update_epoch_{record.epoch:02d}"
            case _:
                continue
        if part.candidate is None or part.verdict is None or part.measure is None:
            continue
        state = _measure_current(before.state, record.state)
        candidate = Contender(part.candidate, _add_outcomes(part.measure, find_measure(part.candidate)))
        current, best = (_make_contender(held, find_measure) for held in (state.current, state.best))
        verdict, used = replay(rule, gate, candidate, current, best, seed + record.state.step)
        verdict = replace(verdict, paired=compare(gate, candidate, current) or UNSET)
        yield Redecision(origin, part.verdict.decision.value, verdict, used, len(candidate.measure.marks))


def _measure_current(before: RunState, after: RunState) -> RunState:
    """The state in which a decision was taken. A current skill that was not measured before was measured for it."""
    if before.current.measure is None and after.current.skill == before.current.skill:
        return replace(before, current=after.current)
    return before


def _make_contender(held: MeasuredSkill, find_measure: FindMeasure) -> Contender:
    return Contender(held.skill, _add_outcomes(held.measure or Measure(held.skill.hash), find_measure(held.skill)))


def _add_outcomes(recorded: Measure, found: Measure | None) -> Measure:
    """What the store knows about a skill, or else what the record says."""
    return recorded if found is None else replace(found, marks={**recorded.marks, **found.marks})
