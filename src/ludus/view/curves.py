"""The curves of a run, from its index and its records. Each has at most some hundred points: more are averaged."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence

from ludus.reflact.records import Record, find_gate
from ludus.reflact.report.score_curve import make_curve
from ludus.reflact.train_settings import TrainSettings
from ludus.rl.records import RlStep
from ludus.view.facts import RunFacts
from ludus.view.model import ChartCurve, ChartPoint

POINTS = 300


def thin(points: Sequence[ChartPoint], most: int = POINTS) -> tuple[ChartPoint, ...]:
    """At most so many points. Neighbours are averaged; points with a kind, such as decisions, are kept if they fit."""
    if len(points) <= most:
        return tuple(points)
    size = math.ceil(len(points) / most)
    pieces = [points[start : start + size] for start in range(0, len(points), size)]
    return tuple(_average(piece) for piece in pieces)


def _average(piece: Sequence[ChartPoint]) -> ChartPoint:
    lows = [point.low for point in piece if point.low is not None]
    highs = [point.high for point in piece if point.high is not None]
    return ChartPoint(
        x=piece[-1].x,
        y=statistics.fmean(point.y for point in piece),
        low=statistics.fmean(lows) if lows else None,
        high=statistics.fmean(highs) if highs else None,
        label=piece[-1].label,
        kind=piece[-1].kind,
        ref=piece[-1].ref,
    )


# ---- runs of rollouts ---------------------------------------------------------------------------------------------


def make_rollout_curves(facts: RunFacts) -> Iterator[ChartCurve]:
    """Score, length, errors, cost and throughput over the rollouts of a run, in the order in which they ended."""
    total = facts.count()
    if not total:
        return
    size = max(1, math.ceil(total / POINTS))
    sums = (
        "min(id), count(*), count(score), ifnull(sum(score), 0), ifnull(sum(score * score), 0), sum(turns), "
        "sum(errors), sum(calls), sum(dollars)"
    )
    rows = list(facts.select(sums, f"GROUP BY (id - 1) / {size} ORDER BY 1"))
    scores, length, errors, cost = list[ChartPoint](), list[ChartPoint](), list[ChartPoint](), list[ChartPoint]()
    done, scored, whole, squares, dollars = 0, 0, 0.0, 0.0, 0.0
    for first, count, marks, score, square, turns, wrong, calls, spent in rows:
        done, scored, whole, squares, dollars = (
            done + count,
            scored + marks,
            whole + score,
            squares + square,
            dollars + spent,
        )
        if scored:
            mean = whole / scored
            half = 1.96 * math.sqrt(max(0.0, squares / scored - mean * mean) / scored)
            scores.append(ChartPoint(done, mean, mean - half, mean + half, ref=str(first)))
        length.append(ChartPoint(done, turns / count, ref=str(first)))
        if calls:
            errors.append(ChartPoint(done, wrong / calls, ref=str(first)))
        cost.append(ChartPoint(done, dollars))
    over = "rollouts"
    if scores:
        yield ChartCurve(
            name="mean",
            label="mean score so far (band: 95 % over rollouts)",
            x_label=over,
            unit="share",
            group="score",
            points=tuple(scores),
        )
    yield ChartCurve(name="turns", label="turns of a rollout", x_label=over, group="length", points=tuple(length))
    if errors:
        yield ChartCurve(
            name="tool_errors",
            label="share of tool calls with an error",
            x_label=over,
            unit="share",
            group="errors",
            points=tuple(errors),
        )
    if dollars:
        yield ChartCurve(
            name="dollars", label="dollars so far", x_label=over, unit="dollars", group="cost", points=tuple(cost)
        )
    yield from _make_throughput(facts)


def _make_throughput(facts: RunFacts) -> Iterator[ChartCurve]:
    """Rollouts that ended in each minute, or in longer pieces of a long run."""
    low, high = facts.select_one("min(began + seconds), max(began + seconds)", "WHERE began > 0") or (None, None)
    if low is None or high is None or high <= low:
        return
    piece = max(1.0, (high - low) / 120)
    what = f"CAST((began + seconds - {low!r}) / {piece!r} AS INTEGER), count(*)"
    ended: dict[int, int] = dict(facts.select(what, "WHERE began > 0 GROUP BY 1"))
    last = max(ended)
    points = [ChartPoint((n + 1) * piece, ended.get(n, 0) * 60 / piece) for n in range(last + 1)]
    yield ChartCurve(
        name="throughput",
        label="rollouts per minute",
        x_label="seconds",
        unit="per minute",
        group="throughput",
        points=tuple(points),
    )


# ---- training -----------------------------------------------------------------------------------------------------


def make_training_curves(records: Sequence[Record], settings: TrainSettings) -> Iterator[ChartCurve]:
    """The scores of a training run by step, and what was decided."""
    gate = find_gate(settings.gate, records[-1].state) if records else settings.gate
    drawn = make_curve(records, gate)
    now, before = (
        ("text that would ship, expected", "initial skill, expected")
        if drawn.expected
        else (
            "current skill, selection",
            "train rollouts that passed",
        )
    )
    for name, label, line in (
        ("current", now, drawn.current),
        ("best", "best so far", drawn.best),
        ("train", before, drawn.train),
    ):
        if line:
            points = thin([ChartPoint(step, score) for step, score in line])
            yield ChartCurve(
                name=name,
                label=label,
                x_label="step",
                unit="share",
                group="score",
                style="step" if name == "best" else "line",
                points=points,
            )
    if drawn.dots:
        dots = [
            ChartPoint(
                dot.step,
                dot.score,
                dot.interval.low if dot.interval else None,
                dot.interval.high if dot.interval else None,
                dot.action,
                "accepted" if dot.accepted else "rejected",
            )
            for dot in drawn.dots
        ]
        yield ChartCurve(
            name="decisions",
            label="decisions",
            x_label="step",
            unit="share",
            group="score",
            style="dots",
            points=tuple(dots[-POINTS:]),
        )


def make_weight_curves(steps: Sequence[RlStep]) -> Iterator[ChartCurve]:
    """The numbers of an RL run by step."""
    columns: tuple[tuple[str, str, str, str, Callable[[RlStep], float | None]], ...] = (
        ("reward", "mean reward of a step", "share", "reward", lambda s: s.reward),
        ("length", "sampled tokens of a rollout", "tokens", "length", lambda s: s.length),
        ("kl", "KL to the sampling policy", "", "kl", lambda s: s.metrics.kl),
        ("reference_kl", "KL to the reference", "", "kl", lambda s: s.metrics.reference_kl),
        ("entropy", "entropy", "", "entropy", lambda s: s.metrics.entropy),
        ("clipped", "share of clipped ids", "share", "policy", lambda s: s.metrics.clipped),
        ("staleness", "staleness in versions", "", "staleness", lambda s: s.staleness),
        (
            "trained_fast",
            "trained share, faster half",
            "share",
            "trained",
            lambda s: s.shares.fast if s.shares else None,
        ),
        (
            "trained_slow",
            "trained share, slower half",
            "share",
            "trained",
            lambda s: s.shares.slow if s.shares else None,
        ),
    )
    for name, label, unit, group, read in columns:
        points = _list_points((step.step, read(step)) for step in steps if step.step)
        if points:
            yield ChartCurve(name=name, label=label, x_label="step", unit=unit, group=group, points=thin(points))
    held = [
        ChartPoint(
            step.step,
            step.held_out.mean,
            step.held_out.interval.low if step.held_out.interval else None,
            step.held_out.interval.high if step.held_out.interval else None,
            step.held_out.split,
            "held out",
        )
        for step in steps
        if step.held_out is not None and step.held_out.mean is not None
    ]
    if held:
        yield ChartCurve(
            name="held_out",
            label="held-out tasks",
            x_label="step",
            unit="share",
            group="reward",
            style="dots",
            points=tuple(held[-POINTS:]),
        )


def _list_points(values: Iterable[tuple[int, float | None]]) -> list[ChartPoint]:
    return [ChartPoint(x, y) for x, y in values if y is not None]
