"""Hazards: what is to blame for failures that nobody has explained. Pure.

Several things can spoil a rollout on their own: each line of its text, the task itself, tasks of its kind, and each
situation that spoiled the task before and that no line of the text is about. Each has a rate with a Gamma belief: what
was blamed on it, over the rollouts in which it could have acted. A failure without a named cause is blamed on all of
them together, in proportion to their rates so far. So a line that is left out now and then is found out even if no
analyst suspects it: failures come with it and stay away without it. A suspicion is a prior: it multiplies a line's
share of the blame. A failure with a named cause says nothing here, unless lines are suspected as well.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ludus.reflact.ledger.line_records import Hazard, Reading


class _Prior(NamedTuple):
    blamed: float
    exposed: float


_LINE, _TASK, _KIND, _MISSING = _Prior(0.1, 1.0), _Prior(0.5, 4.0), _Prior(1.0, 8.0), _Prior(1.0, 3.0)
_NONE = Hazard(0.0, 0.0)
_SUSPECTED = 5.0
"""How much more blame a suspect gets."""
_EXPLAINED = 3.0
"""How much of the blame a named situation takes where lines are suspected as well, in sums of all rates."""
_USUAL = 0.02
"""The rate that any line may have by chance. What is above it counts."""


def name_hazard(line: str, kind: str) -> str:
    return f"line/{line}/{kind}"


def update_hazards(hazards: dict[str, Hazard], reading: Reading, lines: Sequence[str], missing: Sequence[str]) -> None:
    """Add one rollout. `lines`: the ids in its text; `missing`: situations that spoiled its task before, and that no
    line of the text is about."""
    named = bool(reading.situations)
    if not reading.passed and named and not reading.suspects:
        return
    names = [name_hazard(id, reading.kind) for id in lines]
    names += [f"task/{reading.task}", f"kind/{reading.kind}", *(f"missing/{label}" for label in missing)]
    priors = [_LINE] * len(lines) + [_TASK, _KIND] + [_MISSING] * len(missing)
    found = [hazards.get(name, _NONE) for name in names]
    if reading.passed:
        for name, hazard in zip(names, found, strict=True):
            hazards[name] = Hazard(hazard.blamed, hazard.exposed + 1.0)
        return
    rates = [(p.blamed + h.blamed) / (p.exposed + h.exposed) for p, h in zip(priors, found, strict=True)]
    weights = [
        rate * (_SUSPECTED if place < len(lines) and lines[place] in reading.suspects else 1.0)
        for place, rate in enumerate(rates)
    ]
    total = math.fsum(weights) + (_EXPLAINED * math.fsum(rates) if named else 0.0)
    for place, (name, hazard) in enumerate(zip(names, found, strict=True)):
        if not named or (place < len(lines) and lines[place] in reading.suspects):
            hazards[name] = Hazard(hazard.blamed + weights[place] / total, hazard.exposed + 1.0)


class LineDamage(NamedTuple):
    """The share of rollouts that a line spoils, averaged over kinds, and the variance of that belief."""

    mean: float
    variance: float


def compute_damage(hazards: Mapping[str, Hazard], line: str, shares: Mapping[str, float]) -> LineDamage:
    """What a line spoils, by its hazards. `shares`: the share of each kind in the tasks seen."""
    mean = variance = 0.0
    for kind, share in shares.items():
        hazard = hazards.get(name_hazard(line, kind), _NONE)
        blamed, exposed = _LINE.blamed + hazard.blamed, _LINE.exposed + hazard.exposed
        mean += share * (1.0 - math.exp(-max(0.0, blamed / exposed - _USUAL)))
        variance += share * share * blamed / exposed**2
    return LineDamage(mean, variance)
