"""The comparison of runs on a terminal."""

from typing import TYPE_CHECKING

from ludus.cli.output.terminal import (
    format_count,
    format_duration,
    format_money,
    format_number,
    make_console,
    make_text,
)
from ludus.comparison import PairComparison, RunComparison
from ludus.stats import Interval
from ludus.types import Usage

if TYPE_CHECKING:  # importing rich takes a while, and most commands do not draw
    from rich.console import Console
    from rich.table import Table


def print_comparison(comparison: RunComparison, console: "Console | None" = None) -> None:
    """Print a line for each run, and a line for each pair."""
    console = console or make_console()
    runs = _make_table("run", "model", "mean", "95 %", "tasks", "rollouts", "cost", "time")
    for run in comparison.runs:
        seconds = "" if run.median_seconds is None else format_duration(run.median_seconds)
        mean = "none" if run.mean is None else format_number(run.mean)
        runs.add_row(
            make_text(run.name),
            make_text(run.model),
            mean,
            _format_interval(run.interval),
            str(run.tasks),
            str(run.rollouts),
            _format_cost(run.usage),
            seconds,
        )
    console.print(runs)
    for run in comparison.runs:
        if run.excluded:
            text = f" {run.name}: {run.excluded} of {run.rollouts} rollouts have no score and are in no mean"
            console.print(make_text(text, "magenta"))
    console.print("\ndifferences on the same tasks, paired")
    pairs = _make_table("run", "minus", "difference", "95 %", "won", "lost", "tied", "tasks", "cost")
    for pair in comparison.pairs:
        difference = "none" if pair.difference is None else f"{pair.difference:+.3f}"
        pairs.add_row(
            make_text(pair.first),
            make_text(pair.second),
            make_text(difference, _choose_style(pair)),
            _format_interval(pair.interval),
            str(pair.won),
            str(pair.lost),
            str(pair.tied),
            str(pair.tasks),
            _format_ratio(pair),
        )
    console.print(pairs)
    for pair in comparison.pairs:
        if pair.changed:
            text = f"{pair.first}, {pair.second}: {pair.changed} tasks of the same id ask something else: not compared"
            console.print(make_text(text, "magenta"))


def _make_table(*names: str) -> "Table":
    """A table whose first two columns, which are names, are folded if the terminal is narrow. Numbers are not."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1))
    for place, name in enumerate(names):
        table.add_column(name, no_wrap=place > 1, overflow="fold")
    return table


def _choose_style(pair: PairComparison) -> str:
    """Green or red where the interval does not contain 0."""
    if pair.interval is None or pair.interval.low <= 0 <= pair.interval.high:
        return ""
    return "green" if pair.interval.low > 0 else "red"


def _format_cost(usage: Usage) -> str:
    return format_money(usage.dollars) if usage.dollars else f"{format_count(usage.tokens)} tokens"


def _format_ratio(pair: PairComparison) -> str:
    """The cost per rollout of the first as a multiple of that of the second: in money, or in tokens."""
    first, second = pair.usage_first, pair.usage_second
    if first.dollars and second.dollars:
        return f"{first.dollars / second.dollars:.2f}×"
    return f"{first.tokens / second.tokens:.2f}× tokens" if second.tokens else ""


def _format_interval(interval: Interval | None) -> str:
    return f"[{format_number(interval.low)}, {format_number(interval.high)}]" if interval else ""
