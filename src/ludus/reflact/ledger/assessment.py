"""Assessment: the net gain of each line, which lines are in the working text, and which are retired. Pure.

The gain of a line is the accuracy that it should add: how sure it is that it works, times how often its situation
comes back without a line on the tasks that call for it. What it costs by the harm that it may do is taken off: for a
line about a situation by everything that rollouts and analysts say (`blame`), for any other line by outcomes
(`beliefs`) and by suspicions. A line enters the working text above one bar and leaves it below a lower one.
"""

import math
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from ludus.reflact.ledger.beliefs import (
    KindSlope,
    SideEffect,
    compute_normal_cdf,
    compute_side_effect,
    compute_slopes,
)
from ludus.reflact.ledger.blame import Cost, HarmTable, compute_cost
from ludus.reflact.ledger.file_reach import get_reach
from ludus.reflact.ledger.line_records import (
    Assessment,
    Line,
    LineChange,
    LineLedger,
    Situation,
    compute_logit,
    compute_sigmoid,
)
from ludus.reflact.ledger.settings import LedgerTuning

_HARM_FROM = compute_logit(0.3)
"""The log-odds from which suspected harm counts."""


def assess_lines(ledger: LineLedger, tuning: LedgerTuning) -> dict[str, Assessment]:
    """The assessment of each line that is alive, by its id."""
    situations = {situation.label: situation for situation in ledger.situations}
    slopes, harm = list_slopes(ledger), HarmTable(ledger.blame)
    shares = {kind: each.share for kind, each in slopes.items()}
    assessed: dict[str, Assessment] = {}
    for line in ledger.alive:
        cost = None if line.is_free else compute_cost(harm, line.id, _list_reached(ledger, line, shares))
        assessed[line.id] = _assess(ledger, line, situations.get(line.situation), slopes, cost, tuning)
    return assessed


def _list_reached(ledger: LineLedger, line: Line, shares: Mapping[str, float]) -> Mapping[str, float]:
    """How many of the tasks are of each kind and read the line."""
    if not line.edit.path:
        return shares
    return {kind: share * get_reach(ledger, line, kind) for kind, share in shares.items()}


def list_slopes(ledger: LineLedger) -> dict[str, KindSlope]:
    """How much accuracy changes with the score, by kind, beside the working text."""
    called = {situation.label: situation.called for situation in ledger.situations}
    working = {line.id: called[line.situation] for line in ledger.get_lines(ledger.working) if line.situation in called}
    return compute_slopes(ledger, working)


def _assess(
    ledger: LineLedger,
    line: Line,
    situation: Situation | None,
    slopes: Mapping[str, KindSlope],
    cost: Cost | None,
    tuning: LedgerTuning,
) -> Assessment:
    gain = 0.0
    if situation and not line.by_outcome:
        gain = compute_gain(ledger, line, situation, tuning) * line.reach
    if cost:
        gain *= 1.0 - cost.spoiled  # it helps nothing in a rollout that it spoils
    side = SideEffect(-cost.mean, cost.deviation) if cost else compute_side_effect(ledger, line, slopes)
    if line.passage:
        gain = tuning.passage_gain
    harm = 0.0
    for kind, odds in line.harm.items():  # the prior of other kinds is below the threshold
        if kind in slopes and odds > _HARM_FROM:
            harm += slopes[kind].share * tuning.harm_cost * (compute_sigmoid(odds) - 0.3) / 0.7
    net = gain + side.mean - harm
    pays = compute_normal_cdf((net - tuning.price) / side.deviation) if side.deviation else float(net > tuning.price)
    return Assessment(gain, net, side.deviation, pays)


def compute_gain(ledger: LineLedger, line: Line, situation: Situation, tuning: LedgerTuning) -> float:
    """The accuracy that a line should add by its situation if all tasks that call for it read it."""
    slip = tuning.slip
    spoiled = math.fsum([rate - slip for rate in situation.rates if rate > slip])
    return line.works * spoiled / max(1, len(ledger.seen), len(situation.called))


def update_working(ledger: LineLedger, step: int, tuning: LedgerTuning) -> tuple[LineLedger, tuple[LineChange, ...]]:
    """Assess all lines, choose the working text and retire lines. Returns the ledger and what has changed."""
    assessed = assess_lines(ledger, tuning)
    working = choose_working(ledger, assessed, tuning)
    changes = [LineChange(id, "entered", _explain(assessed[id])) for id in working if id not in ledger.working]
    refuted = {situation.label for situation in ledger.situations if situation.is_refuted}
    found = ((line.id, _find_reason(line, assessed[line.id], refuted, working, tuning)) for line in ledger.alive)
    reasons = {id: reason for id, reason in found if reason}
    changes += [
        LineChange(id, "left", _explain(assessed[id]) if id in assessed else "")
        for id in ledger.working
        if id not in working
    ]
    changes += [LineChange(id, "retired", reason) for id, reason in reasons.items()]
    lines = [
        replace(line, retired=step, reason=reasons[line.id]) if line.id in reasons else line for line in ledger.lines
    ]
    kept = tuple([id for id in working if id not in reasons])
    left = {id: each for id, each in assessed.items() if id not in reasons}
    return replace(ledger, lines=tuple(lines), working=kept, assessed=left), tuple(changes)


def choose_working(ledger: LineLedger, assessed: Mapping[str, Assessment], tuning: LedgerTuning) -> tuple[str, ...]:
    """The lines of the working text, in the order of birth: of each situation, the best one that is good enough."""
    best: dict[str, str] = {}
    members = frozenset(ledger.working)
    for line in ledger.alive:
        found = assessed[line.id]
        member = line.id in members
        works = tuning.stay_works if member else tuning.enter_works
        pays = tuning.stay_net if member or line.by_outcome else tuning.enter_net
        free = line.by_outcome or line.passage
        if found.pays <= pays or not (free or (found.gain > tuning.price and line.works > works)):
            continue
        rival = best.get(line.situation)
        if rival is None or found.net > assessed[rival].net:
            best[line.situation] = line.id
    chosen = set(best.values())
    return tuple(line.id for line in ledger.alive if line.id in chosen)


def _find_reason(
    line: Line, found: Assessment, refuted: Collection[str], working: Sequence[str], tuning: LedgerTuning
) -> str:
    """Why the line is retired; empty if it is not."""
    if line.works < tuning.retire_works and not line.passage:
        return f"works with probability {line.works:.2f}"
    if found.pays < tuning.retire_net:
        return f"pays with probability {found.pays:.2f}"
    return "its situation does not come back" if line.situation in refuted and line.id not in working else ""


def _explain(found: Assessment) -> str:
    return f"worth {100 * found.net:+.1f} points, pays with probability {found.pays:.2f}"
