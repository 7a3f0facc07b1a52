"""The scores of a training run by step, as numbers that pages and terminals draw. Pure.

Each candidate is a dot with its 95 % interval. There are three lines: the score of the current skill, the score of the
best skill, and the share of train rollouts that passed. With the recipe `ledger` no text is measured before the end,
and each train rollout has a text of its own. So the line is what the text that would ship should score by all evidence
so far, another one is the same for the initial skill, and the dots are the measurements of shipping.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from ludus.reflact.gate import Gate, Measure, project, score
from ludus.reflact.ledger.beliefs import predict_pass_rate
from ludus.reflact.ledger.line_records import LineLedger
from ludus.reflact.records import Baseline, EpochEnd, Record, Step, Summary
from ludus.reflact.stages.evaluate import compute_score
from ludus.stats import Interval, compute_interval


class Dot(Struct, frozen=True):
    """A candidate and its score on the selection split."""

    step: int
    score: float
    interval: Interval | None
    action: str
    accepted: bool


class Curve(Struct, frozen=True):
    """The numbers that are drawn."""

    current: tuple[tuple[int, float], ...]
    best: tuple[tuple[int, float], ...]
    train: tuple[tuple[int, float], ...]
    dots: tuple[Dot, ...]
    epochs: tuple[int, ...]
    """The steps after which an epoch ended."""
    steps: int
    expected: bool = False
    """Whether the lines are expected from evidence, not measured: `current` is the text that would ship, and `train` is
    the initial skill."""


def make_curve(records: Sequence[Record], gate: Gate) -> Curve:
    """The numbers of the drawing, from the records."""
    if any(isinstance(record.state.ledger, LineLedger) for record in records):
        return _make_expected_curve(records, gate)
    measured = [r for r in records if isinstance(r, Baseline | Step)]
    current = [(r.state.step, now) for r in measured if (now := compute_score(gate, r.state.current)) is not None]
    best = [(r.state.step, most) for r in measured if (most := compute_score(gate, r.state.best)) is not None]
    steps = [r for r in records if isinstance(r, Step)]
    return Curve(
        tuple(current),
        tuple(best),
        tuple((step.number, step.hard) for step in steps if step.hard is not None),
        tuple(dot for step in steps if (dot := _make_dot(step, gate)) is not None),
        tuple(r.state.step for r in records if isinstance(r, EpochEnd)),
        max([1, *(step.number for step in steps)]),
    )


def _make_expected_curve(records: Sequence[Record], gate: Gate) -> Curve:
    """The numbers of a run with the recipe `ledger`."""
    steps = [r for r in records if isinstance(r, Step)]
    ledgers = [(step.number, step.state.ledger) for step in steps if isinstance(step.state.ledger, LineLedger)]
    shipping = [(number, predict_pass_rate(each, each.get_lines(each.working))) for number, each in ledgers]
    initial = [(number, predict_pass_rate(each, ())) for number, each in ledgers]
    last = max([1, *(step.number for step in steps)])
    return Curve(
        tuple((number, score) for number, score in shipping if score is not None),
        (),
        tuple((number, score) for number, score in initial if score is not None),
        tuple(_list_shipping_dots(records, gate, last)),
        (),
        last,
        expected=True,
    )


def _list_shipping_dots(records: Sequence[Record], gate: Gate, last: int) -> Iterator[Dot]:
    """The initial skill and the candidates as they were measured for shipping, at the last step."""
    summary = records[-1]
    if not isinstance(summary, Summary) or summary.shipment is None:
        return
    shipment = summary.shipment
    measured = [("initial skill", summary.state.initial.skill, shipment.initial)]
    measured += [(each.origin, each.skill, each.measure) for each in shipment.candidates]
    for name, skill, measure in measured:
        found = score(gate, skill, measure)
        if found is not None:
            shipped = skill.hash == shipment.shipped
            words = f"{name}, {'shipped' if shipped else 'measured for shipping'}"
            yield Dot(last, found, compute_score_interval(measure, gate), words, shipped)


def _make_dot(step: Step, gate: Gate) -> Dot | None:
    if step.measure is None or step.verdict is None or step.verdict.candidate is None:
        return None
    accepted = step.verdict.decision.accepted
    return Dot(step.number, step.verdict.candidate, compute_score_interval(step.measure, gate), step.action, accepted)


def compute_score_interval(measure: Measure | None, gate: Gate) -> Interval | None:
    """The 95 % interval of the score that the gate compares, over tasks, without a bonus for density."""
    marks = measure.marks.values() if measure else ()
    return compute_interval([project(gate, mark.hard, mark.soft) for mark in marks])


# ---- drawing --------------------------------------------------------------------------------------------------------
