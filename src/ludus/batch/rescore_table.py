"""Old and new scores of a run on a terminal."""

from typing import TYPE_CHECKING, TextIO

from ludus.command.terminal import LiveLine, format_number, make_console, make_table, make_text
from ludus.rescoring import RescoreReport, RescoreTally
from ludus.stats import Interval, describe_failures

if TYPE_CHECKING:  # importing rich takes a while, and most commands do not draw
    from rich.console import Console

SHOWN = 20
"""Changed rollouts that are listed."""


class RescoreBar(LiveLine):
    """A line with the progress of rescoring. Call it after each rollout."""

    def __init__(self, title: str, total: int, *, file: TextIO | None = None) -> None:
        super().__init__(title, file)
        self._total = total

    def __call__(self, tally: RescoreTally) -> None:
        facts = f"{len(tally.changes)} changed · {tally.unjudged.total()} not judged"
        self.draw(tally.rollouts, self._total, facts)


def print_rescored(report: RescoreReport, console: "Console | None" = None) -> None:
    """Print old and new means, the rollouts whose score changed, and what could not be judged."""
    console = console or make_console()
    table = make_table("", "old", "new")
    table.add_row("mean", _format_mean(report.mean_before), _format_mean(report.mean_after))
    if report.interval_before or report.interval_after:
        table.add_row("95 %", _format_interval(report.interval_before), _format_interval(report.interval_after))
    console.print(table)
    counts = f"{report.raised} higher, {report.lowered} lower, {report.unchanged} unchanged"
    if report.new:
        counts += f", {report.new} had no score before"
    tasks = "1 task" if report.tasks == 1 else f"{report.tasks} tasks"
    console.print(f"\n{report.judged} of {report.rollouts} rollouts judged, {tasks}: {counts}")
    if report.changes:
        console.print()
        changes = make_table("rollout", "old", "new", "why")
        for change in report.changes[:SHOWN]:
            why = make_text(" ".join(change.feedback.split()), "dim")
            why.truncate(80, overflow="ellipsis")
            name = make_text(f"{change.task}#{change.replicate + 1}")
            changes.add_row(name, _format_mean(change.before), format_number(change.after), why)
        console.print(changes)
        if len(report.changes) > SHOWN:
            console.print(f"… and {len(report.changes) - SHOWN} more (--json lists all)")
    if words := describe_failures(report.failures):
        console.print(make_text(words), soft_wrap=True)
    for reason, count in report.unjudged.items():
        console.print(make_text(f"not judged: {count}: {reason}", "magenta"))


def _format_mean(mean: float | None) -> str:
    return "none" if mean is None else format_number(mean)


def _format_interval(interval: Interval | None) -> str:
    return f"[{format_number(interval.low)}, {format_number(interval.high)}]" if interval else ""
