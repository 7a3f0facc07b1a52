"""The comparison of runs on a terminal."""

import string
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ludus.command.terminal import (
    format_count,
    format_duration,
    format_money,
    format_number,
    make_console,
    make_table,
    make_text,
)
from ludus.comparison import ComparedRun, PairComparison, RunComparison, TaskDifference
from ludus.stats import Interval, describe_loads
from ludus.types import Usage

if TYPE_CHECKING:  # importing rich takes a while, and most commands do not draw
    from rich.console import Console
    from rich.table import Table


def print_comparison(comparison: RunComparison, console: "Console | None" = None) -> None:
    """Print a line for each run, a line for each pair, and what each pair says."""
    console = console or make_console()
    labels = _label_runs([run.name for run in comparison.runs], console.width)
    for name, label in labels.items():
        if label != name:
            console.print(make_text(f"{label}  {name}"), soft_wrap=True)
    console.print(_make_run_table(comparison.runs, labels))
    for run in comparison.runs:
        if run.excluded:
            text = f"{run.name}: {run.excluded} of {run.rollouts} rollouts have no score and are in no mean"
            console.print(make_text(text, "magenta"), soft_wrap=True)
        if run.suspects:
            without = "none" if run.mean_without_suspects is None else format_number(run.mean_without_suspects)
            text = f"{run.name}: {run.suspects} of {run.rollouts} rollouts are suspect; mean {without} without them"
            console.print(make_text(text, "magenta"), soft_wrap=True)
        if run.skill_loads:
            words = f"{run.name}: skill loaded in {describe_loads(run.skill_loads)}"
            console.print(make_text(words, "" if run.skill_loads.loaded else "magenta"), soft_wrap=True)
    console.print("\ndifferences on the same tasks, paired")
    console.print(_make_pair_table(comparison.pairs, labels))
    for pair in comparison.pairs:
        _print_pair(pair, console)


def _label_runs(names: Sequence[str], width: int) -> dict[str, str]:
    """What runs are called in the table of pairs: by their names, or by letters where two names would not fit."""
    fits = sum(sorted(map(len, names))[-2:]) <= width - _PAIR_NUMBERS
    letters = [*string.ascii_uppercase, *(f"{a}{b}" for a in string.ascii_uppercase for b in string.ascii_uppercase)]
    return {name: name if fits else letter for name, letter in zip(names, letters, strict=False)}


_PAIR_NUMBERS = 76
"""The width of the numbers in the table of pairs."""


def _make_run_table(runs: Sequence[ComparedRun], labels: Mapping[str, str]) -> "Table":
    table = make_table("run", "model", "mean", "95 %", "tasks", "rollouts", "cost", "time", whole=range(2, 8))
    for run in runs:
        table.add_row(
            make_text(labels.get(run.name, run.name)),
            make_text(run.model),
            "none" if run.mean is None else format_number(run.mean),
            _format_interval(run.interval),
            str(run.tasks),
            str(run.rollouts),
            _format_cost(run.usage),
            "" if run.median_seconds is None else format_duration(run.median_seconds),
        )
    return table


def _make_pair_table(pairs: Sequence[PairComparison], labels: Mapping[str, str]) -> "Table":
    names = ("run", "minus", "difference", "95 %", "won", "lost", "tied", "tasks", "cost")
    table = make_table(*names, whole=range(2, 9))
    for pair in pairs:
        difference = "none" if pair.difference is None else f"{pair.difference:+.3f}"
        table.add_row(
            make_text(labels.get(pair.first, pair.first)),
            make_text(labels.get(pair.second, pair.second)),
            make_text(difference, _choose_style(pair)),
            _format_interval(pair.interval),
            str(pair.won),
            str(pair.lost),
            str(pair.tied),
            str(pair.tasks),
            _format_ratio(pair),
        )
    return table


_NAMED = 12
"""How many tasks are named in a list; the JSON has all."""


def _print_pair(pair: PairComparison, console: "Console") -> None:
    """Print which tasks two runs differ on, and what their comparison says; nothing if they have none in common."""
    if not pair.tasks and not pair.changed:
        return
    console.print()
    for word, tasks in (("won", pair.won_tasks), ("lost", pair.lost_tasks)):
        if tasks:
            names = [_name_difference(each) for each in tasks[:_NAMED]]
            more = f" and {len(tasks) - _NAMED} more (--json names all)" if len(tasks) > _NAMED else ""
            console.print(make_text(f"{pair.first} {word}: {', '.join(names)}{more}"), soft_wrap=True)
    for each in pair.kinds:
        band = _format_interval(each.interval)
        words = f"  {each.kind or '(no kind)'}: {each.difference:+.3f} {band} on {each.tasks} tasks"
        console.print(make_text(words), soft_wrap=True)
    if pair.changed:
        text = f"{pair.first}, {pair.second}: {pair.changed} tasks of the same id ask something else: not compared"
        console.print(make_text(text, "magenta"), soft_wrap=True)
    if pair.difference_without_suspects is not None:
        text = f"difference without suspects: {pair.difference_without_suspects:+.3f}"
        console.print(make_text(text, "magenta"))
    if pair.tasks:
        console.print(make_text(pair.verdict, "bold"), soft_wrap=True)


def _name_difference(each: TaskDifference) -> str:
    return f"{each.task} ({format_number(each.first)} : {format_number(each.second)})"


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
