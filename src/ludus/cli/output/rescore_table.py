"""Old and new scores of a run on a terminal."""

from typing import TYPE_CHECKING, TextIO

from ludus.cli.output.terminal import LiveLine, format_number, make_console, make_text
from ludus.rescoring import RescoreReport, RescoreTally
from ludus.stats import Interval

if TYPE_CHECKING:  # importing rich takes a while, and most commands do not draw
    from rich.console import Console

SHOWN = 20
"""Changed rollouts that are listed."""


class RescoreBar(LiveLine):
    """A line with the progress of rescoring. Call it after each rollout."""

    def __init__(self, title: str, total: int, *, file: TextIO | None = None) -> None:
        super().__init__(file)
        self._title = title
        self._total = total

    def __call__(self, tally: RescoreTally) -> None:
        if self._bar is None:
            return
        if self._row is None:
            self._row = self._bar.add_task(self._title, total=self._total, facts="")
        facts = f"{len(tally.changes)} changed · {tally.unjudged.total()} not judged"
        self._bar.update(self._row, completed=tally.rollouts, facts=facts)


def print_rescored(report: RescoreReport, console: "Console | None" = None) -> None:
    """Print old and new means, the rollouts whose score changed, and what could not be judged."""
    from rich.table import Table

    console = console or make_console()
    table = Table("", "old", "new", box=None, padding=(0, 2, 0, 0))
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
        changes = Table("rollout", "old", "new", "why", box=None, padding=(0, 2, 0, 0))
        for change in report.changes[:SHOWN]:
            why = make_text(" ".join(change.feedback.split()), "dim")
            why.truncate(80, overflow="ellipsis")
            name = make_text(f"{change.task}#{change.replicate + 1}")
            changes.add_row(name, _format_mean(change.before), format_number(change.after), why)
        console.print(changes)
        if len(report.changes) > SHOWN:
            console.print(f"… and {len(report.changes) - SHOWN} more (--json lists all)")
    for reason, count in report.unjudged.items():
        console.print(make_text(f"not judged: {count}: {reason}", "magenta"))


def _format_mean(mean: float | None) -> str:
    return "none" if mean is None else format_number(mean)


def _format_interval(interval: Interval | None) -> str:
    return f"[{format_number(interval.low)}, {format_number(interval.high)}]" if interval else ""
