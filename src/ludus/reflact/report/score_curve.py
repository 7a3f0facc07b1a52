"""The score curve of a training run as an SVG drawing. Pure.

Each candidate is a dot with its 95 % interval: filled if it was accepted, hollow if not. There are three lines: the
score of the current skill, the score of the best skill as a wide band behind it, and, fainter, the share of train
rollouts that passed. With the recipe `ledger` no text is measured before the end, and each train rollout has a text of
its own. So the line is what the text that would ship should score by all evidence so far, the fainter one is the same
for the initial skill, and the dots are the measurements of shipping. There are two drawings with the same content, for
wide and for narrow screens: the page shows one.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from ludus.reflact.gate import Gate, Measure, project, score
from ludus.reflact.ledger.beliefs import predict_pass_rate
from ludus.reflact.ledger.line_records import LineLedger
from ludus.reflact.records import Baseline, EpochEnd, Record, Step, Summary
from ludus.reflact.report.html_tags import Html, el, join_html
from ludus.reflact.stages.evaluate import compute_score
from ludus.stats import Interval, compute_interval

LEFT, RIGHT, TOP, BOTTOM = 46.0, 14.0, 14.0, 34.0


class Screen(NamedTuple):
    """A size of the drawing. Texts have a fixed size in it."""

    name: str
    width: float
    height: float
    labels: int
    """The most labels of steps."""


SCREENS = (Screen("wide", 1100.0, 300.0, 16), Screen("narrow", 400.0, 280.0, 6))


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


def draw_curve(data: Curve) -> Html:
    """The curve as an `svg` element for each kind of screen. The styles are in the page."""
    return join_html([_draw_on(screen, data) for screen in SCREENS])


def draw_legend(words: Mapping[str, str]) -> Html:
    """The legend: words for each kind of line or dot, with a sample that is drawn as in the curve."""
    return el("div", "legend", *(el("span", "", _draw_sample(kind), text) for kind, text in words.items()))


def _draw_sample(kind: str) -> Html:
    if kind in ("accepted", "rejected"):
        shape = el("circle", f"dot {kind}", cx=13.0, cy=6.0, r=4.5)
    else:
        name = kind if kind in ("epoch", "whisker") else f"curve {kind}"
        shape = el("line", name, x1=1.0, x2=25.0, y1=6.0, y2=6.0)
    return el("svg", "sample", shape, viewBox="0 0 26 12", aria_hidden="true")


def _draw_on(screen: Screen, data: Curve) -> Html:
    at = _Axes(data, screen)
    parts = [*at.draw_grid(), *at.draw_epoch_ends(data.epochs[:-1])]
    for name, points in (("train", data.train), ("best", data.best), ("current", data.current)):
        stairs = name != "train"
        parts.append(
            el("polyline", f"curve {name}", points=" ".join(at.trace_line(points, stairs=stairs)), fill="none")
        )
    parts += [at.draw_dot(dot) for dot in data.dots]
    if data.current and not data.expected:
        parts.append(el("circle", "dot accepted", cx=at.to_x(0), cy=at.to_y(data.current[0][1]), r=4.0))
    box = f"0 0 {screen.width:g} {screen.height:g}"
    return el("svg", f"plot {screen.name}", *parts, viewBox=box, role="img", aria_label="Score by step")


class _Axes:
    def __init__(self, data: Curve, screen: Screen) -> None:
        values = [value for line in (data.current, data.best, data.train) for _, value in line]
        values += [dot.score for dot in data.dots]
        self.low, self.high = min([0.0, *values]), max([1.0, *values])
        self.steps = data.steps
        self.screen = screen

    def to_x(self, step: float) -> float:
        return LEFT + (self.screen.width - LEFT - RIGHT) * step / self.steps

    def to_y(self, value: float) -> float:
        return TOP + (self.screen.height - TOP - BOTTOM) * (self.high - value) / (self.high - self.low)

    def draw_grid(self) -> Iterable[Html]:
        """Horizontal lines, and the labels of both axes."""
        for n in range(5):
            value = self.low + (self.high - self.low) * n / 4
            y = self.to_y(value)
            yield el("line", "grid", x1=LEFT, x2=self.screen.width - RIGHT, y1=y, y2=y)
            yield el("text", "label", f"{value:g}", x=LEFT - 8, y=y + 4, text_anchor="end")
        every = max(1, math.ceil(self.steps / self.screen.labels))
        for step in range(0, self.steps + 1, every):
            name = str(step) if step else "start"
            yield el("text", "label", name, x=self.to_x(step), y=self.screen.height - 14, text_anchor="middle")

    def draw_epoch_ends(self, epochs: Iterable[int]) -> Iterable[Html]:
        """A vertical line after each of these steps."""
        for step in epochs:
            x = self.to_x(step + 0.5)
            yield el("line", "epoch", x1=x, x2=x, y1=TOP, y2=self.screen.height - BOTTOM)

    def trace_line(self, points: Sequence[tuple[int, float]], *, stairs: bool) -> Iterable[str]:
        """The points of a line. With `stairs`, a score holds until the next step."""
        before: float | None = None
        for step, value in points:
            if stairs and before is not None:
                yield f"{self.to_x(step):.1f},{self.to_y(before):.1f}"
            yield f"{self.to_x(step):.1f},{self.to_y(value):.1f}"
            before = value

    def draw_dot(self, dot: Dot) -> Html:
        x, y = self.to_x(dot.step), self.to_y(dot.score)
        parts = [el("title", "", f"step {dot.step}: {dot.action}, {dot.score:.3f}")]
        if dot.interval is not None:
            low, high = self.to_y(dot.interval.low), self.to_y(dot.interval.high)
            parts.append(el("line", "whisker", x1=x, x2=x, y1=low, y2=high))
        parts.append(el("circle", "dot accepted" if dot.accepted else "dot rejected", cx=x, cy=y, r=4.5))
        return el("g", "", *parts)
