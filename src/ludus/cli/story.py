"""How a training run went, in characters: the curve of scores, and the changes that were tried, with their evidence.

Pure: records in, text out. The report (`report.html`) has all of it; this is what fits a terminal.
"""

import textwrap
from collections.abc import Sequence

from ludus.reflact.items import Item, short
from ludus.reflact.records import Record, Step
from ludus.reflact.report.score_curve import Curve
from ludus.reflact.report.training_page import done
from ludus.show import number
from ludus.skill import Edit
from ludus.skill_examples import parse

ROWS, WIDTH, LINE = 9, 72, 100
MANY = 12
"""With more steps than this that tried something, only the accepted ones are told."""


def plot(curve: Curve) -> str:
    """Scores by step: the current skill as a line, candidates as dots."""
    gap = max(1, min(8, WIDTH // curve.steps))
    columns = curve.steps * gap + 1
    if columns > WIDTH + 1 or not curve.current:
        return ""  # more steps than a terminal has columns for
    values = [score for _, score in curve.current] + [dot.score for dot in curve.dots]
    low, high = min(0.0, *values), max(1.0, *values)
    grid = [[" "] * columns for _ in range(ROWS)]

    def row(score: float) -> int:
        return round((high - score) / (high - low) * (ROWS - 1))

    for column in range(columns):
        now = [score for step, score in curve.current if step * gap <= column]
        grid[row(now[-1] if now else curve.current[0][1])][column] = "─"
    for dot in curve.dots:
        grid[row(dot.score)][dot.step * gap] = "●" if dot.accepted else "○"
    labels = [f"{high - (high - low) * n / (ROWS - 1):.2f}" if n % 4 == 0 else "" for n in range(ROWS)]
    lines = [f"{label:>6} │{''.join(cells)}".rstrip() for label, cells in zip(labels, grid, strict=True)]
    every = max(1, -(-4 // gap))
    steps = "".join(f"{step:<{gap * every}}" for step in range(0, curve.steps + 1, every)).rstrip()
    legend = "on the selection split:  ─ current skill   ● accepted   ○ not accepted"
    return "\n".join([*lines, f"{'':>6} └{'─' * columns}", f"{'step':>6}  {steps}", f"{'':>8}{legend}"])


def changes(records: Sequence[Record]) -> str:
    """What each step tried, what became of it, and which tasks it was learned from."""
    steps = [record for record in records if isinstance(record, Step) and record.verdict is not None]
    accepted = [step for step in steps if step.verdict and step.verdict.decision.accepted]
    told = accepted if len(steps) > MANY else steps
    left = f"\n({len(steps) - len(told)} that were not accepted: see the report)" if len(told) < len(steps) else ""
    return "\n".join(_step(step) for step in told) + left


def _step(step: Step) -> str:
    verdict = step.verdict
    assert verdict is not None
    before, after = ("?" if value is None else number(value) for value in (verdict.current, verdict.candidate))
    sign = "+" if verdict.decision.accepted else "-"
    lines = [f"step {step.number}: {verdict.decision.value.replace('_', ' ')}, {before} → {after}"]
    for item in (fate.item for fate in step.fates if done(fate)):
        lines.append(f"  {sign} {_said(item)}")
        lines.append(f"      from {item.support} {_source(item)}: {_some(item.evidence)}")
    return "\n".join(lines)


def _said(item: Item) -> str:
    examples = parse(item.content) if isinstance(item, Edit) else ()
    if isinstance(item, Edit) and len(examples) == 1:
        verb = "an example instead of another" if item.op == "replace" else "an example"
        return _short(f"{verb}: {examples[0].input} → {examples[0].output}")
    return _short(short(item))


def _source(item: Item) -> str:
    one, many = {"failure": ("failure", "failures"), "success": ("success", "successes")}.get(
        item.source, ("rollout", "rollouts")
    )
    return one if item.support == 1 else many


def _some(tasks: Sequence[str]) -> str:
    more = f" and {len(tasks) - 3} more" if len(tasks) > 3 else ""
    return _short(", ".join(tasks[:3])) + more


def _short(text: str) -> str:
    return textwrap.shorten(text, LINE, placeholder=" …")
